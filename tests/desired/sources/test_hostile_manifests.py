"""A manifest that is meant to harm, or was saved by accident, is a problem of its own: the pods beside it run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Mailbox, Sink
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.remarks import MAX_WORDS
from pykubelet.base.model.roster import ManifestProblem, SourceChanged
from pykubelet.desired.sources.decode import ManifestRules, decode_manifest
from pykubelet.desired.sources.file import FileSource
from pykubelet.desired.sources.static import file_origin
from pykubelet.desired.sources.url import UrlSource
from pykubelet.edges.host.services.httpget import HttpAnswer

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "c", "image": "busybox:1"}]},
}


def with_memory(text: str) -> bytes:
    limits = {"resources": {"limits": {"memory": text}}}
    return yaml.safe_dump({**POD, "spec": {"containers": [{"name": "c", "image": "busybox:1", **limits}]}}).encode()


def with_metadata(**metadata: Any) -> bytes:
    return yaml.safe_dump({**POD, "metadata": {"name": "web", **metadata}}).encode()


def with_spec(**volume: Any) -> bytes:
    return yaml.safe_dump({**POD, "spec": {**POD["spec"], "volumes": [{"name": "v", **volume}]}}).encode()


def json_of(**volume: Any) -> bytes:
    return json.dumps({**POD, "spec": {**POD["spec"], "volumes": [{"name": "v", **volume}]}}).encode()


def repeated(first: bytes, line: bytes, levels: int) -> bytes:
    """Each level of the document repeats the one before it ten times."""
    lines = [first]
    for i in range(1, levels):
        alias = b"*a%d" % (i - 1)
        lines.append(line % (i, i, b",".join([alias] * 10)))
    return b"\n".join(lines)


#: By name: a manifest, and a part of its problem.
HOSTILE = {
    "int-tag": (b"a: !!int x", "no int"),
    "float-tag": (b"a: !!float abc", "no float"),
    "hexadecimal": (b"a: 0x_", "expected"),
    "binary": (b"a: 0b_", "expected"),
    "bool-tag": (b"a: !!bool foo", "no bool"),
    "timestamp-tag": (b"a: !!timestamp foo", "not supported"),
    "empty-int": (b"a: !!int", "no int"),
    "long-integer": (b"kind: " + b"9" * 5000, "expected"),
    "long-quantity": (with_memory("9" * 5000), "limits[memory]: Invalid value"),
    "lists": (b"[" * 100_000, "nested too deeply"),
    "JSON": (b'{"a":' * 100_000, "nested too deeply"),
    "closed-lists": (b"[" * 50_000 + b"]" * 50_000, "nested too deeply"),
    "deep-annotation": (b'{"kind":"Pod","x":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    "merge-keys": (repeated(b"a0: &a0 {k: 1}", b"a%d: &a%d {<<: [%s]}", 9), "too many values"),
    "aliases": (repeated(b"a0: &a0 [x]", b"a%d: &a%d [%s]", 9), "too many values"),
    "nul-in-yaml": (with_spec(hostPath={"path": "/a\0b"}), "spec.volumes[0].hostPath.path: must not have a NUL"),
    "nul-in-json": (json_of(nfs={"server": "s", "path": "/a\0"}), "spec.volumes[0].nfs.path: must not have a NUL"),
    "surrogate": (
        json_of(hostPath={"path": "/a\ud800"}),
        "spec.volumes[0].hostPath.path: must not have half of a surrogate",
    ),
    "surrogate-key": (
        json_of(hostPath={"\udfff": "x"}),
        "spec.volumes[0].hostPath.?: must not have half of a surrogate",
    ),
    "uid": (with_metadata(uid="../../elsewhere"), "metadata.uid"),
    "dots": (with_metadata(uid=".."), "metadata.uid"),
    "long-uid": (with_metadata(uid="a" * 65), "metadata.uid"),
    "name": (with_metadata(name="../../elsewhere"), "metadata.name"),
    "namespace": (with_metadata(namespace="../../elsewhere"), "metadata.namespace"),
}


async def first_posts(path: Path) -> SourceChanged:
    posts: Mailbox[SourceChanged] = Mailbox("posts")
    async with asyncio.timeout(60), Supervisor("test") as tasks:
        source = FileSource(str(path), ManifestRules("n"), 60.0, posts, SystemClock(), SingleFlight("test", 1))
        tasks.start_root("source", source.run())
        return await posts.get()


@pytest.mark.parametrize("name", HOSTILE)
async def test_the_pod_beside_a_hostile_manifest_runs(tmp_path: Path, name: str) -> None:
    data, words = HOSTILE[name]
    (tmp_path / "bad.yaml").write_bytes(data)
    (tmp_path / "good.yaml").write_text(yaml.safe_dump(POD))
    post = await first_posts(tmp_path)
    assert [pod.metadata.name for pod in post.pods] == ["web-n"]
    assert {wrong.origin for wrong in post.problems} == {str(tmp_path / "bad.yaml")}
    assert words in f"{post.problems[0].field_path}: {post.problems[0].reason}"


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_answer_of_the_manifest_url_leaves_the_pods_that_run(name: str) -> None:
    bodies = [yaml.safe_dump(POD).encode(), HOSTILE[name][0]]

    async def fetch(
        url: str, headers: Mapping[str, tuple[str, ...]] | None, timeout_s: float, limit: int
    ) -> HttpAnswer:
        return HttpAnswer(200, "OK", bodies.pop(0))

    posts: Sink[SourceChanged] = Sink()
    source = UrlSource("http://example.com/pods", {}, ManifestRules("n"), 20.0, posts, SystemClock(), fetch)
    await source.ask()
    await source.ask()
    last = posts.events[-1]
    assert [pod.metadata.name for pod in last.pods] == ["web-n"]
    assert HOSTILE[name][1] in f"{last.problems[0].field_path}: {last.problems[0].reason}"


def test_base_60_numbers_and_dates_are_text() -> None:
    (pod,) = decode_manifest(
        b"apiVersion: v1\nkind: Pod\nmetadata: {name: web, annotations: {backup-at: 12:30:00, since: 2026-01-01}}\n"
        b"spec: {containers: [{name: c, image: x, args: [forward, 22:22]}]}\n",
        file_origin("/m"),
        ManifestRules("n"),
    )
    assert isinstance(pod, Pod), pod
    assert pod.spec.containers[0].args == ("forward", "22:22")
    assert (pod.metadata.annotations["backup-at"], pod.metadata.annotations["since"]) == ("12:30:00", "2026-01-01")


@pytest.mark.parametrize("uid", ["a", "0b2d1cc4-5b3f-4f0e-8f7e-0c7b7b6c6f10", "f" * 64])
def test_a_plain_uid_of_a_manifest_stays(uid: str) -> None:
    pod, _remark = decode_manifest(with_metadata(uid=uid), file_origin("/m"), ManifestRules("n"))
    assert isinstance(pod, Pod), pod
    assert pod.metadata.uid == uid


def test_problems_of_a_manifest_are_short() -> None:
    (wrong,) = decode_manifest(with_metadata(name="x" * (1 << 20)), file_origin("/m"), ManifestRules("n"))
    assert isinstance(wrong, ManifestProblem)
    assert len(wrong.reason) <= MAX_WORDS + 3
    (wrong,) = decode_manifest(b"kind: " + b"x" * (1 << 20), file_origin("/m"), ManifestRules("n"))
    assert isinstance(wrong, ManifestProblem)
    assert len(wrong.reason) <= MAX_WORDS + 3
