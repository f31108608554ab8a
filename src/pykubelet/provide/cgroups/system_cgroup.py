"""Moves the processes of the root cgroup into the cgroup that `systemCgroups` names, to measure and limit their usage.

Process 1 and kernel threads stay. New processes in the root cgroup are moved within a minute. A failure is logged once
and tried again; the pods do not wait for it.

Source: `systemCgroups` of KubeletConfiguration.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_link
from pykubelet.provide.cgroups.model import ResourcesError

log = Log("cgroups")
PERIOD_S = 60.0
DEADLINE_S = 30.0
#: How often the root cgroup is read in one run, because processes may start while others are moved.
PASSES = 11
ROOT = "/"


class SystemCgroup:
    """The cgroup of the system's processes. ResourcesError if `group` is the root. `proc`: the mount point of the proc file system."""

    def __init__(self, cgroups: Cgroups, group: str, flight: SingleFlight, proc: str = "/proc") -> None:
        self._group = "/" + group.strip("/")
        if self._group == ROOT:
            raise ResourcesError('system container cannot be root ("/")')
        self._cgroups = cgroups
        self._flight = flight
        self._proc = proc
        self._problem = ""

    async def run(self) -> None:
        """Move processes now and every minute; never returns."""
        while True:
            await self.move()
            await asyncio.sleep(PERIOD_S)

    async def move(self) -> None:
        """Move all processes that are in the root cgroup now. A failure is logged, not raised."""
        outcome = await self._flight.run("system-cgroup", self._empty_root, DEADLINE_S)
        if isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
        if isinstance(outcome, Done):
            problem = outcome.value
        else:
            problem = str(outcome.error) if isinstance(outcome, Failed) else "the kernel has not answered yet"
        if problem and problem != self._problem:
            log.warning(
                "processes cannot be moved into the cgroup that systemCgroups names; trying again", error=problem
            )
        self._problem = problem

    def _empty_root(self) -> str:
        """Move processes until none is left; return the last problem, or an empty text. Blocks."""
        problem = ""
        for _ in range(PASSES):
            pids = [pid for pid in sorted(self._cgroups.own_pids(ROOT)) if pid != 1 and not self._is_kernel_thread(pid)]
            if not pids:
                return ""
            problem = ""
            for pid in pids:
                try:
                    self._cgroups.enter(self._group, pid)
                except HostError as error:
                    problem = f'failed to move PID {pid} into the system container "{self._group}": {error}'
        return problem

    def _is_kernel_thread(self, pid: int) -> bool:
        """Whether the process has no executable: it is a kernel thread, or it has just ended."""
        return read_link(f"{self._proc}/{pid}/exe") is None
