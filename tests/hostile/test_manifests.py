"""What stands in manifest files: each costs the loop a moment, is refused or taken, and nothing of it stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hostile.servers import mutated
from support.cost import check_cost

from pykubelet.base.kit.cells import Mailbox
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.roster import SourceChanged
from pykubelet.desired.sources.decode import ManifestRules
from pykubelet.desired.sources.file import FileSource

GOOD = b"""apiVersion: v1
kind: Pod
metadata: {name: good, labels: {a: b}}
spec:
  containers:
  - {name: c, image: "busybox:1", args: [a, 22:22], resources: {limits: {memory: 64Mi}}}
"""
ANNOTATIONS = b"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations:\n"


def merges(levels: int) -> bytes:
    lines = [b"a0: &a0 {" + b",".join(b"k%d: 1" % n for n in range(10)) + b"}"]
    for level in range(1, levels):
        names = b",".join(b"*a%d" % (level - 1) for _ in range(10))
        lines.append(b"a%d: &a%d\n  <<: [%s]" % (level, level, names))
    return b"\n".join(lines) + b"\n"


def aliases(levels: int) -> bytes:
    lines = [b"a0: &a0 [1,2,3,4,5,6,7,8,9]"]
    lines += [b"a%d: &a%d [%s]" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, levels)]
    return b"\n".join(lines) + b"\n"


MANIFESTS: dict[str, bytes] = {
    "brackets, 100,000 deep": b"[" * 100_000,
    "JSON objects, 100,000 deep": b'{"a":' * 100_000,
    "block sequences, 5,000 deep": b"- " * 5_000,
    "merge keys of eight levels": merges(8),
    "aliases of seven levels": aliases(7),
    "an alias of itself": b"a: &a [*a]",
    "an integer of 5,000 digits": b"a: " + b"9" * 5000,
    "a quantity of 5,000 digits": GOOD.replace(b"64Mi", b"9" * 5000),
    "explicit tags": b"a: !!int x\nb: !!float y\nc: !!timestamp z\nd: !!bool w\ne: !!python/object:os.system x\n",
    "100,000 annotations": ANNOTATIONS + b"".join(b"    k%d: v\n" % n for n in range(100_000)),
    "an annotation of 9 MiB": ANNOTATIONS + b"    k: " + b"v" * (9 << 20),
    "10 MiB of line ends": b"\n" * (10 << 20),
    "10 MiB of comments": b"#\n" * (5 << 20),
    "10 MiB of commas": b"[" + b"," * (10 << 20),
    "500,000 numbers": b"[" + b"1," * 500_000 + b"1]",
    "a JSON string of 9 MiB": b'{"apiVersion": "' + b"v" * (9 << 20) + b'"}',
    "11 MiB": b"a" * (11 << 20),
    "NUL and control characters": b"\x00\x01\x02\x1b[31m" * 1000,
    "no UTF-8": b"\xff\xfe" * 100_000,
    "20,000 containers": GOOD + b"".join(b"  - {name: c%d, image: i}\n" % n for n in range(20_000)),
    "a label of 1 MiB": GOOD.replace(b"a: b", b"a: " + b"x" * (1 << 20)),
    "1 MiB of escaped quotes": b'a: "' + b"\\'" * ((1 << 19) - 100) + b'"\n',
    "50,000 scalars with escaped quotes": b"".join(b'k%d: "\\\'"\n' % n for n in range(50_000)),
    "anchors and no alias": b"".join(b"a%d: &a%d x\n" % (n, n) for n in range(50_000)),
}


def write(folder: Path, contents: list[bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / "good.yaml").write_bytes(GOOD)
    for number, content in enumerate(contents):
        (folder / f"bad-{number}.yaml").write_bytes(content)


async def given(folder: Path, contents: list[bytes], *, is_standalone: bool = False) -> SourceChanged:
    """What the source makes of files with these contents, beside a good one, which it takes whatever the others hold."""
    await asyncio.to_thread(write, folder, contents)
    posts: Mailbox[SourceChanged] = Mailbox("posts")
    async with Supervisor("test") as tasks:
        rules = ManifestRules("n", is_standalone=is_standalone)
        source = FileSource(str(folder), rules, 60.0, posts, SystemClock(), SingleFlight("test", 1))
        task = tasks.start_root("source", source.run())
        async with asyncio.timeout(60):
            post = await posts.get()
        task.cancel()
    assert "good-n" in [pod.metadata.name for pod in post.pods]
    return post


@pytest.mark.parametrize("name", MANIFESTS)
def test_no_manifest_costs_much(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "manifests"
    check_cost(name, lambda: given(folder, [MANIFESTS[name]]))


def config_map(name: bytes, data: bytes = b"") -> bytes:
    return b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {%s}\n" % (name, data)


def listed(items: bytes, count: int) -> bytes:
    return b'{"apiVersion": "v1", "kind": "List", "items": [' + b",".join([items] * count) + b"]}"


#: Without an API server: several documents in a file, and what pods refer to.
DOCUMENTS: dict[str, bytes] = {
    "a million empty documents": b"---\n" * 1_000_000,
    "a million documents with comments": b"---\n#\n" * 1_000_000,
    "400 KiB of ends of documents": b"...\n" * 100_000,
    "400 KiB of directives": b"%A b\n" * 80_000 + b"---\n",
    "small documents that fit into 16 KiB": b"---\na\n" * 2_700,
    "empty documents that fit into 16 KiB": b"---\n" * 4_000,
    "5,000 documents with bad syntax": b"---\na: [\n" * 5_000,
    "5,000 documents with aliases": b"--- [&a [1,2,3,4,5,6,7,8,9], *a, *a, *a, *a]\n" * 5_000,
    "aliases of six levels in each of 100 documents": b"---\n".join([aliases(6)] * 100),
    "values in documents": b"---\n".join([b"a: [" + b"1," * 90_000 + b"1]\n"] * 8),
    "3,000 ConfigMaps": b"---\n".join(config_map(b"m%d" % number) for number in range(3_000)),
    "a ConfigMap of 1 MiB": config_map(b"a", b"text: " + b"x" * ((1 << 20) - 10)),
    "a ConfigMap of 2 MiB": config_map(b"a", b"text: " + b"x" * (2 << 20)),
    "a ConfigMap with 60,000 keys": config_map(b"a", b",".join(b"k%d: v" % number for number in range(60_000))),
    "a ConfigMap with 60,000 bad keys": config_map(b"a", b",".join(b"'/%d': v" % number for number in range(60_000))),
    "a Secret with 60,000 values that are no base64": b"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {%s}\n"
    % b",".join(b"k%d: '?'" % number for number in range(60_000)),
    "a List of 100,000 numbers": listed(b"1", 100_000),
    "a List of 60,000 other kinds": listed(b'{"kind": "Service"}', 60_000),
    "a List of 30,000 ConfigMaps": listed(b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}', 30_000),
}  # fmt: skip


@pytest.mark.parametrize("name", [*DOCUMENTS, "aliases of seven levels", "1 MiB of escaped quotes"])
def test_no_documents_cost_much(tmp_path: Path, name: str) -> None:
    content = {**MANIFESTS, **DOCUMENTS}[name]
    check_cost(name, lambda: given(tmp_path / "manifests", [content], is_standalone=True))


def test_mutated_documents_cost_no_more(tmp_path: Path) -> None:
    good = b"---\n".join(
        (GOOD.replace(b"good", b"other"), config_map(b"a", b"b: c"), DOCUMENTS["5,000 documents with aliases"][:400])
    )
    contents = [mutated(seed, good) for seed in range(50)]  # pytest keeps each line of the log
    check_cost("50 mutated manifests of documents", lambda: given(tmp_path / "manifests", contents, is_standalone=True))


def test_many_manifests_hold_nothing_up(tmp_path: Path) -> None:
    contents = [GOOD.replace(b"good", b"good-%d" % number) for number in range(400)]
    check_cost("400 manifests", lambda: given(tmp_path / "manifests", contents))


def test_mutated_manifests_cost_no_more(tmp_path: Path) -> None:
    contents = [mutated(seed, GOOD) for seed in range(200)]
    check_cost("200 mutated manifests", lambda: given(tmp_path / "manifests", contents))
