"""Makes the values that extensions get from those of the agent. Pure.

An extension never holds a value of the agent's own: what it changes in its copy has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from pykubelet.act.pods.restarts import RestartFacts
from pykubelet.base.api import core
from pykubelet.base.api.quantity import QuantityError, in_units, parse
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value, changed_keys
from pykubelet.base.model.evictions import NodePressure
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import ENDED_STAGES, Lifecycles, PodLifecycle
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.roster import Roster, RosterPod, is_critical, is_static
from pykubelet.base.model.sizing import pod_requests, qos_class
from pykubelet.base.model.usage import PodUse, bytes_on_disk
from pykubelet.desired.roster.model import AdmissionFacts, CountedPods
from pykubelet.extension import (
    Container,
    CpuMachine,
    CpuRequest,
    Exit,
    Image,
    MachineCpu,
    MemoryChoice,
    MemoryMachine,
    MemoryNode,
    MemoryRequest,
    Node,
    Pod,
    PullAttempt,
    RestartHistory,
    Usage,
)
from pykubelet.provide.images.decide import pull_policy
from pykubelet.provide.images.model import NEVER, PullFacts, RankingFacts, RemovalCandidate
from pykubelet.provide.placement.cpu_policy import CpuDemand, StaticPolicy
from pykubelet.provide.placement.cpu_topology import CpuTopology
from pykubelet.provide.placement.memory_hints import MemoryDemand

#: Runtimes report the end by a signal as 128 and its number, of 64.
SIGNALED, MAX_SIGNAL = 128, 64
#: The pods whose views are kept.
MAX_KEPT = 1024


class PodViews:
    """The views of pods, kept as long as the pod is the same."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[core.Pod, Pod]] = {}

    def of(self, pod: core.Pod) -> Pod:
        """The view of a pod."""
        found = self._kept.get(pod.metadata.uid)
        if found is not None and found[0] is pod:
            return found[1]
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        view = pod_view(pod)
        self._kept[pod.metadata.uid] = (pod, view)
        return view


def pod_view(pod: core.Pod) -> Pod:
    """The view of a pod."""
    meta, spec = pod.metadata, pod.spec
    try:
        created_at = parse_time(meta.creationTimestamp)
    except ValueError:
        created_at = 0.0
    return Pod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        labels=MappingProxyType(dict(meta.labels)),
        annotations=MappingProxyType(dict(meta.annotations)),
        priority=spec.priority or 0,
        priority_class=spec.priorityClassName,
        service_account=spec.serviceAccountName,
        qos=str(qos_class(pod)),
        requests=_requests(pod),
        containers=tuple(_containers(spec)),
        is_static=is_static(pod),
        is_critical=is_critical(pod),
        created_at=created_at,
    )


class NodeParts(Value):
    """What views of the node have in common, as long as it is the same. `names`: of resources, without `pods`."""

    node: NodeView
    labels: Mapping[str, str]
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    names: tuple[str, ...]


def node_parts(node: NodeView, kept: NodeParts | None = None) -> NodeParts:
    """The parts of views of the node. `kept`: those of an earlier view."""
    if kept is not None and kept.node is node:
        return kept
    return NodeParts(
        node,
        MappingProxyType(dict(node.labels)),
        MappingProxyType(dict(node.capacity)),
        MappingProxyType(dict(node.allocatable)),
        tuple(sorted((node.allocatable.keys() | node.capacity.keys()) - {"pods"})),
    )


def node_view(facts: AdmissionFacts, counted: CountedPods, wall: float, parts: NodeParts) -> Node:
    """The view of the node at the admission of a pod. `wall`: seconds since the epoch. `parts`: of `facts.node`."""
    requests = {name: counted.load.requests[name] for name in parts.names}
    return _node(parts, requests, counted.load.pods, facts.pressure, wall)


def _node(parts: NodeParts, requests: Mapping[str, int], pods: int, pressure: NodePressure, wall: float) -> Node:
    return Node(
        name=parts.node.name,
        labels=parts.labels,
        capacity=parts.capacity,
        allocatable=parts.allocatable,
        requested=MappingProxyType({name: requests.get(name, 0) for name in parts.names}),
        pods=pods,
        conditions=tuple(str(condition) for condition in pressure.conditions),
        time=wall,
    )


class NodeNow(Value):
    """What the view of the node is made of between admissions."""

    node: Cell[NodeView]
    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    pressure: Cell[NodePressure]
    clock: Clock


class NodeViews:
    """Makes the views of the node as it is now, with the pods that are admitted and have not ended.

    Their requests are summed up as they change: a view costs no more among many pods than among few.
    """

    def __init__(self, sources: NodeNow, views: PodViews) -> None:
        self._sources = sources
        self._views = views
        self._parts: NodeParts | None = None
        self._seen: tuple[Mapping[PodUID, RosterPod], Mapping[PodUID, PodLifecycle]] = ({}, {})
        self._counted: dict[PodUID, Mapping[str, int]] = {}
        self._sums: dict[str, int] = {}

    def now(self) -> Node:
        """The view of this moment."""
        self._count()
        sources = self._sources
        parts = self._parts = node_parts(sources.node.get(), self._parts)
        return _node(parts, self._sums, len(self._counted), sources.pressure.get(), sources.clock.wall())

    def _count(self) -> None:
        (old, before), now = self._seen, self._sources
        roster, lifecycles = now.roster.get().pods, now.lifecycles.get().pods
        self._seen = roster, lifecycles
        for uid in {*changed_keys(old, roster), *changed_keys(before, lifecycles)}:
            self._add(self._counted.pop(uid, {}), -1)
            entry, lifecycle = roster.get(uid), lifecycles.get(uid)
            has_ended = lifecycle is not None and lifecycle.stage in ENDED_STAGES
            if entry is None or entry.rejection is not None or entry.admission_wait is not None or has_ended:
                continue
            self._counted[uid] = requests = self._views.of(entry.pod).requests
            self._add(requests, 1)

    def _add(self, requests: Mapping[str, int], times: int) -> None:
        for name, amount in requests.items():
            self._sums[name] = self._sums.get(name, 0) + times * amount


def usage_view(use: PodUse | None) -> Usage | None:
    """The view of a pod's usage."""
    if use is None:
        return None
    group = use.group
    return Usage(
        memory=group.memory.working_set if group is not None else None,
        processes=group.processes if group is not None else None,
        disk=bytes_on_disk(use),
        stalls=MappingProxyType({name: found.some.avg10 for name, found in group.pressure.items()} if group else {}),
    )


def cpu_views(topology: CpuTopology) -> tuple[MachineCpu, ...]:
    """The views of the CPUs of the machine."""
    return tuple(
        MachineCpu(cpu.id, cpu.core, cpu.socket, cpu.numa_node, cpu.uncore_cache) for cpu in topology.cpus.values()
    )


def demand_views(
    pod: Pod, cpus: tuple[MachineCpu, ...], policy: StaticPolicy, demand: CpuDemand
) -> tuple[CpuRequest, CpuMachine]:
    """The views of what a container is to get of CPUs, and of what there is. `pod`, `cpus`: their views."""
    container = next(container for container in pod.containers if container.name == demand.container)
    return (
        CpuRequest(pod, container, demand.count, demand.nodes, demand.reusable, demand.whole_cores, demand.near),
        CpuMachine(cpus, demand.free, policy.reserved),
    )


def memory_views(pod: Pod, demand: MemoryDemand) -> tuple[MemoryRequest, MemoryMachine]:
    """The views of what a container is to get of memory, and of what there is. `pod`: its view."""
    container = next((container for container in pod.containers if container.name == demand.container), None)
    choices = tuple(MemoryChoice(hint.nodes or frozenset(), hint.preferred) for hint in demand.hints)
    nodes = tuple(
        MemoryNode(
            number,
            MappingProxyType({name: table.free for name, table in node.tables.items()}),
            MappingProxyType({name: table.allocatable for name, table in node.tables.items()}),
            frozenset(node.cells),
            node.assignments,
        )
        for number, node in sorted(demand.machine.items())
    )
    return MemoryRequest(pod, container, MappingProxyType(dict(demand.sizes)), choices), MemoryMachine(nodes)


def pull_view(facts: PullFacts, views: PodViews) -> PullAttempt:
    """The view of a pull."""
    request = facts.request
    return PullAttempt(
        image=request.image,
        pod=views.of(facts.pod),
        container=request.container,
        attempt=facts.attempt,
        policy=str(pull_policy(request.policy)),
        is_present=facts.is_present,
        waiting_since=facts.waiting_since,
    )


def restart_views(facts: RestartFacts, views: PodViews) -> tuple[Container, RestartHistory]:
    """The views of a container that has ended, and of its exits."""
    pod = views.of(facts.pod)
    container = next(container for container in pod.containers if container.name == facts.container)
    exits = tuple(
        Exit(past.exit_code, past.reason, signal_of(past.exit_code), past.started_at, past.finished_at)
        for past in facts.past
    )
    return container, RestartHistory(pod, facts.restarts, exits, facts.delay_s)


def signal_of(exit_code: int) -> int:
    """The signal that has ended a process, from its exit code as runtimes report it; 0: none."""
    return exit_code - SIGNALED if SIGNALED < exit_code <= SIGNALED + MAX_SIGNAL else 0


def image_view(candidate: RemovalCandidate, facts: RankingFacts) -> Image:
    """The view of an image that may be removed."""
    image, sighting = candidate.image, candidate.sighting
    since_boot = facts.wall - facts.now  # from the monotonic clock to the wall clock
    return Image(
        id=image.id,
        names=image.names,
        size=image.size_bytes,
        first_seen=since_boot + sighting.first_seen,
        last_used=since_boot + sighting.last_used if sighting.last_used != NEVER else 0.0,
        is_over_age=image.id in facts.over_age,
    )


def _requests(pod: core.Pod) -> Mapping[str, int]:
    try:
        return MappingProxyType(in_units(pod_requests(pod)))
    except QuantityError:
        return MappingProxyType({})


def _containers(spec: core.PodSpec) -> Iterator[Container]:
    for container in spec.initContainers:
        yield container_view(container, "sidecar" if is_sidecar(container) else "init")
    for container in spec.containers:
        yield container_view(container, "app")


def container_view(container: core.Container, kind: str) -> Container:
    """The view of a container. `kind`: as in `Container`."""
    resources = container.resources or core.ResourceRequirements()
    return Container(
        container.name,
        container.image,
        kind,  # type: ignore[arg-type]
        _amounts(resources.requests),
        _amounts(resources.limits),
    )


def _amounts(stated: Mapping[str, core.Quantity]) -> Mapping[str, int]:
    try:
        return MappingProxyType(in_units({name: parse(amount) for name, amount in stated.items()}))
    except QuantityError:
        return MappingProxyType({})
