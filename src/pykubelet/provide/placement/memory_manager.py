"""The Memory Manager: which NUMA nodes' memory and huge pages a container of a Guaranteed pod gets. Pure.

Policy `None` does nothing. With `Static`, a container gets a block of each memory type it requests, all on the same nodes.
Memory of init containers that run to completion is reused by later containers of the pod on the same nodes; their blocks
shrink by what is reused, so that the blocks of a pod sum up to what is booked for it.

A pod with pod-level resources gets nothing without the gate PodLevelResourceManagers. With it, it may get a pool of memory, which is
booked as a whole, and of which the entries of its containers are parts (`memory_pool.py`).

Each operation returns the manager after it; the caller writes the state file when `state` has changed.
Source: KEP-1769 (Memory Manager), the Kubernetes documentation "Utilizing the NUMA-aware Memory Manager".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import takewhile

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.api.quantity import Amount
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.machine import NumaNode, ResourceHints, TopologyHint
from pykubelet.base.model.placement import MemoryBlock
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.sizing import QOSClass, qos_class
from pykubelet.config.kubelet import MemoryReservation
from pykubelet.provide.placement.checkpoint import PolicyDiffers, StateFileError
from pykubelet.provide.placement.memory_hints import (
    ChooseNodes,
    MemoryDemand,
    Reusable,
    Sizes,
    best_hint,
    breaks_group_rule,
    has_free,
    memory_hints,
    ordered,
)
from pykubelet.provide.placement.memory_pool import (
    divide_pool,
    own_sizes,
    pool_problem,
    pool_sizes,
    shared_sizes,
    sizes_of,
    surplus,
)
from pykubelet.provide.placement.memory_reserved import ReservedMemory, read_reserved_memory, unused_machine
from pykubelet.provide.placement.memory_state import MemoryState, MemoryTable, NodeMemory, decode
from pykubelet.provide.placement.pod_level import (
    EMPTY_POOL,
    completing,
    count_error,
    count_in_pool,
    count_on_node,
    has_pod_level_resources,
    init_places,
    may_be_exclusive,
    staying,
)
from pykubelet.provide.placement.provider import Allocation, AllocationError, ManagerStartError, MetricIncrement

REQUESTS = "kubelet_memory_manager_pinning_requests_total"
ERRORS = "kubelet_memory_manager_pinning_errors_total"

_PREFIX = "[memorymanager] "

#: The init containers of a pod that later containers can take memory from, in the order of the spec, by nodes and memory type. Some of
#: them may have nothing left.
Lenders = Mapping[tuple[frozenset[int], str], tuple[str, ...]]


class MemoryPolicy(StrEnum):
    """The configuration's `memoryManagerPolicy`."""

    NONE = "None"
    STATIC = "Static"


class MemoryManager(Value):
    """The policy with its state.

    `allocatable`: for each node and type, what containers could have at most; fixed at the start. `reusable_pod`: the pod whose
    init containers left `reusable`; it is the last one that memory was allocated for. `lenders`: of that pod; None: they follow from the
    state. `pod_level`: feature gate PodLevelResourceManagers. `choose`: asks the extension that is the policy; all else is as with
    `Static`.
    """

    policy: MemoryPolicy
    state: MemoryState
    allocatable: tuple[MemoryBlock, ...] = ()
    reusable_pod: str = ""
    reusable: Reusable = field(default_factory=dict)
    lenders: Lenders | None = None
    pod_level: bool = False
    choose: ChooseNodes | None = None

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """The nodes on which the container's memory fits, or those that it has. Empty: no preference, or no capacity."""
        sizes = sizes_of(container.resources) if self.serves_container(pod, container) else None
        if sizes is None:
            return {}
        blocks = self.state.blocks(pod.metadata.uid, container.name)
        return self._hints(pod, sizes) if blocks is None else _hints_again(blocks, sizes)

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """The nodes on which the memory of all the pod's containers fits, or those that they have; or the same of its pool."""
        if self.pod_level and has_pod_level_resources(pod):
            return self._pool_hints(pod)
        sizes = _pod_sizes(pod) if self.serves(pod) else None
        if not sizes:
            return {}
        containers = (*pod.spec.initContainers, *pod.spec.containers)
        found = (self.state.blocks(pod.metadata.uid, container.name) for container in containers)
        held = [blocks for blocks in found if blocks is not None]
        return _hints_again(_together(held), sizes) if held else self._hints(pod, sizes)

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Allocation[MemoryManager]:
        """Books the container's memory on the hint's nodes. If they have too little, nodes are added."""
        if not self.serves_container(pod, container) or pod.metadata.uid in self.state.pools:
            return Allocation(self)
        blocks = self.state.blocks(pod.metadata.uid, container.name)
        if blocks is not None:
            return Allocation(self._with_reusable(pod, container, blocks), (MetricIncrement(REQUESTS),))
        after = self._book(pod, container, hint)
        if isinstance(after, str):
            failed = (count_error("memory", "node"),) if self.pod_level else ()
            counted = (MetricIncrement(REQUESTS), MetricIncrement(ERRORS), *failed)
            return Allocation(AllocationError(_PREFIX + after), counted)
        types = len(after.blocks(pod.metadata.uid, container.name))
        more = count_on_node("memory", allocations=types) if self.pod_level else ()
        return Allocation(after, (MetricIncrement(REQUESTS), *more))

    def _pool_hints(self, pod: Pod) -> ResourceHints:
        sizes, uid = pool_sizes(pod) if self.serves(pod) else {}, pod.metadata.uid
        if not sizes:
            return {}
        pool = self.state.pools.get(uid)
        if pool is not None:
            return _hints_again(pool, sizes)
        if pool_problem(pod) is not None:
            return dict.fromkeys(sizes, ())
        return self._without(uid)._hints(pod, sizes)

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> Allocation[MemoryManager]:
        """Books the pod's pool on the hint's nodes, or on more, and gives its containers their parts.

        A pod that has all of this keeps it, whatever is free; one that has some of it gets the rest.
        """
        sizes = pool_sizes(pod) if self.pod_level and self.serves(pod) else {}
        if not sizes or self.has_pool(pod):
            return Allocation(self)
        uid, pool, manager = pod.metadata.uid, self.state.pools.get(pod.metadata.uid), self
        counted: tuple[MetricIncrement, ...] = ()
        if pool is None:
            booked = self._without(uid)._pool_booked(pod, sizes, hint)
            if isinstance(booked, AllocationError):
                failed = (MetricIncrement(REQUESTS), MetricIncrement(ERRORS), count_error("memory", "pod"))
                return Allocation(booked, failed)
            manager, pool = booked, booked.state.pools[uid]
            counted = _counts_of(pod)
        divided = divide_pool(pod, pool[0].nodes)
        state = replace(manager.state, entries={**manager.state.entries, uid: divided})
        return Allocation(replace(manager, state=state), counted)

    def has_pool(self, pod: Pod) -> bool:
        """Whether the pod has its pool, and each container that runs for as long as the pod a part of it."""
        uid = pod.metadata.uid
        return bool(self.state.pools.get(uid)) and all(
            self.state.blocks(uid, container.name) is not None for container in staying(pod)
        )

    def _without(self, uid: str) -> MemoryManager:
        """The manager as if the pod's containers had nothing, which its pool then contains."""
        return self.release(uid, *self.state.entries.get(uid, {}))

    def _pool_booked(self, pod: Pod, sizes: Sizes, hint: TopologyHint) -> MemoryManager | AllocationError:
        if (problem := pool_problem(pod)) is not None:
            return AllocationError(problem, EMPTY_POOL)
        if (name := surplus(pod)) is not None:
            return AllocationError(f"{_PREFIX}containers request more {name} than their pod")
        chosen = self._choose(pod, "", sizes, hint)
        if isinstance(chosen, str):
            return AllocationError(_PREFIX + chosen)
        pool = tuple(MemoryBlock(tuple(sorted(chosen)), name, size) for name, size in sizes.items())
        machine = self.state.machine
        for block in pool:
            machine = _booked(machine, block)
        state = replace(self.state, machine=machine, pools={**self.state.pools, pod.metadata.uid: pool})
        return replace(self, state=state)

    def release(self, pod_uid: str, *containers: str) -> MemoryManager:
        """The containers are gone for good: their memory is free again. That of a pod as a whole is with its last container."""
        entries = self.state.entries.get(pod_uid, {})
        held = {name: entries[name] for name in containers if name in entries}
        if not held:
            return self
        state, machine = self.state.without(pod_uid, held), self.state.machine
        if pod_uid in self.state.pools:
            after = replace(self, state=state)
            return after if pod_uid in state.entries else after._without_pool(pod_uid)
        for block in (block for blocks in held.values() for block in blocks):
            machine = _unbooked(machine, block)
        after = replace(self, state=replace(state, machine=machine))
        # A static pod can come back with its UID. (The reference would book too little for it.)
        return replace(after, reusable_pod="", reusable={}, lenders=None) if pod_uid not in state.entries else after

    def _without_pool(self, pod_uid: str) -> MemoryManager:
        """The manager after the memory of a pod as a whole is free again."""
        machine = self.state.machine
        for block in self.state.pools[pod_uid]:
            machine = _unbooked(machine, block)
        pools = {uid: pool for uid, pool in self.state.pools.items() if uid != pod_uid}
        entries = {uid: containers for uid, containers in self.state.entries.items() if uid != pod_uid}
        return replace(self, state=MemoryState(machine, entries, pools))

    def release_completed(self, pod: Pod, container: str) -> MemoryManager:
        """A container of the pod was created: the init containers before it, but for sidecars, have run to completion."""
        before = takewhile(lambda init: init.name != container, pod.spec.initContainers)
        return self.release(pod.metadata.uid, *(init.name for init in before if not is_sidecar(init)))

    def release_others(self, active: Mapping[str, Collection[str]]) -> MemoryManager:
        """Releases the memory of all containers that are not in `active`: names by pod UID. Once all sources are known."""
        manager = self
        for pod_uid, containers in self.state.entries.items():
            if pod_uid in self.state.pools and pod_uid not in active:
                manager = manager._without_pool(pod_uid)
                continue
            names = active.get(pod_uid, ())
            manager = manager.release(pod_uid, *(name for name in containers if name not in names))
        for pod_uid in manager.state.pools:
            if pod_uid not in active and pod_uid not in manager.state.entries:
                manager = manager._without_pool(pod_uid)
        return manager

    def blocks(self, pod_uid: str, container: str) -> tuple[MemoryBlock, ...]:
        """The container's memory, as the PodResources API lists it."""
        return self.state.blocks(pod_uid, container) or ()

    def own_blocks(self, pod: Pod) -> Mapping[str, tuple[MemoryBlock, ...]]:
        """The memory of each container that no other container has. Of a pod with a pool, containers that complete have none: what they
        use is also that of later ones."""
        uid = pod.metadata.uid
        entries = self.state.entries.get(uid, {})
        if uid not in self.state.pools:
            return entries
        return {c.name: entries[c.name] for c in staying(pod) if c.name in entries and own_sizes(c)}

    def shared_blocks(self, pod: Pod) -> tuple[MemoryBlock, ...]:
        """What is left of the pod's pool for the containers that share it."""
        pool = self.state.pools.get(pod.metadata.uid, ())
        left = shared_sizes(pod) if pool else {}
        return tuple(replace(block, size=left[block.type]) for block in pool if left.get(block.type, 0) > 0)

    def cpuset_mems(self, pod_uid: str, container: str) -> str:
        """The value of the CRI's `cpuset_mems`: node ids separated by commas; empty if the container is not restricted."""
        blocks = self.blocks(pod_uid, container) or self.state.pools.get(pod_uid, ())
        return ",".join(map(str, sorted({node for block in blocks for node in block.nodes})))

    def serves(self, pod: Pod) -> bool:
        """Whether the pod gets memory of its own: it is Guaranteed, and has no pod-level resources or the gate is on."""
        is_guaranteed = self.policy is MemoryPolicy.STATIC and qos_class(pod) is QOSClass.GUARANTEED
        return is_guaranteed and (self.pod_level or not has_pod_level_resources(pod))

    def serves_container(self, pod: Pod, container: Container) -> bool:
        """Whether the container gets memory of its own."""
        return self.policy is MemoryPolicy.STATIC and may_be_exclusive(pod, container, pod_level=self.pod_level)

    def _reusable(self, pod: Pod) -> Reusable:
        return self.reusable if self.reusable_pod == pod.metadata.uid else {}

    def _hints(self, pod: Pod, sizes: Sizes) -> ResourceHints:
        hints = memory_hints(self.state.machine, sizes, self._reusable(pod))
        return dict.fromkeys(sizes, hints) if hints else {}

    def _book(self, pod: Pod, container: Container, hint: TopologyHint) -> MemoryManager | str:
        sizes = sizes_of(container.resources)
        if sizes is None:
            return "failed to represent quantity as int64"
        chosen = self._choose(pod, container.name, sizes, hint)
        if isinstance(chosen, str):
            return chosen
        nodes, machine, reusable = tuple(sorted(chosen)), self.state.machine, self._reusable(pod)
        blocks = []
        for name, size in sizes.items():
            blocks.append(MemoryBlock(nodes, name, size))
            machine = _booked(machine, MemoryBlock(nodes, name, max(0, size - reusable.get((chosen, name), 0))))
        manager = self._with_reusable(pod, container, blocks)
        shrunk, lenders = manager._reused_from(pod, container, blocks)
        state = replace(self.state, machine=machine)
        entries = {container.name: tuple(blocks), **shrunk}
        return replace(manager, state=state.with_entries(pod.metadata.uid, entries), lenders=lenders)

    def _choose(self, pod: Pod, container: str, sizes: Sizes, hint: TopologyHint) -> frozenset[int] | str:
        """The nodes for a container; or the error. What the hint prefers must not become worse."""
        machine = self.state.machine
        if hint.nodes is None:
            hints = memory_hints(machine, sizes, self._reusable(pod))
            best = best_hint(hints)
            if best is None:
                return "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
            if hint.preferred and not best.preferred:
                return "failed to find the default preferred hint"
            hint = best if self.choose is None else self._asked(pod, container, sizes, hints, hint)
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

    def _asked(
        self, pod: Pod, container: str, sizes: Sizes, hints: Sequence[TopologyHint], wanted: TopologyHint
    ) -> TopologyHint:
        """The hint that the extension chooses, or the best one. What `wanted` prefers must not become worse."""
        offered = ordered(hint for hint in hints if hint.preferred or not wanted.preferred)
        assert self.choose is not None
        nodes = self.choose(
            MemoryDemand(pod=pod, container=container, sizes=sizes, hints=offered, machine=self.state.machine)
        )
        return next((hint for hint in offered if hint.nodes == nodes), offered[0])

    def _with_reusable(self, pod: Pod, container: Container, blocks: Sequence[MemoryBlock]) -> MemoryManager:
        """After a plain init container, its blocks can be reused; any other container takes what it reuses away."""
        reusable, completes = dict(self._reusable(pod)), container.name in completing(pod)
        for block in blocks:
            key = frozenset(block.nodes), block.type
            before = reusable.get(key, 0)
            reusable[key] = max(before, block.size) if completes else max(0, before - block.size)
        return replace(self, reusable_pod=pod.metadata.uid, reusable=reusable, lenders=self._lenders(pod))

    def _lenders(self, pod: Pod) -> Lenders:
        """The pod's init containers of which something can be reused."""
        if self.lenders is not None and self.reusable_pod == pod.metadata.uid:
            return self.lenders
        entries = self.state.entries.get(pod.metadata.uid, {})
        lenders: Lenders = {}
        for name in init_places(pod) if entries else ():
            lenders = _with_lender(lenders, pod, name, entries.get(name, ()))
        return lenders

    def _reused_from(
        self, pod: Pod, container: Container, taken: Sequence[MemoryBlock]
    ) -> tuple[Mapping[str, tuple[MemoryBlock, ...]], Lenders]:
        """The entries of init containers after the container has reused blocks of those before it, the first one first; and the lenders.

        A block is looked at until it is used up. Each container going through all init containers before it would be a product.
        """
        places, entries = init_places(pod), self.state.entries.get(pod.metadata.uid, {})
        own = places.get(container.name, len(places))
        lenders, changed = dict(self._lenders(pod)), dict[str, tuple[MemoryBlock, ...]]()
        for block in taken:
            key, left, used_up = (frozenset(block.nodes), block.type), block.size, 0
            names = lenders.get(key, ())
            for name in names:
                if not left or places.get(name, 0) >= own:
                    break
                shrunk = []
                for held in changed.get(name) or entries.get(name, ()):
                    reused = min(held.size, left) if (frozenset(held.nodes), held.type) == key else 0
                    left -= reused
                    shrunk.append(replace(held, size=held.size - reused) if reused else held)
                if shrunk:
                    changed[name] = tuple(shrunk)
                used_up += bool(left)
            lenders[key] = names[used_up:]
        return changed, _with_lender(lenders, pod, container.name, taken)


def start_memory_manager(
    policy: str,
    nodes: Sequence[NumaNode],
    reservation: Mapping[str, Amount],
    reserved_memory: Sequence[MemoryReservation],
    file: tuple[str, str | None],
    *,
    pod_level: bool = False,
) -> MemoryManager | ManagerStartError:
    """The manager of the configuration's policy on this machine.

    `reservation`: what Node Allocatable keeps back, by resource. `file`: the path of the state file, which errors name, and its
    text; None if there is no file. `pod_level`: feature gate PodLevelResourceManagers.
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
    if problem is not None and state.pools.keys() - state.entries.keys():
        state = _without_unbooked_pools(state)
        problem = _state_problem(state, unused)
    if problem is not None:
        return ManagerStartError(_PREFIX + problem)
    return MemoryManager(MemoryPolicy.STATIC, state, tuple(_allocatable(state.machine)), pod_level=pod_level)


def _allocatable(machine: Mapping[int, NodeMemory]) -> Iterator[MemoryBlock]:
    for number, node in sorted(machine.items()):
        for name, table in sorted(node.tables.items()):
            if table.allocatable:
                yield MemoryBlock((number,), name, table.allocatable)


# Requests


def _counts_of(pod: Pod) -> tuple[MetricIncrement, ...]:
    """What is counted of a new pool: as the reference, a request for the pod, and one for each container but regular ones that share."""
    names = {c.name for c in (*pod.spec.initContainers, *pod.spec.containers) if own_sizes(c)}
    requests = 1 + len(pod.spec.initContainers) + sum(1 for c in pod.spec.containers if c.name in names)
    total = len(pod.spec.initContainers) + len(pod.spec.containers)
    return (*([MetricIncrement(REQUESTS)] * requests), *count_in_pool("memory", len(names), total - len(names)))


def _pod_sizes(pod: Pod) -> Sizes | None:
    """What containers need at the same time at most, of the types that regular containers request."""
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    running: dict[str, int] = {}
    for container in pod.spec.initContainers:
        sizes = sizes_of(container.resources)
        if sizes is None:
            return None
        for name, size in sizes.items():
            if is_sidecar(container):
                sidecars[name] = sidecars.get(name, 0) + size
            else:
                starting[name] = max(starting.get(name, 0), sidecars.get(name, 0) + size)
    for container in pod.spec.containers:
        sizes = sizes_of(container.resources)
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


def _with_lender(lenders: Lenders, pod: Pod, name: str, blocks: Sequence[MemoryBlock]) -> Lenders:
    """The lenders after a container has got blocks, which can be reused if it is an init container that runs to completion."""
    if name not in completing(pod):
        return lenders
    after, places = dict(lenders), init_places(pod)
    for key in {(frozenset(block.nodes), block.type): None for block in blocks if block.size}:
        names = after.get(key, ())
        after[key] = (*names, name)
        if names and places.get(names[-1], 0) > places[name]:
            after[key] = tuple(sorted(after[key], key=lambda each: places.get(each, 0)))
    return after


# The check of a state file against the machine


def _state_problem(state: MemoryState, unused: Mapping[int, NodeMemory]) -> str | None:
    """Why the state cannot be that of this machine: the entries' memory must add up to the nodes' memory."""
    if not state.machine:
        return "machine state can not be empty when it has memory assignments"
    expected = _rebooked(unused, state)
    if isinstance(expected, str):
        return expected
    if expected.keys() == state.machine.keys() and all(_is_same(n, state.machine, expected) for n in expected):
        return None
    return "the expected machine state is different from the real one"


def _without_unbooked_pools(state: MemoryState) -> MemoryState:
    """The state without pools of which no container has a part. (The reference writes an allocation and a release in several steps,
    between which it may end.)"""
    return replace(state, pools={uid: pool for uid, pool in state.pools.items() if uid in state.entries})


def _rebooked(unused: Mapping[int, NodeMemory], state: MemoryState) -> Mapping[int, NodeMemory] | str:
    machine = unused
    wholes = {uid: {"": pool} for uid, pool in state.pools.items()}
    for pod, containers in {**state.entries, **wholes}.items():
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
