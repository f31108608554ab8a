"""Admits pods one after the other on a machine, and explains in terms of the machine why one does not fit. Pure.

CPUs and memory take part, devices do not. Pods do not end, and all of a pod's containers are admitted at once, as on a node.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.placement.admission import Admitted, Rejection, admit
from pykubelet.act.placement.cpu_manager import CpuManager
from pykubelet.act.placement.cpu_topology import cpus_in
from pykubelet.act.placement.explanation import explain_rejection, pod_name
from pykubelet.act.placement.memory_manager import MemoryManager, MemoryPolicy
from pykubelet.act.placement.provider import Question
from pykubelet.act.placement.topology_options import Topology
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.placement import MemoryBlock

Manager = CpuManager | MemoryManager


class Outcome(Value):
    """What became of a pod. `exclusive`: CPUs by the name of the container that has them. `memory`: blocks, likewise.

    `reason` is empty if the pod was admitted.
    """

    pod: str
    containers: tuple[str, ...]
    exclusive: Mapping[str, frozenset[int]] = field(default_factory=dict)
    memory: Mapping[str, tuple[MemoryBlock, ...]] = field(default_factory=dict)
    reason: str = ""
    message: str = ""
    explanation: str = ""


class Part(Value):
    """The CPUs of one NUMA node that one container has exclusively."""

    pod: str
    container: str
    cpus: frozenset[int]


class NodeMap(Value):
    """Who has the CPUs of one NUMA node. `shared`: the shared pool without the reserved CPUs."""

    node: int
    sockets: tuple[int, ...]
    cpus: frozenset[int]
    reserved: frozenset[int]
    shared: frozenset[int]
    parts: tuple[Part, ...]


class Simulation:
    """A machine that fills up. `cpus` None: the CPU manager's policy is `none`."""

    def __init__(self, topology: Topology, cpus: CpuManager | None, memory: MemoryManager) -> None:
        self.topology = topology
        self.cpus = cpus
        self.memory = memory
        self._names: dict[str, str] = {}

    def admit(self, pod: Pod) -> Outcome:
        """Admit the next pod, whose UID no other pod may have, or reject it."""
        containers = tuple(c.name for c in (*pod.spec.initContainers, *pod.spec.containers))
        name, uid = pod_name(pod), pod.metadata.uid
        self._names[uid] = name
        managers = self._managers()
        result = admit(self.topology, managers, pod)
        assert not isinstance(result, Question), "without devices there is no plugin to be asked"
        if not isinstance(result, Admitted):
            assert isinstance(result, Rejection), "without devices, nothing is asked"
            explanation = explain_rejection(self.topology, managers, pod, self._names)
            return Outcome(name, containers, {}, {}, result.reason, result.message, explanation)
        for manager in result.providers:
            if isinstance(manager, CpuManager):
                self.cpus = manager
            elif isinstance(manager, MemoryManager):
                self.memory = manager
        cpus = self.cpus.state.assignments.get(uid, {}) if self.cpus is not None else {}
        return Outcome(name, containers, cpus, self.memory.state.entries.get(uid, {}))

    def _managers(self) -> list[Manager]:
        memory = [] if self.memory.policy is MemoryPolicy.NONE else [self.memory]
        return [*([] if self.cpus is None else [self.cpus]), *memory]

    def map(self) -> tuple[NodeMap, ...]:
        """Who has which CPUs now, by NUMA node."""
        if self.cpus is None:
            return ()
        top, state, reserved = self.cpus.policy.topology, self.cpus.state, self.cpus.policy.reserved
        maps = []
        for node, mask in top.nodes.items():
            cpus = cpus_in(mask)
            free = (state.default - reserved) & cpus
            maps.append(NodeMap(node, top.sockets_of((node,)), cpus, reserved & cpus, free, self._parts(cpus)))
        return tuple(maps)

    def _parts(self, cpus: frozenset[int]) -> tuple[Part, ...]:
        """The containers with exclusive CPUs among `cpus`, in the order of their admission."""
        assert self.cpus is not None
        assigned = self.cpus.state.assignments.items()
        parts = (Part(self._names[uid], name, own & cpus) for uid, pod in assigned for name, own in pod.items())
        return tuple(part for part in parts if part.cpus)
