"""Builds sysfs trees of machines: `sys/devices/system/{cpu,node}` below a temporary directory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from pykubelet.base.kit.cpuset import format_cpuset


@dataclass
class SysfsTree:
    """The shape of a machine. `offline`: CPUs that are there but not online. `shared_by`: cores under one cache of level 3; 0: none.

    Threads of a core are numbered as Linux does on x86: first one thread of every core, then the second ones.
    """

    sockets: int = 1
    nodes_per_socket: int = 1
    cores_per_node: int = 2
    threads: int = 2
    shared_by: int = 0
    node_kib: int = 4 << 20
    huge_pages: dict[int, int] = field(default_factory=dict)  # size in KiB to pages per node
    offline: Collection[int] = ()
    numa: bool = True

    def write(self, root: Path) -> Path:
        """Write the tree; returns `root`."""
        base = root / "sys/devices/system"
        cores = self.sockets * self.nodes_per_socket * self.cores_per_node
        ids = range(cores * self.threads)
        online = frozenset(ids) - frozenset(self.offline)
        put(base / "cpu/online", format_cpuset(online))
        for cpu in ids:
            directory = base / f"cpu/cpu{cpu}"
            directory.mkdir(parents=True)
            if cpu not in online:
                continue  # the kernel removes the topology of a CPU that goes offline
            core = cpu % cores
            node = core // self.cores_per_node
            put(directory / "topology/core_id", core % (self.cores_per_node * self.nodes_per_socket))
            put(directory / "topology/physical_package_id", node // self.nodes_per_socket)
            self._put_caches(directory / "cache", core, cores, online)
        for node in range(self.sockets * self.nodes_per_socket if self.numa else 0):
            self._put_node(
                base / f"node/node{node}", node, [cpu for cpu in ids if cpu % cores // self.cores_per_node == node]
            )
        return root

    def _put_caches(self, directory: Path, core: int, cores: int, online: frozenset[int]) -> None:
        put(directory / "index0/level", 1)
        put(directory / "index0/id", core)
        put(directory / "index0/shared_cpu_map", mask({cpu for cpu in online if cpu % cores == core}))
        if self.shared_by:
            group = core // self.shared_by
            put(directory / "index3/level", 3)
            put(directory / "index3/id", group)
            put(directory / "index3/shared_cpu_map", mask({c for c in online if c % cores // self.shared_by == group}))

    def _put_node(self, directory: Path, node: int, cpus: list[int]) -> None:
        for cpu in cpus:
            (directory / f"cpu{cpu}").mkdir(parents=True)
        put(directory / "meminfo", f"Node {node} MemTotal:   {self.node_kib} kB\nNode {node} MemFree:   1 kB")
        others = range(self.sockets * self.nodes_per_socket)
        put(directory / "distance", " ".join("10" if other == node else "20" for other in others))
        for size, pages in self.huge_pages.items():
            put(directory / f"hugepages/hugepages-{size}kB/nr_hugepages", pages)


def put(path: Path, content: object) -> None:
    """Write a file of sysfs, which ends with a line feed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n")


def mask(cpus: Collection[int]) -> str:
    """CPUs as the kernel's mask: hexadecimal, in groups of 32 bits."""
    value = sum(1 << cpu for cpu in cpus)
    parts: list[str] = []
    while value or not parts:
        parts.append(f"{value & 0xFFFFFFFF:08x}")
        value >>= 32
    return ",".join(reversed(parts))
