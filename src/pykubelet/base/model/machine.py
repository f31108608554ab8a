"""The machine as placement sees it: CPUs with their cores, sockets, NUMA nodes and caches, the memory of each NUMA node, and
topology hints: on which NUMA nodes a resource can be allocated.

Source: the Kubernetes documentation, "Control CPU Management Policies on the Node" and "Utilizing the NUMA-aware Memory Manager";
KEP-693 (Topology Manager).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pykubelet.base.kit.values import Value, field


class Cpu(Value):
    """One online logical CPU.

    `core`: the lowest CPU id of its core on its socket. `uncore_cache`: the id of its last-level cache, that of the socket where
    there is none.
    """

    id: int
    core: int
    socket: int
    numa_node: int
    uncore_cache: int


class NumaNode(Value):
    """One NUMA node. `memory`: bytes, huge pages included. `huge_pages`: pages by page size in bytes. `distances`: by node id."""

    id: int
    memory: int
    huge_pages: Mapping[int, int] = field(default_factory=dict)
    distances: Mapping[int, int] = field(default_factory=dict)


class MachineTopology(Value):
    """All CPUs by ascending id, and all NUMA nodes by ascending id. Ids may have gaps."""

    cpus: tuple[Cpu, ...]
    nodes: tuple[NumaNode, ...]


class TopologyHint(Value):
    """A set of NUMA nodes on which a request fits. `nodes` None: any node. `preferred`: no smaller set could ever hold it."""

    nodes: frozenset[int] | None
    preferred: bool


#: A provider's hints by resource name. The value None: no preference for this resource. An empty sequence: it fits nowhere.
ResourceHints = Mapping[str, Sequence[TopologyHint] | None]
