"""The limits of process extensions, with cgroups in memory and with a process that has none."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator

import pytest

from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.plugins.extension_limits import CPU_SHARES, MEMORY_BYTES, PIDS, ExtensionLimits
from pykubelet.testing.host import MemoryCgroups

GROUP = "/kubelet-extensions/ext"


class Recorded(MemoryCgroups):
    """Cgroups of which every call that changes something is recorded. `left`: how often a kill still finds processes."""

    def __init__(self, left: int = 0) -> None:
        super().__init__()
        self.calls: list[tuple[str, object]] = []
        self.left = left

    def create(self, path: str, limits: CgroupLimits) -> None:
        self.calls.append(("create", limits))
        super().create(path, limits)

    def update(self, path: str, limits: CgroupLimits) -> None:
        self.calls.append(("update", limits))
        super().update(path, limits)

    def enter(self, path: str, pid: int | None = None) -> None:
        self.calls.append(("enter", pid))

    def kill(self, path: str) -> int:
        self.calls.append(("kill", path))
        self.left -= 1
        return max(0, self.left)

    def remove(self, path: str) -> bool:
        self.calls.append(("remove", path))
        return super().remove(path)


class Refused(MemoryCgroups):
    """Cgroups of a user namespace without delegation."""

    def create(self, path: str, limits: CgroupLimits) -> None:
        raise HostError("mkdir", path, "EACCES", "permission denied")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "3600"]) as started:
        yield started
        started.kill()


def test_a_process_enters_its_cgroup_after_the_limits_are_there(process: subprocess.Popen[bytes]) -> None:
    cgroups = Recorded()
    ExtensionLimits(GROUP, cgroups).apply(process.pid)
    limits = CgroupLimits(cpu_shares=CPU_SHARES, memory_bytes=MEMORY_BYTES, pids=PIDS)
    assert cgroups.calls == [("create", limits), ("enter", process.pid)]
    assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)
    assert resource.prlimit(process.pid, resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_what_an_earlier_agent_has_left_is_ended_first(process: subprocess.Popen[bytes]) -> None:
    cgroups = Recorded(left=3)
    cgroups.groups[GROUP] = CgroupLimits()
    ExtensionLimits(GROUP, cgroups).apply(process.pid)
    names = [name for name, _ in cgroups.calls]
    assert names == ["kill", "update", "kill", "kill", "remove", "create", "enter"]
    assert cgroups.calls[1] == ("update", CgroupLimits(pids=1))  # nothing is forked while it is killed


def test_the_end_removes_the_cgroup_and_may_be_repeated(process: subprocess.Popen[bytes]) -> None:
    cgroups = Recorded()
    limits = ExtensionLimits(GROUP, cgroups)
    limits.apply(process.pid)
    limits.end()
    limits.end()
    assert GROUP not in cgroups.groups
    assert [name for name, _ in cgroups.calls].count("remove") == 1


@pytest.mark.parametrize("cgroups", [None, Refused()])
def test_without_a_cgroup_the_process_has_limits_of_its_own(
    process: subprocess.Popen[bytes], cgroups: MemoryCgroups | None
) -> None:
    limits = ExtensionLimits(GROUP, cgroups)
    limits.apply(process.pid)
    assert resource.prlimit(process.pid, resource.RLIMIT_AS) == (MEMORY_BYTES, MEMORY_BYTES)
    assert resource.prlimit(process.pid, resource.RLIMIT_NPROC)[0] <= 1024
    limits.end()


def test_a_process_that_has_ended_is_no_error(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    ExtensionLimits(GROUP, None).apply(process.pid)
