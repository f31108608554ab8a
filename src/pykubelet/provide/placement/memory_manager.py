"""The Memory Manager: which NUMA nodes' memory and huge pages a container of a Guaranteed pod gets. Pure.

Policy `None` does nothing. With `Static`, a container gets a block of each memory type it requests, all on the same nodes.
Memory of init containers that run to completion is reused by later containers of the pod on the same nodes; their blocks
shrink by what is reused, so that the blocks of a pod sum up to what is booked for it.

Each operation returns the manager after it; the caller writes the state file when `state` has changed. Not here: pod-level
resources. Pods that have them get nothing, as in the reference with the gate PodLevelResourceManagers off (its default).
Source: KEP-1769 (Memory Manager), the Kubernetes documentation "Utilizing the NUMA-aware Memory Manager".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.api.quantity import NANO, Amount, is_pod_level, parse
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.machine import NumaNode, ResourceHints, TopologyHint
from pykubelet.base.model.placement import MemoryBlock
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.sizing import QOSClass, qos_class
from pykubelet.config.kubelet import MemoryReservation
from pykubelet.provide.placement.checkpoint import PolicyDiffers, StateFileError
from pykubelet.provide.placement.memory_hints import (
    Reusable,
    Sizes,
    best_hint,
    breaks_group_rule,
    has_free,
    memory_hints,
)
from pykubelet.provide.placement.memory_reserved import (
    ReservedMemory,
    is_memory_type,
    read_reserved_memory,
    unused_machine,
)
from pykubelet.provide.placement.memory_state import Entries, MemoryState, MemoryTable, NodeMemory, decode
from pykubelet.provide.placement.provider import Allocation, AllocationError, ManagerStartError, MetricIncrement

REQUESTS = "kubelet_memory_manager_pinning_requests_total"
ERRORS = "kubelet_memory_manager_pinning_errors_total"

_PREFIX = "[memorymanager] "


class MemoryPolicy(StrEnum):
    """The configuration's `memoryManagerPolicy`."""

    NONE = "None"
    STATIC = "Static"


class MemoryManager(Value):
    """The policy with its state.

    `allocatable`: for each node and type, what containers could have at most; fixed at the start. `reusable_pod`: the pod whose
    init containers left `reusable`; it is the last one that memory was allocated for.
    """

    policy: MemoryPolicy
    state: MemoryState
    allocatable: tuple[MemoryBlock, ...] = ()
    reusable_pod: str = ""
    reusable: Reusable = field(default_factory=dict)

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """The nodes on which the container's memory fits, or those that it has. Empty: no preference, or no capacity."""
        sizes = _container_sizes(container) if self.serves(pod) else None
        if sizes is None:
            return {}
        blocks = self.state.blocks(pod.metadata.uid, container.name)
        return self._hints(pod, sizes) if blocks is None else _hints_again(blocks, sizes)

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """The nodes on which the memory of all the pod's containers fits, or those that they have."""
        sizes = _pod_sizes(pod) if self.serves(pod) else None
        if not sizes:
            return {}
        containers = (*pod.spec.initContainers, *pod.spec.containers)
        found = (self.state.blocks(pod.metadata.uid, container.name) for container in containers)
        held = [blocks for blocks in found if blocks is not None]
        return _hints_again(_together(held), sizes) if held else self._hints(pod, sizes)

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Allocation[MemoryManager]:
        """Books the container's memory on the hint's nodes. If they have too little, nodes are added."""
        if not self.serves(pod):
            return Allocation(self)
        blocks = self.state.blocks(pod.metadata.uid, container.name)
        if blocks is not None:
            return Allocation(self._with_reusable(pod, container, blocks), (MetricIncrement(REQUESTS),))
        after = self._book(pod, container, hint)
        if isinstance(after, str):
            return Allocation(AllocationError(_PREFIX + after), (MetricIncrement(REQUESTS), MetricIncrement(ERRORS)))
        return Allocation(after, (MetricIncrement(REQUESTS),))

    def release(self, pod_uid: str, container: str) -> MemoryManager:
        """The container is gone for good: its memory is free again."""
        blocks = self.state.blocks(pod_uid, container)
        if blocks is None:
            return self
        machine = self.state.machine
        for block in blocks:
            machine = _unbooked(machine, block)
        after = replace(self, state=replace(self.state.without(pod_uid, container), machine=machine))
        # A static pod can come back with its UID. (The reference would book too little for it.)
        return replace(after, reusable_pod="", reusable={}) if pod_uid not in after.state.entries else after

    def release_completed(self, pod: Pod, container: str) -> MemoryManager:
        """A container of the pod was created: the init containers before it, but for sidecars, have run to completion."""
        manager = self
        for init in pod.spec.initContainers:
            if init.name == container:
                break
            if not is_sidecar(init):
                manager = manager.release(pod.metadata.uid, init.name)
        return manager

    def release_others(self, active: Mapping[str, Collection[str]]) -> MemoryManager:
        """Releases the memory of all containers that are not in `active`: names by pod UID. Once all sources are known."""
        manager = self
        for pod_uid, containers in self.state.entries.items():
            for name in containers:
                if name not in active.get(pod_uid, ()):
                    manager = manager.release(pod_uid, name)
        return manager

    def blocks(self, pod_uid: str, container: str) -> tuple[MemoryBlock, ...]:
        """The container's memory, as the PodResources API lists it."""
        return self.state.blocks(pod_uid, container) or ()

    def cpuset_mems(self, pod_uid: str, container: str) -> str:
        """The value of the CRI's `cpuset_mems`: node ids separated by commas; empty if the container is not restricted."""
        nodes = {node for block in self.blocks(pod_uid, container) for node in block.nodes}
        return ",".join(map(str, sorted(nodes)))

    def serves(self, pod: Pod) -> bool:
        """Whether the pod gets memory of its own: it is Guaranteed and has no pod-level resources."""
        return self.policy is MemoryPolicy.STATIC and qos_class(pod) is QOSClass.GUARANTEED and not _has_pod_level(pod)

    def _reusable(self, pod: Pod) -> Reusable:
        return self.reusable if self.reusable_pod == pod.metadata.uid else {}

    def _hints(self, pod: Pod, sizes: Sizes) -> ResourceHints:
        hints = memory_hints(self.state.machine, sizes, self._reusable(pod))
        return dict.fromkeys(sizes, hints) if hints else {}

    def _book(self, pod: Pod, container: Container, hint: TopologyHint) -> MemoryManager | str:
        sizes = _container_sizes(container)
        if sizes is None:
            return "failed to represent quantity as int64"
        chosen = self._choose(pod, sizes, hint)
        if isinstance(chosen, str):
            return chosen
        nodes, machine, reusable = tuple(sorted(chosen)), self.state.machine, self._reusable(pod)
        blocks = []
        for name, size in sizes.items():
            blocks.append(MemoryBlock(nodes, name, size))
            machine = _booked(machine, MemoryBlock(nodes, name, max(0, size - reusable.get((chosen, name), 0))))
        state = replace(self.state, machine=machine).with_blocks(pod.metadata.uid, container.name, tuple(blocks))
        manager = self._with_reusable(pod, container, tuple(blocks))
        return replace(manager, state=_with_init_blocks_shrunk(state, pod, container, blocks))

    def _choose(self, pod: Pod, sizes: Sizes, hint: TopologyHint) -> frozenset[int] | str:
        """The nodes for a container; or the error. What the hint prefers must not become worse."""
        machine = self.state.machine
        if hint.nodes is None:
            best = best_hint(memory_hints(machine, sizes, self._reusable(pod)))
            if best is None:
                return "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
            if hint.preferred and not best.preferred:
                return "failed to find the default preferred hint"
            hint = best
        nodes = hint.nodes or frozenset()
        if not has_free(machine, nodes, sizes):
            wider = [
                other
                for other in memory_hints(machine, sizes, self._reusable(pod))
                if other.nodes and nodes <= other.nodes
            ]
            best = best_hint(wider)
            if best is None:
                return "failed to find NUMA nodes to extend the current topology hint"
            if hint.preferred and not best.preferred:
                return "failed to find the extended preferred hint"
            nodes = best.nodes or frozenset()
        if breaks_group_rule(machine, nodes):
            return "preferred hint violates NUMA node allocation"
        return nodes

    def _with_reusable(self, pod: Pod, container: Container, blocks: Sequence[MemoryBlock]) -> MemoryManager:
        """After a plain init container, its blocks can be reused; any other container takes what it reuses away."""
        reusable = dict(self._reusable(pod))
        completes = any(init.name == container.name and not is_sidecar(init) for init in pod.spec.initContainers)
        for block in blocks:
            key = frozenset(block.nodes), block.type
            before = reusable.get(key, 0)
            reusable[key] = max(before, block.size) if completes else max(0, before - block.size)
        return replace(self, reusable_pod=pod.metadata.uid, reusable=reusable)


def start_memory_manager(
    policy: str,
    nodes: Sequence[NumaNode],
    reservation: Mapping[str, Amount],
    reserved_memory: Sequence[MemoryReservation],
    file: tuple[str, str | None],
) -> MemoryManager | ManagerStartError:
    """The manager of the configuration's policy on this machine.

    `reservation`: what Node Allocatable keeps back, by resource. `file`: the path of the state file, which errors name, and its
    text; None if there is no file.
    """
    if policy == "BestEffort":
        return ManagerStartError('policy "BestEffort" is not available for platform "linux"')
    if policy not in list(MemoryPolicy):
        return ManagerStartError(f'unknown policy: "{policy}"')
    reserved: ReservedMemory = {}
    if policy == MemoryPolicy.STATIC:
        read = read_reserved_memory(nodes, reservation, reserved_memory)
        if isinstance(read, ManagerStartError):
            return read
        reserved = read
    path, text = file
    try:
        state = MemoryState() if text is None else decode(text, policy)
    except StateFileError as error:
        if policy == MemoryPolicy.NONE and not isinstance(error, PolicyDiffers):
            return MemoryManager(MemoryPolicy.NONE, MemoryState())  # it holds nothing, and is written anew
        what = f'delete the memory manager checkpoint file "{path}" before restarting Kubelet'
        return ManagerStartError(f"could not restore state from checkpoint: {error}, please drain this node and {what}")
    if policy == MemoryPolicy.NONE:
        return MemoryManager(MemoryPolicy.NONE, state)
    unused = unused_machine(nodes, reserved)
    if not state.machine and not state.entries:
        state = MemoryState(unused)
    problem = _state_problem(state, unused)
    if problem is not None:
        return ManagerStartError(_PREFIX + problem)
    return MemoryManager(MemoryPolicy.STATIC, state, tuple(_allocatable(state.machine)))


def _allocatable(machine: Mapping[int, NodeMemory]) -> Iterator[MemoryBlock]:
    for number, node in sorted(machine.items()):
        for name, table in sorted(node.tables.items()):
            if table.allocatable:
                yield MemoryBlock((number,), name, table.allocatable)


# Requests


def _has_pod_level(pod: Pod) -> bool:
    stated = pod.spec.resources
    return stated is not None and any(map(is_pod_level, (*stated.requests, *stated.limits)))


def _container_sizes(container: Container) -> Sizes | None:
    """Bytes by memory type, sorted by type; None if an amount is not a number of bytes."""
    requests = container.resources.requests if container.resources else {}
    amounts = {name: parse(requests[name]).nano for name in sorted(requests) if is_memory_type(name)}
    return (
        None
        if any(nano % NANO for nano in amounts.values())
        else {name: nano // NANO for name, nano in amounts.items()}
    )


def _pod_sizes(pod: Pod) -> Sizes | None:
    """What containers need at the same time at most, of the types that regular containers request."""
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    running: dict[str, int] = {}
    for container in pod.spec.initContainers:
        sizes = _container_sizes(container)
        if sizes is None:
            return None
        for name, size in sizes.items():
            if is_sidecar(container):
                sidecars[name] = sidecars.get(name, 0) + size
            else:
                starting[name] = max(starting.get(name, 0), sidecars.get(name, 0) + size)
    for container in pod.spec.containers:
        sizes = _container_sizes(container)
        if sizes is None:
            return None
        for name, size in sizes.items():
            running[name] = running.get(name, 0) + size
    return {name: max(size + sidecars.get(name, 0), starting.get(name, 0)) for name, size in running.items()}


def _together(held: Iterable[Sequence[MemoryBlock]]) -> list[MemoryBlock]:
    """The blocks of several containers as those of one, where they are on the same nodes."""
    total: dict[tuple[str, tuple[int, ...]], MemoryBlock] = {}
    for block in (block for blocks in held for block in blocks):
        key = block.type, tuple(block.nodes)
        before = total.get(key)
        total[key] = block if before is None else replace(before, size=before.size + block.size)
    return list(total.values())


def _hints_again(blocks: Sequence[MemoryBlock], sizes: Sizes) -> ResourceHints:
    """The hints of memory that is allocated already. No preference if it is not what is requested."""
    if len(blocks) != len(sizes) or any(sizes.get(block.type) != block.size for block in blocks):
        return {}
    return {block.type: (TopologyHint(frozenset(block.nodes), True),) for block in blocks}


# Booking


def _booked(machine: Mapping[int, NodeMemory], block: MemoryBlock) -> Mapping[int, NodeMemory]:
    """The machine after a block is taken from its nodes, the lowest first. They become a group."""
    after, left = dict(machine), block.size
    for number in block.nodes:
        node = after[number]
        table = node.tables.get(block.type)
        taken = min(left, table.free) if table else 0
        left -= taken
        after[number] = NodeMemory(node.assignments + 1, _moved(node, block.type, taken), block.nodes)
    return after


def _unbooked(machine: Mapping[int, NodeMemory], block: MemoryBlock) -> Mapping[int, NodeMemory]:
    """The machine after a block is given back, to the lowest node first. A node without blocks leaves its group."""
    after, left = dict(machine), block.size
    for number in block.nodes:
        node = after[number]
        table = node.tables.get(block.type)
        given = min(left, table.reserved) if table else 0
        left -= given
        cells = node.cells if node.assignments > 1 else (number,)
        after[number] = NodeMemory(node.assignments - 1, _moved(node, block.type, -given), cells)
    return after


def _moved(node: NodeMemory, name: str, size: int) -> Mapping[str, MemoryTable]:
    """The node's tables after `size` bytes went from free to reserved."""
    if not size:
        return node.tables
    table = node.tables[name]
    return {**node.tables, name: replace(table, reserved=table.reserved + size, free=table.free - size)}


def _with_init_blocks_shrunk(
    state: MemoryState, pod: Pod, container: Container, taken: Sequence[MemoryBlock]
) -> MemoryState:
    """The state after a container has reused blocks of the plain init containers before it, the first one first."""
    left = {block.type: block.size for block in taken}
    nodes = {frozenset(block.nodes) for block in taken}
    for init in pod.spec.initContainers:
        if init.name == container.name:
            break
        blocks = state.blocks(pod.metadata.uid, init.name)
        if is_sidecar(init) or not blocks:
            continue
        shrunk = []
        for block in blocks:
            reused = min(block.size, left.get(block.type, 0)) if frozenset(block.nodes) in nodes else 0
            left[block.type] = left.get(block.type, 0) - reused
            shrunk.append(replace(block, size=block.size - reused))
        state = state.with_blocks(pod.metadata.uid, init.name, tuple(shrunk))
    return state


# The check of a state file against the machine


def _state_problem(state: MemoryState, unused: Mapping[int, NodeMemory]) -> str | None:
    """Why the state cannot be that of this machine: the entries' memory must add up to the nodes' memory."""
    if not state.machine:
        return "machine state can not be empty when it has memory assignments"
    expected = _rebooked(unused, state.entries)
    if isinstance(expected, str):
        return expected
    if expected.keys() == state.machine.keys() and all(_is_same(n, state.machine, expected) for n in expected):
        return None
    return "the expected machine state is different from the real one"


def _rebooked(unused: Mapping[int, NodeMemory], entries: Entries) -> Mapping[int, NodeMemory] | str:
    machine = unused
    for pod, containers in entries.items():
        for name, blocks in containers.items():
            for block in blocks:
                owner = f"(pod: {pod}, container: {name}) the memory assignment uses"
                for number in block.nodes:
                    if number not in unused:
                        return f"{owner} the NUMA that does not exist"
                    if block.type not in unused[number].tables:
                        return f"{owner} memory resource that does not exist"
                machine = _booked(machine, block)
    return machine


def _is_same(number: int, machine: Mapping[int, NodeMemory], other: Mapping[int, NodeMemory]) -> bool:
    """Whether a node is the same in both; what is free and reserved is compared for its whole group."""
    mine, its = machine[number], other[number]
    if (mine.assignments, sorted(mine.cells), mine.tables.keys()) != (
        its.assignments,
        sorted(its.cells),
        its.tables.keys(),
    ):
        return False
    for name, table in mine.tables.items():
        if _fixed(table) != _fixed(its.tables[name]) or _in_use(machine, mine.cells, name) != _in_use(
            other, mine.cells, name
        ):
            return False
    return True


def _fixed(table: MemoryTable) -> tuple[int, int, int]:
    return table.total, table.system_reserved, table.allocatable


def _in_use(machine: Mapping[int, NodeMemory], cells: Collection[int], name: str) -> tuple[int, int]:
    tables = [machine[cell].tables.get(name) for cell in cells if cell in machine]
    return sum(table.free for table in tables if table), sum(table.reserved for table in tables if table)
