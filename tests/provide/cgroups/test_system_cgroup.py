"""The processes of the root cgroup go to the one that is named for them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.cgroups.model import ResourcesError
from pykubelet.provide.cgroups.system_cgroup import PASSES, SystemCgroup

KERNEL_THREADS = (2, 3)


class RootProcesses:
    """The root cgroup with its processes. `coming`: processes that start while others are moved; `refused`: those that stay."""

    def __init__(self, proc: Path, programs: tuple[int, ...]) -> None:
        self.proc = proc
        self.root = set(KERNEL_THREADS)
        self.system: set[int] = set()
        self.coming: list[int] = []
        self.refused: set[int] = set()
        self.reads = 0
        for pid in programs:
            self.start(pid)

    def start(self, pid: int) -> None:
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "exe").symlink_to("/usr/bin/program")
        self.root.add(pid)

    def own_pids(self, path: str) -> frozenset[int]:
        assert path == "/"
        self.reads += 1
        return frozenset(self.root)

    def enter(self, path: str, pid: int | None = None) -> None:
        assert path == "/system" and pid is not None
        if self.coming:
            self.start(self.coming.pop())
        if pid in self.refused:
            raise HostError("write", "cgroup.procs", "EINVAL", "invalid argument")
        self.root.discard(pid)
        self.system.add(pid)


def system_cgroup(groups: RootProcesses, group: str = "/system") -> SystemCgroup:
    return SystemCgroup(cast(Cgroups, groups), group, SingleFlight("test"), proc=str(groups.proc))


async def test_all_but_the_first_process_and_the_kernels_own_are_moved(tmp_path: Path) -> None:
    groups = RootProcesses(tmp_path, (1, 40, 41))
    groups.coming = [42]
    await system_cgroup(groups).move()
    assert groups.system == {40, 41, 42}
    assert groups.root == {1, *KERNEL_THREADS}


async def test_one_that_cannot_be_moved_does_not_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    groups = RootProcesses(tmp_path, (1, 40, 41))
    groups.refused = {40}
    keeper = system_cgroup(groups)
    await keeper.move()
    await keeper.move()
    assert groups.system == {41}
    assert groups.reads == 2 * PASSES
    warned = [record.fields["error"] for record in caplog.records if hasattr(record, "fields")]
    reason = "write cgroup.procs: invalid argument"
    assert warned == [f'failed to move PID 40 into the system container "/system": {reason}']


def test_the_root_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResourcesError, match=r'^system container cannot be root \("/"\)$'):
        system_cgroup(RootProcesses(tmp_path, ()), "/")
