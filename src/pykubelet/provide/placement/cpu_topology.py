"""The CPUs of a machine grouped by core, cache, NUMA node and socket, as the choice of CPUs needs them. Pure.

CPU sets are bit masks here (bit n: CPU n): choosing CPUs is counting and intersecting them hundreds of times.
Source: the Kubernetes documentation "Control CPU Management Policies on the Node".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.kit.values import Value
from pykubelet.base.model.machine import Cpu, MachineTopology


class CpuTopology(Value):
    """Masks of CPUs by the id of the unit that they share. A unit without an online CPU is left out."""

    all: int
    cores: Mapping[int, int]
    caches: Mapping[int, int]
    nodes: Mapping[int, int]
    sockets: Mapping[int, int]
    cpus: Mapping[int, Cpu]

    @property
    def threads_per_core(self) -> int:
        """CPUs of a core on average, rounded down, as the reference counts; 1 at least."""
        return max(1, len(self.cpus) // max(1, len(self.cores)))

    @property
    def cpus_per_socket(self) -> int:
        """CPUs of a socket on average, rounded down."""
        return len(self.cpus) // max(1, len(self.sockets))

    @property
    def cpus_per_cache(self) -> int:
        """CPUs that share a last-level cache on average, rounded down."""
        return len(self.cpus) // max(1, len(self.caches))

    @property
    def nodes_first(self) -> bool:
        """Whether a NUMA node contains one or more sockets; otherwise a socket contains several NUMA nodes."""
        return len(self.sockets) >= len(self.nodes)

    def in_nodes(self, nodes: Iterable[int]) -> int:
        """The CPUs of the NUMA nodes with these ids; an unknown id has none."""
        return _union(self.nodes, nodes)

    def sockets_of(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """The sockets that have CPUs in any of these NUMA nodes."""
        cpus = self.in_nodes(nodes)
        return tuple(socket for socket, mask in self.sockets.items() if mask & cpus)

    def in_sockets_of(self, nodes: Iterable[int]) -> int:
        """All CPUs of the sockets that have CPUs in any of these NUMA nodes."""
        return _union(self.sockets, self.sockets_of(nodes))

    def siblings(self, cpus: int) -> int:
        """All threads of the cores that `cpus` are on."""
        found = 0
        for core in self.cores.values():
            if core & cpus:
                found |= core
        return found

    def share_a_cache(self, cpus: int) -> bool:
        """Whether all of `cpus` have the same last-level cache; true of no CPU and of one."""
        return not cpus or any(cpus & mask == cpus for mask in self.caches.values())


def topology_of(machine: MachineTopology) -> CpuTopology:
    """The topology of the machine's CPUs."""
    return CpuTopology(
        all=mask_of(cpu.id for cpu in machine.cpus),
        cores=_grouped((cpu.core, cpu.id) for cpu in machine.cpus),
        caches=_grouped((cpu.uncore_cache, cpu.id) for cpu in machine.cpus),
        nodes=_grouped((cpu.numa_node, cpu.id) for cpu in machine.cpus),
        sockets=_grouped((cpu.socket, cpu.id) for cpu in machine.cpus),
        cpus={cpu.id: cpu for cpu in machine.cpus},
    )


def mask_of(cpus: Iterable[int]) -> int:
    """The mask of CPU ids."""
    mask = 0
    for cpu in cpus:
        mask |= 1 << cpu
    return mask


def ids_in(mask: int) -> list[int]:
    """The CPU ids of a mask, ascending."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found


def cpus_in(mask: int) -> frozenset[int]:
    """The CPU ids of a mask."""
    return frozenset(ids_in(mask))


def _grouped(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    groups: dict[int, int] = {}
    for unit, cpu in pairs:
        groups[unit] = groups.get(unit, 0) | 1 << cpu
    return dict(sorted(groups.items()))


def _union(units: Mapping[int, int], ids: Iterable[int]) -> int:
    found = 0
    for unit in ids:
        found |= units.get(unit, 0)
    return found
