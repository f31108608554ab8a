"""Directories inside volumes, on which containers mount other volumes: which they are, and that nothing is made elsewhere."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from provide.volumes.samples import CONTEXT

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes.kind import VolumesError
from pykubelet.provide.volumes.payloads import payload_kind
from pykubelet.provide.volumes.payloads.payload import PayloadFile, PayloadPlan, nested_mount_points

UID = PodUID("u1")
OUTSIDE = ("ESCAPED", "root/ESCAPED", "root/pods/ESCAPED", "root/pods/u2/ESCAPED")


def pod_with(*mounts: tuple[str, str]) -> Pod:
    """A pod with a container that mounts volumes, given as name and path; the volume `v` is written by the agent."""
    names = dict.fromkeys(name for name, _ in mounts)
    listed: list[dict[str, Any]] = [{"name": name, "emptyDir": {}} for name in names]
    container = {"name": "main", "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts]}
    return from_object(
        Pod,
        {
            "metadata": {"name": "web", "namespace": "shop", "uid": UID},
            "spec": {"containers": [container], "volumes": listed},
        },
    )


def set_up(paths: Paths, pod: Pod) -> None:
    path = paths.volume(UID, "kubernetes.io/configmap", "v")
    file = PayloadFile("file", b"text", 0o644)
    nested = nested_mount_points(pod, "v")
    plan = PayloadPlan(MountedVolume("v", "configMap", path), path, (file,), in_memory=False, nested=nested)
    payload_kind.set_up(plan, CONTEXT)


def everything_below(top: str, besides: str) -> list[str]:
    return sorted(
        os.path.join(where, name)
        for where, directories, files in os.walk(top)
        if not where.startswith(besides)
        for name in (*directories, *files)
    )


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("..", "../../../../../../../../../../../../../../../../../../../{tmp}/ESCAPED/x"),
        ("..", "../../../../../ESCAPED"),
        ("", "../../../../../ESCAPED"),
        (".", "../ESCAPED"),
        ("a/..", "/../ESCAPED"),
        ("/data", "/data/../../../../ESCAPED"),
        ("/data", "/data/sub/../../../../../{tmp}/ESCAPED"),
    ],
)
def test_mount_paths_with_dots_make_no_directory_outside_of_the_volume(tmp_path: Path, own: str, other: str) -> None:
    paths = Paths(f"{tmp_path}/root", f"{tmp_path}/logs")
    (tmp_path / "root" / "pods" / "u2").mkdir(parents=True)
    before = everything_below(str(tmp_path), paths.pod(UID))
    set_up(paths, pod_with(("v", own), ("other", other.format(tmp=str(tmp_path)))))
    assert [path for path in everything_below(str(tmp_path), paths.pod(UID)) if path != paths.pod(UID)] == before
    assert not any((tmp_path / name).exists() for name in OUTSIDE)


SEGMENTS = st.sampled_from(
    ["..", ".", "", "a", "b", "..data", "..data/x", "file", "\0", "\ud800", "n" * 300, "ESCAPED"]
)
MOUNT_PATHS = st.tuples(st.sampled_from(["", "/", "//"]), st.lists(SEGMENTS, max_size=8)).map(
    lambda made: made[0] + "/".join(made[1])
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["v", "w", "x"]), MOUNT_PATHS), min_size=1, max_size=6))
def test_no_mount_path_changes_anything_outside_of_the_volume(mounts: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as top:
        paths = Paths(f"{top}/root", f"{top}/logs")
        volume = paths.volume(UID, "kubernetes.io/configmap", "v")
        os.makedirs(volume)
        before = everything_below(top, volume)
        try:
            set_up(paths, pod_with(*mounts))
        except (VolumesError, HostError):
            pass
        assert everything_below(top, volume) == before


@pytest.mark.parametrize("name", ["..data", "..2026_01_01_00_00_00.1", "..x/y"])
def test_a_mount_in_the_place_of_the_atomic_writer_is_refused(name: str) -> None:
    with pytest.raises(VolumesError, match=r"invalid container mount point \.\..* must not start with '\.\.'"):
        nested_mount_points(pod_with(("v", "/data"), ("w", f"/data/{name}")), "v")


def test_only_the_nearest_volume_needs_a_directory_for_a_mount() -> None:
    pod = pod_with(("v", "/a"), ("w", "/a/b"), ("x", "a/b/c"), ("v", "/d/"), ("w", "//d//e/./f"), ("y", "/ab"))
    assert nested_mount_points(pod, "v") == ("b", "e/f")
    assert nested_mount_points(pod, "w") == ("c",)
    assert nested_mount_points(pod, "y") == ()


def test_a_volume_at_the_root_has_a_directory_for_each_mount() -> None:
    assert nested_mount_points(pod_with(("v", ".."), ("w", "../../x"), ("x", "x/y")), "v") == ("x",)


def test_a_link_in_the_volume_is_not_followed_for_a_mount(tmp_path: Path) -> None:
    paths = Paths(f"{tmp_path}/root", f"{tmp_path}/logs")
    pod = pod_with(("v", "/data"), ("w", "/data/link/ESCAPED"))
    volume = Path(paths.volume(UID, "kubernetes.io/configmap", "v"))
    volume.mkdir(parents=True)
    (volume / "link").symlink_to(tmp_path)
    set_up(paths, pod)
    assert not (tmp_path / "ESCAPED").exists() and (volume / "file").read_text() == "text"


def calls_of(work: Callable[[], object]) -> int:
    """The number of calls that the work makes, of functions in C too."""
    number = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


@pytest.mark.parametrize("shape", ["/d/{}", "/d" + "/a{}" * 3, "/{}", "/d/x"])
def test_the_cost_grows_with_the_number_of_mounts(shape: str) -> None:
    def plan(mounts: int) -> int:
        pod = pod_with(("v", "/d"), *((f"w{i}", shape.replace("{}", str(i))) for i in range(mounts)))
        return calls_of(lambda: [nested_mount_points(pod, volume.name) for volume in pod.spec.volumes])

    few, many = plan(500), plan(2000)
    assert many < 4.4 * few
