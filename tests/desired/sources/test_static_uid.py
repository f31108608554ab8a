"""A static pod has the UID that the reference kubelet 1.36 gives it, so that it runs on when either agent takes over.

The expected values come from the reference, for a node named `Node-1`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.base.api.codec import from_object, without_nulls
from pykubelet.base.api.core import Pod
from pykubelet.base.api.documents import load_document
from pykubelet.base.manifests.defaults import default_pod
from pykubelet.base.manifests.internal_dump import MAX_LENGTH, TooLong, dump_pod, dump_quantity
from pykubelet.desired.sources.static import file_origin, manifest_uid

TESTS = Path(__file__).parents[2]
UIDS = {
    "support/static_pods/empties.yaml": "81331c6b4157c02f91a087599807163b",
    "support/static_pods/etcd.yaml": "bcdf77c2094337624e48f9e48510427e",
    "support/static_pods/everything.yaml": "38b8fdde2591fca1bed7100a60b1148e",
    "support/static_pods/quantities.yaml": "8069fb9dd34d74af03eeed9dff6cd5d2",
}


def uid_of(document: dict[str, object], path: str) -> str:
    pod = default_pod(from_object(Pod, without_nulls(document)))
    return manifest_uid(pod, document, file_origin(path), "Node-1")


@pytest.mark.parametrize("path", UIDS)
def test_a_static_pod_has_the_uid_of_the_reference(path: str) -> None:
    assert uid_of(load_document((TESTS / path).read_bytes()), Path(path).name) == UIDS[path]


def test_a_field_that_came_after_1_36_counts_where_it_is_given() -> None:
    def uid_with(**source: object) -> str:
        volume = {"name": "v", "emptyDir": source}
        containers = [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]
        return uid_of({"metadata": {"name": "p"}, "spec": {"containers": containers, "volumes": [volume]}}, "/p.yaml")

    assert len({uid_with(), uid_with(mode=0o700), uid_with(mode=0o750)}) == 3


def test_a_huge_pod_has_a_uid_of_its_manifest() -> None:
    containers = [{"name": f"c{number}", "image": "i"} for number in range(2000)]
    document: dict[str, object] = {"metadata": {"name": "huge"}, "spec": {"containers": containers}}
    with pytest.raises(TooLong):
        dump_pod(default_pod(from_object(Pod, document)), document)
    first = uid_of(document, "/a.yaml")
    assert len(first) == 32 and first == uid_of(document, "/a.yaml") != uid_of(document, "/b.yaml")
    assert len(containers) * 100 > MAX_LENGTH


@pytest.mark.parametrize(
    ("text", "number", "kept"),
    [
        ("100m", "(int64)100 scale:(resource.Scale)-3", "100m"),
        ("1000m", "(int64)1000 scale:(resource.Scale)-3", ""),
        ("0.10", "(int64)10 scale:(resource.Scale)-2", ""),
        ("128Mi", "(int64)134217728 scale:(resource.Scale)0", ""),
        ("10Ki", "(int64)10240 scale:(resource.Scale)0", "10Ki"),
        ("+5", "(int64)5 scale:(resource.Scale)0", "+5"),
    ],
)
def test_a_quantity_is_kept_as_it_was_written(text: str, number: str, kept: str) -> None:
    dump = dump_quantity(text)
    assert f"value:{number}}}" in dump and f"s:(string){kept} Format" in dump
