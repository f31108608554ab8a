"""What stands in manifest files: each costs the loop a moment, is refused or taken, and nothing of it stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hostile.servers import mutated
from support.cost import check_cost

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.mailbox import Mailbox
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


async def given(folder: Path, contents: list[bytes]) -> SourceChanged:
    """What the source makes of files with these contents, beside a good one, which it takes whatever the others hold."""
    await asyncio.to_thread(write, folder, contents)
    posts: Mailbox[SourceChanged] = Mailbox("posts")
    async with Supervisor("test") as tasks:
        source = FileSource(str(folder), ManifestRules("n"), 60.0, posts, SystemClock(), SingleFlight("test", 1))
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


def test_many_manifests_hold_nothing_up(tmp_path: Path) -> None:
    contents = [GOOD.replace(b"good", b"good-%d" % number) for number in range(400)]
    check_cost("400 manifests", lambda: given(tmp_path / "manifests", contents))


def test_mutated_manifests_cost_no_more(tmp_path: Path) -> None:
    contents = [mutated(seed, GOOD) for seed in range(200)]
    check_cost("200 mutated manifests", lambda: given(tmp_path / "manifests", contents))
