"""Machines for tests of placement, by their shape."""

from __future__ import annotations

from dataclasses import dataclass

from pykubelet.base.model.machine import Cpu, MachineTopology, NumaNode

GIB = 1 << 30


@dataclass(frozen=True)
class Shape:
    """`caches`: last-level caches of each NUMA node; 0: one of each socket. `sockets_per_node`: above 1, nodes contain sockets.

    Threads of a core are numbered as Linux does on x86: first one thread of every core, then the second ones. `interleaved`:
    neighboring cores are on different sockets.
    """

    sockets: int = 1
    nodes_per_socket: int = 1
    cores_per_node: int = 4
    threads: int = 2
    caches: int = 0
    sockets_per_node: int = 1
    interleaved: bool = False
    node_memory: int = 16 * GIB

    @property
    def machine(self) -> MachineTopology:
        """The machine of this shape; nodes of one socket are nearer to each other."""
        cores = self.sockets * self.nodes_per_socket * self.cores_per_node
        cpus = [self._cpu(core, core + thread * cores) for thread in range(self.threads) for core in range(cores)]
        count = self.sockets * self.nodes_per_socket // self.sockets_per_node
        nodes = tuple(NumaNode(node, self.node_memory, {}, self._distances(node, count)) for node in range(count))
        return MachineTopology(tuple(cpus), nodes)

    def _cpu(self, core: int, cpu: int) -> Cpu:
        if self.interleaved:
            place, within = core % self.sockets, core // self.sockets
        else:
            place, within = divmod(core, self.cores_per_node)
        socket = place // self.nodes_per_socket
        cache = place * self.caches + within * self.caches // self.cores_per_node if self.caches else socket
        return Cpu(cpu, core, socket, place // self.sockets_per_node, cache)

    def _distances(self, node: int, count: int) -> dict[int, int]:
        near = self.nodes_per_socket
        return {other: 10 if other == node else 12 if other // near == node // near else 32 for other in range(count)}
