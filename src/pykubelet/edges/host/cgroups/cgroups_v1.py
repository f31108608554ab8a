"""The driver for cgroup version 1, with one hierarchy for each controller, or the hybrid layout.

Owns: the files of version 1 and the order in which they are written. A cgroup is created in every mounted hierarchy. Source:
the kernel's cgroup-v1 documents (cpusets, memory, hugetlb), sched-bwc.
"""

from __future__ import annotations

import os

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.cgroups.cgroup_values import UNLIMITED, CgroupLimits, CgroupVersion
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
from pykubelet.edges.host.fs.errors import HostError, translated

_RELEVANT = frozenset({"cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb", "name=systemd"})


class Hierarchy(Value):
    """One mount: its directory, and its controllers (or `name=systemd`)."""

    directory: str
    controllers: frozenset[str]


class CgroupsV1:
    """The driver for version 1. `unified`: where version 2 is mounted too, or None.

    Runtimes create empty cgroups there as well, and these must be removed. `units`: None without a service manager.
    """

    def __init__(
        self, hierarchies: tuple[Hierarchy, ...], unified: str | None = None, units: Units | None = None
    ) -> None:
        self._units = units
        self._hierarchies = hierarchies
        self._unified = unified
        self._by_controller = {name: h.directory for h in hierarchies for name in h.controllers}
        self._main = self._by_controller.get("memory") or hierarchies[0].directory

    @property
    def version(self) -> CgroupVersion:
        """See `Cgroups.version`."""
        return CgroupVersion.V1

    def controllers(self) -> frozenset[str]:
        """See `Cgroups.controllers`."""
        return frozenset(name for name in self._by_controller if "=" not in name)

    def directory(self, controller: str, path: str) -> str | None:
        """The directory of a cgroup's files of one controller; None if the controller is not mounted."""
        root = self._by_controller.get(controller)
        return None if root is None else join(root, path)

    def exists(self, path: str) -> bool:
        """See `Cgroups.exists`. Only hierarchies of controllers that the agent uses count; others may be mounted later."""
        return not self.missing(path)

    def missing(self, path: str) -> tuple[str, ...]:
        """See `Cgroups.missing`."""
        relevant = (h for h in self._hierarchies if not _RELEVANT.isdisjoint(h.controllers))
        directories = (join(h.directory, path) for h in relevant)
        return tuple(directory for directory in directories if not os.path.isdir(directory))

    def create(self, path: str, limits: CgroupLimits) -> None:
        """See `Cgroups.create`."""
        if self._units is not None:
            self._units.create(path, limits, self.version)
        self._make(path)
        self._write(path, limits)

    def _make(self, path: str) -> None:
        for hierarchy in self._hierarchies:
            directory = join(hierarchy.directory, path)
            _make(hierarchy.directory, directory)
            if "cpuset" in hierarchy.controllers:
                _fill_cpuset(hierarchy.directory, directory)

    def update(self, path: str, limits: CgroupLimits) -> None:
        """See `Cgroups.update`."""
        if self._units is not None:
            self._units.update(path, limits, self.version)
        self._write(path, limits)

    def _write(self, path: str, limits: CgroupLimits) -> None:
        cpu = self.directory("cpu", path)
        if cpu is not None:
            if limits.cpu_shares:
                write_control(f"{cpu}/cpu.shares", str(limits.cpu_shares))
            _write_bandwidth(cpu, limits)
        memory = self.directory("memory", path)
        if memory is not None and limits.memory_bytes is not None:
            write_control(f"{memory}/memory.limit_in_bytes", str(limits.memory_bytes))
        pids = self.directory("pids", path)
        if pids is not None and limits.pids is not None:
            write_control(f"{pids}/pids.max", "max" if limits.pids == UNLIMITED else str(limits.pids))
        cpuset = self.directory("cpuset", path)
        if cpuset is not None and limits.cpus:
            _write_cpus(cpuset, limits.cpus)
        huge = self.directory("hugetlb", path)
        if huge is not None:
            for size, limit in limits.huge_pages.items():
                write_control(f"{huge}/hugetlb.{size}.limit_in_bytes", str(limit))
            write_reservations(huge, "limit_in_bytes", limits.huge_pages)

    def files(self, path: str) -> frozenset[str]:
        """See `Cgroups.files`."""
        return frozenset(name for root in self._roots() for name in list_files(join(root, path)))

    def memory_used(self, path: str) -> int:
        """See `Cgroups.memory_used`."""
        directory = self.directory("memory", path)
        return int(read_control(f"{directory}/memory.usage_in_bytes")) if directory is not None else 0

    def remove(self, path: str) -> bool:
        """See `Cgroups.remove`."""
        if self._units is not None and self.exists(path):
            self._units.remove(path)
        gone = True
        for root in self._roots():
            gone = remove_groups(join(root, path)) and gone
        return gone

    def enter(self, path: str, pid: int | None = None) -> None:
        """See `Cgroups.enter`. It needs no unit of that name."""
        self._make(path)
        for hierarchy in self._hierarchies:
            write_control(f"{join(hierarchy.directory, path)}/cgroup.procs", str(pid or os.getpid()))

    def own_pids(self, path: str) -> frozenset[int]:
        """See `Cgroups.own_pids`. Read from the hierarchy of the memory controller."""
        return frozenset(read_own_pids(join(self._main, path)))

    def pids(self, path: str) -> frozenset[int]:
        """See `Cgroups.pids`."""
        found: set[int] = set()
        for root in self._roots():
            found |= read_pids(join(root, path))
        return frozenset(found)

    def kill(self, path: str) -> int:
        """See `Cgroups.kill`. Frozen cgroups are thawed, because SIGKILL takes effect only then."""
        pids = self.pids(path)
        killed = kill_pids(pids)
        freezer = self.directory("freezer", path)
        if freezer is not None and killed:
            _thaw(freezer)
        return killed

    def children(self, path: str) -> tuple[str, ...]:
        """See `Cgroups.children`."""
        names: set[str] = set()
        for root in self._roots():
            names.update(sub_groups(join(root, path)))
        return tuple(sorted(names))

    def _roots(self) -> tuple[str, ...]:
        roots = tuple(h.directory for h in self._hierarchies)
        return roots if self._unified is None else (*roots, self._unified)


def _make(root: str, directory: str) -> None:
    try:
        os.mkdir(directory, 0o755)
    except FileExistsError:
        return
    except FileNotFoundError as error:
        parent = os.path.dirname(directory)
        if len(parent) < len(root) or directory == root:
            raise translated("mkdir", directory, error) from error
        _make(root, parent)
        _make(root, directory)
    except OSError as error:
        raise translated("mkdir", directory, error) from error


def _fill_cpuset(root: str, directory: str) -> None:
    """Copy the parent's CPUs and memory nodes to a new cpuset, which accepts no process without them."""
    if directory == root:
        return
    parent = os.path.dirname(directory)
    for name in ("cpuset.cpus", "cpuset.mems"):
        if read_control(f"{directory}/{name}"):
            continue
        value = read_control(f"{parent}/{name}")
        if not value:
            _fill_cpuset(root, parent)
            value = read_control(f"{parent}/{name}")
        write_control(f"{directory}/{name}", value)


def _write_cpus(cpuset: str, cpus: str) -> None:
    """A group whose parent has fewer CPUs keeps those that it has."""
    try:
        write_control(f"{cpuset}/cpuset.cpus", cpus)
    except HostError as error:
        if error.errno_name not in ("EACCES", "EINVAL"):
            raise


def _write_bandwidth(cpu: str, limits: CgroupLimits) -> None:
    """Write period and quota. The kernel checks each write against the parent's ratio, so the order depends on the values."""
    quota, period = limits.cpu_quota_us, limits.cpu_period_us
    if quota == 0:
        quota = None  # 0 means unset
    if period:
        try:
            write_control(f"{cpu}/cpu.cfs_period_us", str(period))
        except HostError as error:
            if error.errno_name != "EINVAL" or quota is None:
                raise
            write_control(f"{cpu}/cpu.cfs_quota_us", str(quota))
            write_control(f"{cpu}/cpu.cfs_period_us", str(period))
            return
    if quota is not None:
        write_control(f"{cpu}/cpu.cfs_quota_us", str(quota))


def _thaw(directory: str) -> None:
    """Thaw a cgroup and those below it: on version 1, SIGKILL does not end a frozen process."""
    for name in sub_groups(directory):
        _thaw(f"{directory}/{name}")
    try:
        write_control(f"{directory}/freezer.state", "THAWED")
    except HostError as error:
        if not error.is_not_found and error.errno_name != "ENODEV":
            raise
