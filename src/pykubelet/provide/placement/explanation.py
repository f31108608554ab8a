"""Explains a rejection in terms of the machine: what the pod needs, what is free of it, and who has the rest. Pure.

The status message of a rejected pod is the reference's, and names neither amounts nor nodes. This text does; `pykubelet explain`
and `pykubelet simulate placement` show it beside the message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.api.quantity import format_units, sum_container_limits, value
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.machine import ResourceHints, TopologyHint
from pykubelet.base.model.placement import DeviceResource
from pykubelet.base.model.sizing import pod_requests
from pykubelet.provide.placement import cpu_pool, memory_pool
from pykubelet.provide.placement.cpu_manager import SMT_REASON, CpuManager
from pykubelet.provide.placement.cpu_policy import exclusive_counts, pod_count, pool_size
from pykubelet.provide.placement.cpu_topology import cpus_in, mask_of
from pykubelet.provide.placement.devices.device_hints import counts_on
from pykubelet.provide.placement.devices.device_manager import DeviceManager
from pykubelet.provide.placement.devices.device_state import NO_DEVICES
from pykubelet.provide.placement.memory_manager import MemoryManager
from pykubelet.provide.placement.provider import AllocationError, Provider
from pykubelet.provide.placement.subsets import subsets
from pykubelet.provide.placement.topology_manager import merge
from pykubelet.provide.placement.topology_options import Policy, Scope, Topology
from pykubelet.provide.placement.topology_scopes import is_placed_whole

MEMORY = "memory"
#: Stands for the container where a pod holds something as a whole.
WHOLE = "as a whole"
#: Holders beyond these are only counted.
MAX_HOLDERS = 12
#: Of the sets of NUMA nodes on which a resource fits, as many are named.
MAX_PLACES = 4


class _Needs(Value):
    """Whose resources do not fit, as the beginning of a sentence: exclusive CPUs, bytes of memory, limits of all resources."""

    subject: str
    cpus: int
    memory: int
    limits: Mapping[str, int] = field(default_factory=dict)


def pod_name(pod: Pod) -> str:
    """`namespace/name`."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def explain_rejection(topology: Topology, providers: Sequence[Provider], pod: Pod, names: Mapping[str, str]) -> str:
    """What the pod needs, and what is free of it; empty if the pod would be admitted.

    `providers`: before the pod, as given to `admit`, which rejected it. `names`: of pods by UID, as of `pod_name`.
    """
    return _Explanation(topology, names).explain(list(providers), pod)


class _Explanation:
    def __init__(self, topology: Topology, names: Mapping[str, str]) -> None:
        self.topology = topology
        self.names = names

    def explain(self, providers: list[Provider], pod: Pod) -> str:
        scope = None if self.topology.policy is Policy.NONE else self.topology.scope
        hint = TopologyHint(None, False)
        if scope is Scope.POD:
            hints = [provider.pod_hints(pod) for provider in providers]
            decision = merge(self.topology, hints)
            is_whole = is_placed_whole(self.topology, pod)
            if is_whole and (problem := _pool_problem(providers, pod)) is not None:
                return problem
            if not decision.admit:
                return self._hints(providers, hints, _pod_needs(pod, is_whole=is_whole))
            hint = decision.hint
            if is_whole:
                return self._whole(providers, pod, hint)
        for container in (*pod.spec.initContainers, *pod.spec.containers):
            if scope is Scope.CONTAINER:
                hints = [provider.hints(pod, container) for provider in providers]
                decision = merge(self.topology, hints)
                if not decision.admit:
                    return self._hints(providers, hints, self._container_needs(pod, container))
                hint = decision.hint
            for number, provider in enumerate(providers):
                after = provider.allocate(pod, container, hint).after
                if isinstance(after, AllocationError):
                    return self._shortage(provider, self._container_needs(pod, container), after)
                providers = [*providers[:number], after, *providers[number + 1 :]]
        return ""

    def _whole(self, providers: Sequence[Provider], pod: Pod, hint: TopologyHint) -> str:
        """The first provider that does not have enough for the pod as a whole."""
        for provider in providers:
            after = provider.allocate_pod(pod, hint).after
            if isinstance(after, AllocationError):
                return self._shortage(provider, _pod_needs(pod, is_whole=True), after)
        return ""

    def _container_needs(self, pod: Pod, container: Container) -> _Needs:
        stated = container.resources
        limits = {name: value(amount) for name, amount in sorted(stated.limits.items())} if stated is not None else {}
        count = exclusive_counts(pod, pod_level=self.topology.pod_level).get(container.name, 0)
        memory = value(stated.requests.get(MEMORY)) if stated is not None else 0
        return _Needs(f"container {container.name} needs", count, memory, limits)

    def _hints(self, providers: Sequence[Provider], hints: Sequence[ResourceHints], needs: _Needs) -> str:
        """The first provider that fits on no nodes which the policy allows, or that they fit on different ones."""
        for provider, own in zip(providers, hints, strict=True):
            if merge(self.topology, [own]).admit:
                continue
            if isinstance(provider, MemoryManager):
                return self._memory(provider, needs)
            if isinstance(provider, CpuManager):
                return self._cpu_nodes(provider, needs)
            if isinstance(provider, DeviceManager):
                return self._device_nodes(provider, own, needs)
        return f"{needs.subject} all resources on the same NUMA nodes; {_fitting(hints)}"

    def _shortage(self, provider: Provider, needs: _Needs, error: AllocationError) -> str:
        if isinstance(provider, MemoryManager):
            return self._memory(provider, needs)
        if isinstance(provider, CpuManager):
            return self._cpus(provider, needs, whole_cores=error.reason == SMT_REASON)
        if isinstance(provider, DeviceManager):
            wanted = {name: count for name, count in needs.limits.items() if provider.is_known(name)}
            name = short_resource(provider, wanted)
            if name:
                return f"{needs.subject} {DeviceShortage(provider, name, self.names).on_all(needs.limits[name])}"
        return ""

    def _device_nodes(self, manager: DeviceManager, hints: ResourceHints, needs: _Needs) -> str:
        """The devices of the first resource that fits on no nodes which the policy allows."""
        single = self.topology.policy is Policy.SINGLE_NUMA_NODE
        for name, listed in hints.items():
            if not merge(self.topology, [{name: listed}]).admit:
                shortage = DeviceShortage(manager, name, self.names)
                return f"{needs.subject} {shortage.on_nodes(needs.limits.get(name, 0), single=single)}"
        return f"{needs.subject} devices on the same NUMA nodes; {_fitting([hints])}"

    def _memory(self, manager: MemoryManager, needs: _Needs) -> str:
        """The memory that is free on the node with the most, or on all if one could not have enough; and who has the rest."""
        tables = {
            node: memory.tables[MEMORY] for node, memory in manager.state.machine.items() if MEMORY in memory.tables
        }
        what = f"{needs.subject} {_bytes(needs.memory)} of memory"
        most = max((table.allocatable for table in tables.values()), default=0)
        if needs.memory > most and self.topology.policy is Policy.SINGLE_NUMA_NODE:
            return f"{what} on one NUMA node; the largest node has {_bytes(most)}"
        if needs.memory > most:
            listed = ", ".join(f"{_bytes(table.free)} on node {node}" for node, table in tables.items())
            return f"{what}; free: {listed}{self._memory_holders(manager, tables)}"
        best = max(tables, key=lambda node: tables[node].free)
        largest = f"largest free: {_bytes(tables[best].free)} on node {best}"
        is_split = sum(table.free for table in tables.values()) >= needs.memory
        may_span = self.topology.policy in (Policy.NONE, Policy.BEST_EFFORT)
        together = "; nodes of which one is in use by itself cannot be used together" if is_split and may_span else ""
        return f"{what} on one NUMA node; {largest}{self._memory_holders(manager, (best,))}{together}"

    def _memory_holders(self, manager: MemoryManager, nodes: Collection[int]) -> str:
        """Who has how much memory of these nodes, the largest first. Blocks that lie on other nodes too count as a whole."""
        held = []
        pools = {uid: {WHOLE: pool} for uid, pool in manager.state.pools.items()}
        for uid, pod in {**manager.state.entries, **pools}.items():
            for name, blocks in pod.items():
                size = sum(
                    block.size for block in blocks if block.type == MEMORY and not set(block.nodes).isdisjoint(nodes)
                )
                held += [(size, f"{self._name(uid)} {name} ({_bytes(size)})")] if size else []
        return _held_by([text for _, text in sorted(held, key=lambda pair: -pair[0])])

    def _cpu_nodes(self, manager: CpuManager, needs: _Needs) -> str:
        """The CPUs that no set of NUMA nodes of the smallest possible size has free."""
        top, count, subject = manager.policy.topology, needs.cpus, needs.subject
        total = {node: mask.bit_count() for node, mask in top.nodes.items()}
        size = _fewest(total, count)
        if size is None:
            return f"{subject} {_count(count)}; the machine has {sum(total.values())}"
        if size > 1 and self.topology.policy is Policy.SINGLE_NUMA_NODE:
            return f"{subject} {_count(count)} on one NUMA node; the largest node has {max(total.values())}"
        free = {node: (mask & mask_of(manager.available)).bit_count() for node, mask in top.nodes.items()}
        best = max(combinations(free, size), key=lambda nodes: sum(free[node] for node in nodes))
        where = "one NUMA node" if size == 1 else f"{size} NUMA nodes"
        largest = f"largest free: {sum(free[node] for node in best)} on {_nodes(best)}"
        return f"{subject} {_count(count)} on {where}; {largest}{self._holders(manager, cpus_in(top.in_nodes(best)))}"

    def _cpus(self, manager: CpuManager, needs: _Needs, *, whole_cores: bool) -> str:
        """The CPUs that the whole machine has not free."""
        top, free, count, subject = manager.policy.topology, manager.available, needs.cpus, needs.subject
        if whole_cores and count % top.threads_per_core:
            return f"{subject} {_count(count)}, but only whole cores of {_count(top.threads_per_core)} are allocated"
        if whole_cores:
            free = manager.state.default - manager.policy.reserved_cores
        what = f"{_count(count)} on whole cores" if whole_cores else _count(count)
        by_node = [(node, len(free & cpus_in(mask))) for node, mask in top.nodes.items()]
        listed = ", ".join(f"{number} on node {node}" for node, number in by_node)
        return f"{subject} {what}; free: {len(free)} ({listed}){self._holders(manager, cpus_in(top.all))}"

    def _holders(self, manager: CpuManager, cpus: frozenset[int]) -> str:
        """Who has how many of `cpus`."""
        held = []
        pools = {uid: {WHOLE: pool} for uid, pool in manager.state.pools.items()}
        for uid, pod in {**manager.state.assignments, **pools}.items():
            parts = ((name, len(own & cpus)) for name, own in pod.items())
            held += [f"{self._name(uid)} {name} ({number})" for name, number in parts if number]
        reserved = len(manager.policy.reserved & cpus)
        return _held_by(held, f"the system ({reserved})" if reserved else "")

    def _name(self, uid: str) -> str:
        return self.names.get(uid, f"pod {uid}")


def _held_by(held: Sequence[str], system: str = "") -> str:
    more = len(held) - MAX_HOLDERS
    listed = [*held[:MAX_HOLDERS], *([f"{more} more"] if more > 0 else []), *([system] if system else [])]
    return f", held by {', '.join(listed)}" if listed else ""


def _pod_needs(pod: Pod, *, is_whole: bool) -> _Needs:
    """What the pod needs: for itself as a whole, or for all of its containers."""
    limits = {name: amount.value() for name, amount in sum_container_limits(pod.spec).items()}
    count = pool_size(pod) if is_whole else pod_count(pod, exclusive_counts(pod))
    return _Needs("needs", count, _memory_of(pod), limits)


def _pool_problem(providers: Sequence[Provider], pod: Pod) -> str | None:
    """Why the pod's containers cannot divide what it has as a whole."""
    for provider in providers:
        problem = None
        if isinstance(provider, CpuManager) and pool_size(pod) and not provider.has_pool(pod):
            problem = cpu_pool.pool_problem(pod)
        if isinstance(provider, MemoryManager) and provider.serves(pod) and not provider.has_pool(pod):
            problem = memory_pool.pool_problem(pod)
        if problem is not None:
            return problem
    return None


def _fitting(hints: Sequence[ResourceHints]) -> str:
    """On which nodes each resource fits best by itself."""
    found = []
    for own in hints:
        for name, listed in own.items():
            named = [hint for hint in listed or () if hint.nodes is not None]
            if not named:
                continue
            best = [hint for hint in named if hint.preferred] or named
            size = min(len(hint.nodes or ()) for hint in best)
            places = [_nodes(sorted(hint.nodes or ())) for hint in best if len(hint.nodes or ()) == size]
            others = " or others" if len(places) > MAX_PLACES else ""
            found.append(f"{name} fits on {' or '.join(places[:MAX_PLACES])}{others}")
    return ", ".join(found)


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


def _count(count: int) -> str:
    return "1 CPU" if count == 1 else f"{count} CPUs"


def _nodes(nodes: Sequence[int]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {_listed(nodes)}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


class DeviceShortage:
    """What is free of one resource, and who has the rest. `names`: of pods by UID."""

    def __init__(self, manager: DeviceManager, name: str, names: Mapping[str, str]) -> None:
        self._name = name
        self._resource = manager.resources.get(name, DeviceResource())
        self._free = self._resource.healthy - manager.state.in_use.get(name, NO_DEVICES)
        self._holders = [
            (f"{names.get(uid, f'pod {uid}')} {container}", entries[name].ids)
            for uid, pod in manager.state.entries.items()
            for container, entries in pod.items()
            if name in entries
        ]

    def on_nodes(self, count: int, *, single: bool) -> str:
        """No set of NUMA nodes of the smallest possible size has `count` free devices. `single`: a set is one node."""
        groups = self._resource.groups
        nodes = tuple(sorted({node for own in groups for node in own}))
        sets = subsets(nodes)
        total = counts_on(nodes, {own: len(ids) for own, ids in groups.items()})
        size = next((len(chosen) for chosen, have in zip(sets, total, strict=True) if have >= count), None)
        if size is None:
            return self.on_all(count)
        if single and size > 1:
            return f"{count} {self._name} on one NUMA node; the largest node has {max(total[: len(nodes)])}"
        free = counts_on(nodes, {own: len(ids & self._free) for own, ids in groups.items()})
        best = max((number for number, subset in enumerate(sets) if len(subset) == size), key=free.__getitem__)
        chosen = sets[best]
        where = "one NUMA node" if size == 1 else f"{size} NUMA nodes"
        shown = f"node{'' if size == 1 else 's'} {', '.join(map(str, sorted(chosen)))}"
        there = NO_DEVICES.union(*(ids for own, ids in groups.items() if not chosen.isdisjoint(own)))
        return f"{count} {self._name} on {where}; largest free: {free[best]} on {shown}{self._held(there)}"

    def on_all(self, count: int) -> str:
        """The whole node does not have `count` free devices."""
        if not (self._resource.healthy or self._resource.unhealthy):
            return f"{count} {self._name}; no device plugin offers any now"
        return f"{count} {self._name}; free: {len(self._free)}{self._held(self._resource.healthy)}"

    def _held(self, devices: frozenset[str]) -> str:
        held = [f"{holder} ({number})" for holder, ids in self._holders if (number := len(ids & devices))]
        ill = len(self._resource.unhealthy)
        return _held_by(held) + (f"; {ill} unhealthy" if ill else "")


def short_resource(manager: DeviceManager, wanted: Mapping[str, int]) -> str:
    """The first resource of which less is free than is wanted; empty if there is none."""
    for name, count in wanted.items():
        healthy = manager.resources.get(name, DeviceResource()).healthy
        if len(healthy - manager.state.in_use.get(name, NO_DEVICES)) < count:
            return name
    return ""
