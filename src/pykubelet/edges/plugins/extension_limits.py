"""Limits memory, processes and CPU time of a process extension, and ends all that it has started. Blocks: use `base.kit.flight`.

With cgroups, a process and all its children have a cgroup of their own, which is emptied at its end, and before its start of what an
earlier agent has left. Without, the process has limits of its own (setrlimit(2)), and only its process group is ended: a child in another
session stays.
"""

from __future__ import annotations

import resource
import time

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError, translated

log = Log("extensions")

#: The memory of a process extension and its children: bytes. The kernel ends one of them if they need more.
MEMORY_BYTES = 256 << 20
#: Processes and threads of a process extension.
PIDS = 64
#: Its share of the CPUs while others need them, too; a container with a request of 100m has 102.
CPU_SHARES = 102
#: Its open files.
FILES = 1024
#: Without a cgroup: processes of its user. The kernel does not apply it to root.
USER_PROCESSES = 1024
_KILL_S, _PAUSE_S = 5.0, 0.01


class ExtensionLimits:
    """The limits of one process. `group`: its cgroup, below the mount; `cgroups` None: there can be none."""

    def __init__(self, group: str, cgroups: Cgroups | None) -> None:
        self._group = group
        self._cgroups = cgroups
        self._has_group = False

    def apply(self, pid: int) -> None:
        """Limit a process that waits to be started. Raises HostError."""
        _limit(pid, resource.RLIMIT_CORE, 0)
        _limit(pid, resource.RLIMIT_NOFILE, FILES)
        if self._enter_group(pid):
            return
        _limit(pid, resource.RLIMIT_AS, MEMORY_BYTES)
        _limit(pid, resource.RLIMIT_NPROC, USER_PROCESSES)

    def _enter_group(self, pid: int) -> bool:
        cgroups = self._cgroups
        if cgroups is None:
            return False
        try:
            self.end()
            cgroups.create(self._group, CgroupLimits(cpu_shares=CPU_SHARES, memory_bytes=MEMORY_BYTES, pids=PIDS))
            self._has_group = True
            cgroups.enter(self._group, pid)
        except HostError as error:
            log.warning("an extension has no cgroup, only limits of its process", group=self._group, error=error)
            return False
        return True

    def end(self) -> None:
        """Kill all that is left in the cgroup, and remove it. Raises HostError."""
        cgroups = self._cgroups
        if cgroups is None or not (self._has_group or cgroups.exists(self._group)):
            return
        until = time.monotonic() + _KILL_S
        if cgroups.exists(self._group):
            cgroups.kill(self._group)  # first, because systemd may be slow, and an agent that stops does not wait long
            # else they may fork faster than they are killed; systemd refuses 0
            cgroups.update(self._group, CgroupLimits(pids=1))
        while cgroups.kill(self._group) or not cgroups.remove(self._group):
            if time.monotonic() > until:
                raise HostError("kill", self._group, "EBUSY", "its processes do not end")
            time.sleep(_PAUSE_S)  # noqa: TID251 - a worker thread
        self._has_group = False


def _limit(pid: int, kind: int, most: int) -> None:
    """Lower a limit of a process; one that is lower already stays."""
    try:
        _, hard = resource.prlimit(pid, kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(pid, kind, (most, most))
    except (OSError, ValueError) as error:
        if isinstance(error, ProcessLookupError) or not isinstance(error, OSError):
            return  # it has ended, which is noticed elsewhere
        raise translated("prlimit", f"/proc/{pid}", error) from error
