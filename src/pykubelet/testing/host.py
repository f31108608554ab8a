"""The host's control groups in memory."""

from __future__ import annotations

from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet.edges.host.fs.errors import HostError


class MemoryCgroups:
    """A driver (`edges.host.cgroups.Cgroups`) with groups that hold no processes. `groups`: limits by path."""

    def __init__(self) -> None:
        self.groups: dict[str, CgroupLimits] = {}

    @property
    def version(self) -> CgroupVersion:
        return CgroupVersion.V2

    def controllers(self) -> frozenset[str]:
        return frozenset({"cpu", "cpuset", "memory", "pids", "hugetlb", "io"})

    def exists(self, path: str) -> bool:
        return path == "/" or path in self.groups

    def missing(self, path: str) -> tuple[str, ...]:
        return () if self.exists(path) else ("memory",)

    def create(self, path: str, limits: CgroupLimits) -> None:
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts)):
            self.groups.setdefault("/" + "/".join(parts[:depth]), CgroupLimits())
        self.groups[path] = limits

    def update(self, path: str, limits: CgroupLimits) -> None:
        if path not in self.groups:
            raise HostError("write", path, "ENOENT", "no such group")
        self.groups[path] = limits

    def files(self, path: str) -> frozenset[str]:
        return frozenset({"cpu.weight", "cpu.max", "memory.low", "memory.high", "memory.max", "pids.max"})

    def memory_used(self, path: str) -> int:
        return 0

    def remove(self, path: str) -> bool:
        for group in [group for group in self.groups if group == path or group.startswith(path + "/")]:
            del self.groups[group]
        return True

    def enter(self, path: str, pid: int | None = None) -> None:
        self.create(path, CgroupLimits())

    def own_pids(self, path: str) -> frozenset[int]:
        return frozenset()

    def pids(self, path: str) -> frozenset[int]:
        return frozenset()

    def kill(self, path: str) -> int:
        return 0

    def children(self, path: str) -> tuple[str, ...]:
        start = path.rstrip("/") + "/"
        return tuple(sorted({group[len(start) :].split("/")[0] for group in self.groups if group.startswith(start)}))
