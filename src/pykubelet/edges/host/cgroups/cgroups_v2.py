"""The driver for cgroup version 2, the unified hierarchy.

Owns: the files of version 2, and the rule that every parent enables its controllers for its children. Source: the kernel's
"Control Group v2".
"""

from __future__ import annotations

import os

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion, files_of
from pykubelet.edges.host.cgroups.cgroups import (
    Units,
    join,
    kill_pids,
    list_files,
    read_control,
    read_own_pids,
    read_pids,
    remove_groups,
    sub_groups,
    write_control,
    write_reservations,
)
from pykubelet.edges.host.fs.errors import HostError, suppress_not_found, translated

log = Log("cgroups")

_NEEDED = frozenset({"cpu", "cpuset", "memory", "hugetlb", "pids"})


class CgroupsV2:
    """The driver for version 2. `root`: where the hierarchy is mounted. `units`: None without a service manager."""

    def __init__(self, root: str, units: Units | None = None) -> None:
        self._root = root
        self._units = units
        self._available: frozenset[str] | None = None
        self._enabled: set[str] = set()

    @property
    def version(self) -> CgroupVersion:
        """See `Cgroups.version`."""
        return CgroupVersion.V2

    def controllers(self) -> frozenset[str]:
        """See `Cgroups.controllers`."""
        if self._available is None:
            self._available = frozenset(read_control(f"{self._root}/cgroup.controllers").split())
        return self._available

    def directory(self, path: str) -> str:
        """The directory of the cgroup's files."""
        return join(self._root, path)

    def exists(self, path: str) -> bool:
        """See `Cgroups.exists`."""
        return os.path.isdir(self.directory(path))

    def missing(self, path: str) -> tuple[str, ...]:
        """See `Cgroups.missing`. Only controllers that the machine has count."""
        offered = read_control(f"{self.directory(path)}/cgroup.controllers").split()
        return tuple(sorted((_NEEDED & self.controllers()).difference(offered)))

    def create(self, path: str, limits: CgroupLimits) -> None:
        """See `Cgroups.create`. Retried once if another process changed `cgroup.subtree_control` or a parent in between."""
        if self._units is not None:
            self._units.create(path, limits, self.version)
        self.prepare(path)
        try:
            self._write(path, limits)
        except HostError as error:
            if not error.is_not_found:
                raise
            self._enabled.clear()  # another process disabled controllers, or replaced a parent
            self.prepare(path)
            self._write(path, limits)

    def prepare(self, path: str) -> None:
        """Create the cgroup and its parents. Each parent enables all its controllers in `cgroup.subtree_control`."""
        here = self._root
        for part in path.strip("/").split("/"):
            self._enable_controllers(here)
            here = f"{here}/{part}"
            try:
                os.mkdir(here, 0o755)
                self._enabled.discard(here)
            except FileExistsError:
                continue
            except FileNotFoundError as error:
                self._enabled.clear()
                raise translated("mkdir", here, error) from error
            except OSError as error:
                raise translated("mkdir", here, error) from error

    def update(self, path: str, limits: CgroupLimits) -> None:
        """See `Cgroups.update`."""
        if self._units is not None:
            self._units.update(path, limits, self.version)
        self._write(path, limits)

    def _write(self, path: str, limits: CgroupLimits) -> None:
        directory = self.directory(path)
        controllers = self.controllers()
        for name, value in files_of(limits):
            if name.partition(".")[0] in controllers:
                write_control(f"{directory}/{name}", value)
        if "hugetlb" in controllers:
            write_reservations(directory, "max", limits.huge_pages)

    def files(self, path: str) -> frozenset[str]:
        """See `Cgroups.files`."""
        return frozenset(list_files(self.directory(path)))

    def memory_used(self, path: str) -> int:
        """See `Cgroups.memory_used`."""
        return int(read_control(f"{self.directory(path)}/memory.current"))

    def remove(self, path: str) -> bool:
        """See `Cgroups.remove`."""
        if self._units is not None and self.exists(path):
            self._units.remove(path)
        directory = self.directory(path)
        gone = remove_groups(directory)
        self._enabled = {d for d in self._enabled if d != directory and not d.startswith(directory + "/")}
        return gone

    def enter(self, path: str, pid: int | None = None) -> None:
        """See `Cgroups.enter`. It needs no unit of that name."""
        self.prepare(path)
        write_control(f"{self.directory(path)}/cgroup.procs", str(pid or os.getpid()))

    def own_pids(self, path: str) -> frozenset[int]:
        """See `Cgroups.own_pids`."""
        return frozenset(read_own_pids(self.directory(path)))

    def pids(self, path: str) -> frozenset[int]:
        """See `Cgroups.pids`."""
        return frozenset(read_pids(self.directory(path)))

    def kill(self, path: str) -> int:
        """See `Cgroups.kill`. Uses `cgroup.kill` if the kernel has it (5.14 and later), else kills each process."""
        directory = self.directory(path)
        pids = self.pids(path)
        if not pids:
            return 0
        with suppress_not_found:
            write_control(f"{directory}/cgroup.kill", "1")
            return len(pids)
        return kill_pids(pids)  # a kernel before 5.14, or the cgroup is gone

    def children(self, path: str) -> tuple[str, ...]:
        """See `Cgroups.children`."""
        return tuple(sub_groups(self.directory(path)))

    def _enable_controllers(self, directory: str) -> None:
        if directory in self._enabled:
            return
        offered = set(read_control(f"{directory}/cgroup.controllers").split())
        control = f"{directory}/cgroup.subtree_control"
        missing = sorted(offered - set(read_control(control).split()))
        if missing:
            try:
                write_control(control, " ".join(f"+{name}" for name in missing))
            except HostError:
                _enable_singly(control, missing)
        self._enabled.add(directory)


def _enable_singly(control: str, names: list[str]) -> None:
    """Enable the controllers one by one, so that a refused one does not prevent the others.

    If the refused one is needed, writing its files fails later.
    """
    for name in names:
        try:
            write_control(control, f"+{name}")
        except HostError as error:
            log.warning("a cgroup controller cannot be enabled for child groups", controller=name, error=error)
