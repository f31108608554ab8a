"""The disk space of a pod's volumes, logs and own files."""

from __future__ import annotations

import os
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
from pykubelet.observe.stats.sizes import MAX_LOG_FILES, LogSizes, read_file_system, read_log_sizes, read_volume_sizes

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
    sizes = read_volume_sizes(paths(tmp_path).pods, mounted, OFF, AT)
    reported = {volume.name: volume for volume in sizes.volumes}
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
    sizes = read_volume_sizes(paths(tmp_path).pods, mounted, quotas, AT)
    counted, walked = (volume.fs for volume in sizes.volumes)
    assert (counted.used, counted.inodes_used) == (777_000, 8)
    assert walked.inodes_used == 2 and counted.capacity == walked.capacity
    assert [source for source, _ in sizes.took] == ["fsquota", "du"]
    calls.fails = {"use"}
    again = read_volume_sizes(paths(tmp_path).pods, mounted, quotas, AT)
    assert again.volumes[0].fs.inodes_used == 2, "what fails is walked"


def on_disk(*files: Path) -> int:
    return sum(os.lstat(file).st_blocks * 512 for file in files)


def running(*names: str, state: ObservedState = ObservedState.RUNNING) -> tuple[ContainerView, ...]:
    return tuple(ContainerView(ContainerID(name), name, SandboxID("s"), state, 0, 1) for name in names)


def log_sizes(folder: Path, *containers: ContainerView) -> LogSizes:
    (found,) = read_log_sizes(paths(folder), [PodView(REF, (), containers)], AT).values()
    return found


def make_logs(folder: Path, **files: int) -> list[Path]:
    """Files of the container `app`, of so many bytes."""
    logs = Path(paths(folder).container_logs(REF, "app"))
    logs.mkdir(parents=True, exist_ok=True)
    made = [logs / f"{name}.log" for name in files]
    for path, length in zip(made, files.values(), strict=True):
        path.write_bytes(b"x" * length)
    return made


def test_logs_count_as_the_disk_counts_them(tmp_path: Path) -> None:
    """By blocks: a short file takes a whole one, and what was never written in a file takes none."""
    first, second, sparse = make_logs(tmp_path, first=5, second=4, sparse=0)
    os.truncate(sparse, 1 << 20)
    sizes = log_sizes(tmp_path, *running("app", "quiet"))
    assert sizes.logs == {"app": (on_disk(first, second), 3), "quiet": (0, 0)}
    assert on_disk(first) > 5 and on_disk(sparse) < 1 << 20
    assert sizes.at == AT


def test_directories_and_targets_of_links_are_no_logs(tmp_path: Path) -> None:
    (log,) = make_logs(tmp_path, log=5)
    (tmp_path / "elsewhere").write_bytes(b"x" * 500_000)
    links = [log.parent / name for name in ("link", "dangling")]
    for link, target in zip(links, (tmp_path / "elsewhere", Path("/nowhere")), strict=True):
        link.symlink_to(target)
    (log.parent / "directory").mkdir()
    (log.parent / "directory" / "file").write_bytes(b"x" * 500_000)
    assert log_sizes(tmp_path, *running("app")).logs == {"app": (on_disk(log, *links), 3)}
    assert on_disk(*links) < 500_000


def test_own_files_are_the_hosts_file_and_those_in_the_log_directory(tmp_path: Path) -> None:
    (log,) = make_logs(tmp_path, log=5)
    assert log_sizes(tmp_path).own == (0, 0)
    hosts = Path(paths(tmp_path).etc_hosts(REF.uid))
    hosts.parent.mkdir(parents=True)
    hosts.write_text("127.0.0.1 localhost\n")
    assert log_sizes(tmp_path).own == (on_disk(hosts), 1)
    other = log.parent.parent / "other"
    other.write_text("x")
    assert log_sizes(tmp_path).own == (on_disk(hosts, other), 2)


def test_logs_of_containers_that_do_not_run_are_charged_to_the_pod_alone(tmp_path: Path) -> None:
    """What an init container has logged is on the disk as long as the container is there."""
    (log,) = make_logs(tmp_path, log=5)
    sizes = log_sizes(tmp_path, *running("app", state=ObservedState.EXITED))
    assert sizes.logs == {}
    assert sizes.own == (on_disk(log), 1)
    both = log_sizes(tmp_path, *running("app"), *running("app", state=ObservedState.EXITED))
    assert both.logs["app"] == (on_disk(log), 1)
    assert both.own == (0, 0)


@pytest.mark.parametrize("state", [ObservedState.RUNNING, ObservedState.EXITED])
def test_termination_messages_are_charged_to_the_pod(state: ObservedState, tmp_path: Path) -> None:
    """The file is on the node's disk, and a container may write to it without end."""
    messages = Path(paths(tmp_path).container(REF.uid, "app"))
    messages.mkdir(parents=True)
    made = [messages / name for name in ("0a1b2c3d", "4e5f6a7b")]
    for path in made:
        path.write_bytes(b"x" * 300_000)
    assert log_sizes(tmp_path, *running("app", state=state)).own == (on_disk(*made), 2)


def test_a_log_directory_with_any_number_of_files_costs_little(tmp_path: Path) -> None:
    make_logs(tmp_path, log=5)
    logs = Path(paths(tmp_path).container_logs(REF, "app"))
    for number in range(MAX_LOG_FILES + 100):
        os.link(logs / "log.log", logs / str(number))
    assert log_sizes(tmp_path, *running("app")).logs["app"][1] == MAX_LOG_FILES


def test_a_pod_that_cannot_be_measured_leaves_the_others_theirs(tmp_path: Path) -> None:
    other = PodRef("default", "loop", PodUID("uid-2"))
    make_logs(tmp_path, log=5)
    Path(paths(tmp_path).pod_logs(other)).symlink_to("elsewhere")
    pods = [PodView(other, (), running("app")), PodView(REF, (), running("app"))]
    assert read_log_sizes(paths(tmp_path), pods, AT).keys() == {REF.uid}
