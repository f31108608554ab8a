"""What a pod's volumes, logs and files take."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.quotas import MemoryQuotas, volume_quotas

from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.project_files import FIRST_ID
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.observe.stats.sizes import read_file_system, read_pod_sizes

REF = PodRef("default", "web", PodUID("uid-1"))
AT = 5.0
OFF = VolumeQuotas(is_on=False)


def paths(folder: Path) -> Paths:
    return Paths(str(folder), f"{folder}/logs")


def test_a_file_system_and_a_part_of_it(tmp_path: Path) -> None:
    whole, part = read_file_system(str(tmp_path), AT), read_file_system(str(tmp_path), AT, (12, 3))
    assert (part.used, part.inodes_used) == (12, 3)
    assert whole.capacity == part.capacity and (whole.used or 0) > 0
    with pytest.raises(HostError):
        read_file_system(str(tmp_path / "gone"), AT)


def test_volumes_are_walked_or_asked_of_their_own_file_system(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "deep").mkdir(parents=True)
    (scratch / "deep" / "file").write_bytes(b"x" * 10_000)
    mounted = {
        "scratch": MountedVolume("scratch", "emptyDir", str(scratch)),
        "shm": MountedVolume("shm", "emptyDir", "/proc"),
        "etc": MountedVolume("etc", "hostPath", "/etc", is_measured=False),
        "gone": MountedVolume("gone", "configMap", str(tmp_path / "gone")),
    }
    sizes = read_pod_sizes(paths(tmp_path), REF, None, mounted, OFF, AT)
    reported = {one.name: one for one in sizes.volumes}
    assert reported.keys() == {"scratch", "shm", "gone"}, "a hostPath has no files of the pod's own"
    assert reported["scratch"].is_local and (reported["scratch"].fs.used or 0) >= 10_000
    assert reported["scratch"].fs.inodes_used == 3
    assert not reported["shm"].is_local
    assert [source for source, _ in sizes.took] == ["du", "statfs", "du"]
    assert reported["gone"].fs.used is None, "what vanishes meanwhile counts as nothing"


def test_what_a_quota_counts_is_not_walked(tmp_path: Path) -> None:
    for name in ("counted", "walked"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 10_000)
    calls = MemoryQuotas()
    quotas = volume_quotas(tmp_path, calls)
    quotas.assign(str(tmp_path / "counted"), is_limited=True)
    calls.used[FIRST_ID] = (777_000, 8)
    mounted = {name: MountedVolume(name, "emptyDir", str(tmp_path / name)) for name in ("counted", "walked")}
    sizes = read_pod_sizes(paths(tmp_path), REF, None, mounted, quotas, AT)
    counted, walked = (one.fs for one in sizes.volumes)
    assert (counted.used, counted.inodes_used) == (777_000, 8)
    assert walked.inodes_used == 2 and counted.capacity == walked.capacity
    assert [source for source, _ in sizes.took] == ["fsquota", "du"]
    calls.fails = {"use"}
    again = read_pod_sizes(paths(tmp_path), REF, None, mounted, quotas, AT)
    assert again.volumes[0].fs.inodes_used == 2, "what fails is walked"


def test_logs_and_the_files_made_for_a_pod(tmp_path: Path) -> None:
    logs = Path(paths(tmp_path).container_logs(REF, "app"))
    logs.mkdir(parents=True)
    (logs / "0.log").write_text("hello")
    (logs / "0.log.20260101").write_text("hell")
    hosts = Path(paths(tmp_path).etc_hosts(REF.uid))
    hosts.parent.mkdir(parents=True)
    hosts.write_text("127.0.0.1 localhost\n")
    containers = tuple(
        ContainerView(ContainerID(name), name, SandboxID("s"), ObservedState.RUNNING, 0, 1) for name in ("app", "quiet")
    )
    sizes = read_pod_sizes(paths(tmp_path), REF, PodView(REF, (), containers), {}, OFF, AT)
    assert sizes.logs == {"app": (9, 2), "quiet": (0, 0)}
    assert sizes.host_files == 20
