"""Admits pods one after the other on a machine, and explains in terms of the machine why one does not fit. Pure.

CPUs and memory take part, devices do not. Pods do not end, and all of a pod's containers are admitted at once, as on a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from pykubelet.act.placement.admission import Admitted, admit
from pykubelet.act.placement.cpu_manager import SMT_REASON, CpuManager
from pykubelet.act.placement.cpu_policy import exclusive_counts, pod_count
from pykubelet.act.placement.cpu_topology import cpus_in, mask_of
from pykubelet.act.placement.memory_manager import MemoryManager, MemoryPolicy
from pykubelet.act.placement.provider import AllocationError
from pykubelet.act.placement.topology_manager import merge
from pykubelet.act.placement.topology_options import Policy, Scope, Topology
from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import value
from pykubelet.base.api.resources import format_units
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.hints import ResourceHints, TopologyHint
from pykubelet.base.model.placement import MemoryBlock
from pykubelet.base.model.requests import pod_requests

MEMORY = "memory"
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


class _Needs(Value):
    """Whose exclusive CPUs and bytes of memory do not fit, as the beginning of a sentence, and how many these are."""

    subject: str
    cpus: int
    memory: int


def pod_name(pod: Pod) -> str:
    """`namespace/name`."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


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
        if not isinstance(result, Admitted):
            return Outcome(name, containers, {}, {}, result.reason, result.message, self._explain(managers, pod))
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

    # why a pod does not fit

    def _explain(self, managers: list[Manager], pod: Pod) -> str:
        """What the pod needs, and what is free of it. `managers`: before the pod."""
        scope = None if self.topology.policy is Policy.NONE else self.topology.scope
        hint = TopologyHint(None, False)
        if scope is Scope.POD:
            hints = [manager.pod_hints(pod) for manager in managers]
            decision = merge(self.topology, hints)
            needs = _Needs("needs", pod_count(pod, exclusive_counts(pod)), _memory_of(pod))
            if not decision.admit:
                return self._explain_hints(managers, hints, needs)
            hint = decision.hint
        for container in (*pod.spec.initContainers, *pod.spec.containers):
            requests = container.resources.requests if container.resources is not None else {}
            count, size = exclusive_counts(pod).get(container.name, 0), value(requests.get(MEMORY))
            needs = _Needs(f"container {container.name} needs", count, size)
            if scope is Scope.CONTAINER:
                hints = [manager.hints(pod, container) for manager in managers]
                decision = merge(self.topology, hints)
                if not decision.admit:
                    return self._explain_hints(managers, hints, needs)
                hint = decision.hint
            for number, manager in enumerate(managers):
                after = manager.allocate(pod, container, hint).after
                if isinstance(after, AllocationError):
                    if isinstance(manager, MemoryManager):
                        return self._explain_memory(manager, needs)
                    return self._explain_shortage(manager, needs, whole_cores=after.reason == SMT_REASON)
                managers = [*managers[:number], after, *managers[number + 1 :]]
        return ""

    def _explain_hints(self, managers: Sequence[Manager], hints: Sequence[ResourceHints], needs: _Needs) -> str:
        """The first manager that fits on no nodes which the policy allows, or that they fit on different ones."""
        for manager, own in zip(managers, hints, strict=True):
            if not merge(self.topology, [own]).admit:
                if isinstance(manager, MemoryManager):
                    return self._explain_memory(manager, needs)
                return self._explain_nodes(manager, needs)
        return f"{needs.subject} CPUs and memory of the same NUMA nodes; they are free on different ones"

    def _explain_memory(self, manager: MemoryManager, needs: _Needs) -> str:
        """The memory that is free on each node, and who has the rest."""
        free = {node: one.tables[MEMORY].free for node, one in manager.state.machine.items() if MEMORY in one.tables}
        listed = ", ".join(f"{_bytes(size)} on node {node}" for node, size in free.items())
        held = ", ".join(
            f"{self._names[uid]} {name} ({_bytes(sum(block.size for block in blocks if block.type == MEMORY))})"
            for uid, pod in manager.state.entries.items()
            for name, blocks in pod.items()
            if uid in self._names
        )
        return f"{needs.subject} {_bytes(needs.memory)} of memory; free: {listed}{f', held by {held}' if held else ''}"

    def _explain_nodes(self, manager: CpuManager, needs: _Needs) -> str:
        """The CPUs that no set of NUMA nodes of the smallest possible size has free."""
        top, count, subject = manager.policy.topology, needs.cpus, needs.subject
        total = {node: mask.bit_count() for node, mask in top.nodes.items()}
        size = _fewest(total, count)
        if size is None:
            return f"{subject} {_cpus(count)}; the machine has {sum(total.values())}"
        if size > 1 and self.topology.policy is Policy.SINGLE_NUMA_NODE:
            return f"{subject} {_cpus(count)} on one NUMA node; the largest node has {max(total.values())}"
        free = {node: (mask & mask_of(manager.available)).bit_count() for node, mask in top.nodes.items()}
        best = max(combinations(free, size), key=lambda nodes: sum(free[node] for node in nodes))
        where = "one NUMA node" if size == 1 else f"{size} NUMA nodes"
        largest = f"largest free: {sum(free[node] for node in best)} on {_nodes(best)}"
        return f"{subject} {_cpus(count)} on {where}; {largest}{self._holders(manager, cpus_in(top.in_nodes(best)))}"

    def _explain_shortage(self, manager: CpuManager, needs: _Needs, *, whole_cores: bool) -> str:
        """The CPUs that the whole machine has not free."""
        top, free, count, subject = manager.policy.topology, manager.available, needs.cpus, needs.subject
        if whole_cores and count % top.threads_per_core:
            return f"{subject} {_cpus(count)}, but only whole cores of {_cpus(top.threads_per_core)} are allocated"
        if whole_cores:
            free = manager.state.default - manager.policy.reserved_cores
        what = f"{_cpus(count)} on whole cores" if whole_cores else _cpus(count)
        by_node = [(node, len(free & cpus_in(mask))) for node, mask in top.nodes.items()]
        listed = ", ".join(f"{number} on node {node}" for node, number in by_node)
        return f"{subject} {what}; free: {len(free)} ({listed}){self._holders(manager, cpus_in(top.all))}"

    def _holders(self, manager: CpuManager, cpus: frozenset[int]) -> str:
        """Who has how many of `cpus`."""
        held = [f"{part.pod} {part.container} ({len(part.cpus)})" for part in self._parts(cpus)]
        reserved = len(manager.policy.reserved & cpus)
        if reserved:
            held.append(f"the system ({reserved})")
        return f", held by {', '.join(held)}" if held else ""


def _memory_of(pod: Pod) -> int:
    """The bytes that the pod requests."""
    found = pod_requests(pod, overhead=False).get(MEMORY)
    return 0 if found is None else found.value()


def _bytes(size: int) -> str:
    return format_units(MEMORY, size)


def _fewest(total: Mapping[int, int], count: int) -> int | None:
    """How many of the largest nodes have `count` CPUs; None if all together have not."""
    have = 0
    for size, number in enumerate(sorted(total.values(), reverse=True), 1):
        have += number
        if have >= count:
            return size
    return None


def _cpus(count: int) -> str:
    return "1 CPU" if count == 1 else f"{count} CPUs"


def _nodes(nodes: Sequence[int]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {_listed(nodes)}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
