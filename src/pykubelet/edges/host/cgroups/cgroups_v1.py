"""The driver for cgroup version 1, with one hierarchy for each controller, or the hybrid layout.

Owns: the files of version 1 and their orders of writing. A group is made in every mounted hierarchy. Source: the
kernel's cgroup-v1 documents (cpusets, memory, hugetlb), sched-bwc.
"""

from __future__ import annotations

import os

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.cgroups.cgroup_values import UNLIMITED, CgroupLimits, CgroupVersion
from pykubelet.edges.host.cgroups.cgroups import (
    join,
    kill_pids,
    read_control,
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
    """`unified`: where version 2 is mounted beside, in which runtimes also make (empty) groups that must be removed."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...], unified: str | None = None) -> None:
        self._hierarchies = hierarchies
        self._unified = unified
        self._by_controller = {name: h.directory for h in hierarchies for name in h.controllers}
        self._main = self._by_controller.get("memory") or hierarchies[0].directory

    @property
    def version(self) -> CgroupVersion:
        return CgroupVersion.V1

    def controllers(self) -> frozenset[str]:
        return frozenset(name for name in self._by_controller if "=" not in name)

    def directory(self, controller: str, path: str) -> str | None:
        """Where a group's files of one controller are; None when the controller is not mounted."""
        root = self._by_controller.get(controller)
        return None if root is None else join(root, path)

    def exists(self, path: str) -> bool:
        """Others may be mounted later than a group is made, and say nothing about it."""
        relevant = (h for h in self._hierarchies if not _RELEVANT.isdisjoint(h.controllers))
        return all(os.path.isdir(join(h.directory, path)) for h in relevant)

    def create(self, path: str, limits: CgroupLimits) -> None:
        for hierarchy in self._hierarchies:
            directory = join(hierarchy.directory, path)
            _make(hierarchy.directory, directory)
            if "cpuset" in hierarchy.controllers:
                _fill_cpuset(hierarchy.directory, directory)
        self.update(path, limits)

    def update(self, path: str, limits: CgroupLimits) -> None:
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
        huge = self.directory("hugetlb", path)
        if huge is not None:
            for size, limit in limits.huge_pages.items():
                write_control(f"{huge}/hugetlb.{size}.limit_in_bytes", str(limit))
            write_reservations(huge, "limit_in_bytes", limits.huge_pages)

    def memory_used(self, path: str) -> int:
        directory = self.directory("memory", path)
        return int(read_control(f"{directory}/memory.usage_in_bytes")) if directory is not None else 0

    def remove(self, path: str) -> bool:
        gone = True
        for root in self._roots():
            gone = remove_groups(join(root, path)) and gone
        return gone

    def enter(self, path: str) -> None:
        self.create(path, CgroupLimits())
        for hierarchy in self._hierarchies:
            write_control(f"{join(hierarchy.directory, path)}/cgroup.procs", str(os.getpid()))

    def pids(self, path: str) -> frozenset[int]:
        found: set[int] = set()
        for root in self._roots():
            found |= read_pids(join(root, path))
        return frozenset(found)

    def kill(self, path: str) -> int:
        pids = self.pids(path)
        killed = kill_pids(pids)
        freezer = self.directory("freezer", path)
        if freezer is not None and killed:
            _thaw(freezer)
        return killed

    def children(self, path: str) -> tuple[str, ...]:
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
    """A new cpuset is empty, and takes no process until it has CPUs and memory nodes: take the parent's."""
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


def _write_bandwidth(cpu: str, limits: CgroupLimits) -> None:
    """Period and quota. The kernel checks each write against the parent's ratio, so the order may have to change."""
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
    """A frozen process does not die of SIGKILL on version 1."""
    for name in sub_groups(directory):
        _thaw(f"{directory}/{name}")
    try:
        write_control(f"{directory}/freezer.state", "THAWED")
    except HostError as error:
        if not error.is_not_found and error.errno_name != "ENODEV":
            raise
