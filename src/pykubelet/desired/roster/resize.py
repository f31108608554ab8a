"""Decides which pods get the size that their spec requests. Pure.

Rules (source: KEP-1287, in-place update of pod resources, KEP-5419 for pod-level resources, KEP-6030 for volumes in memory):
- An admitted pod keeps its allocated size until the new one fits on the node. Other components see the allocated size in
  the pod's spec.
- Resizes that request no more CPU and memory come first, then pods of higher priority, then Guaranteed pods, then those
  that have waited longest. They are decided again whenever an input of the decision changes.
- A size that this node can never allocate is Infeasible; any other size that does not fit now is Deferred. Each records
  one Event for a size; the message is updated when the usage by other pods changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Container, Pod, ResourceRequirements
from pykubelet.base.kit.values import edited, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.reasons import (
    EVENT_RESIZE_DEFERRED,
    EVENT_RESIZE_INFEASIBLE,
    EVENT_RESIZE_STARTED,
    POD_RESIZE_PENDING,
    RESIZE_DEFERRED,
    RESIZE_INFEASIBLE,
)
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.roster import Rejection, is_critical
from pykubelet.base.model.sizing import (
    RESTART_CONTAINER,
    Amounts,
    PendingResize,
    QOSClass,
    SizeChange,
    amounts_of,
    qos_class,
    resizable,
    same_limits,
    same_size,
    size_in_words,
    size_of,
)
from pykubelet.desired.roster import admission
from pykubelet.desired.roster.admission import refuse_under_pressure, requests_of
from pykubelet.desired.roster.decide import counted_now
from pykubelet.desired.roster.model import (
    AdmissionFacts,
    AdmissionRules,
    AdmissionVerdict,
    CountedPods,
    Demand,
    Entry,
    Load,
    unusual,
)

Entries = dict[PodUID, Entry]
_NO_SWAP = "In-place resize of containers with swap is not supported."


def settle_sizes(
    before: Mapping[PodUID, Entry], counted: CountedPods, facts: AdmissionFacts, wall: float
) -> tuple[Mapping[PodUID, Entry], CountedPods, tuple[KubeEvent, ...]]:
    """Allocate the sizes that fit, and note those that do not. `counted`: as in `RosterState`. `wall`: seconds since the epoch."""
    entries = edited(before)
    events: list[KubeEvent] = []
    waiting: list[tuple[Entry, Demand]] = []
    for had in unusual(before):
        entry = _followed_up(had, facts)
        if _wants_other_size(entry, facts):
            waiting.append((entry, Demand(requests_of(entry.wanted or entry.item.pod))))
        elif entry.item.pending is not None:
            entry = replace(entry, item=replace(entry.item, pending=None))
        if entry is not had:
            entries[entry.ref.uid] = entry
    for entry, wanted in sorted(waiting, key=_rank):
        counted = counted_now(counted, entries, facts)
        entry, more = _decided(entry, wanted, counted.load_without(entry.ref.uid), facts, wall)
        entries = edited(entries)
        entries[entry.ref.uid] = entry
        events.extend(more)
    return entries, counted_now(counted, entries, facts), tuple(events)


def _followed_up(entry: Entry, facts: AdmissionFacts) -> Entry:
    """The entry without its resize, when `act/pods` has applied it."""
    life = facts.lifecycles.pods.get(entry.ref.uid)
    if entry.item.change is None or life is None or not life.has_worker:
        return entry
    if life.stage is Stage.SYNCING and (life.pod is not entry.item.pod or life.resize is not None):
        return entry
    return replace(entry, item=replace(entry.item, change=None))


def _wants_other_size(entry: Entry, facts: AdmissionFacts) -> bool:
    pod = entry.wanted
    if (
        pod is None
        or pod is entry.item.pod
        or entry.verdict is not AdmissionVerdict.ADMITTED
        or pod.metadata.deletionTimestamp
    ):
        return False
    life = facts.lifecycles.pods.get(entry.ref.uid)
    if life is not None and life.stage is not Stage.SYNCING:
        return False
    return not same_size(size_of(pod), size_of(entry.item.pod))


def _rank(waiting: tuple[Entry, Demand]) -> tuple[bool, int, bool, float, int]:
    entry, wanted = waiting
    pod = entry.wanted if entry.wanted is not None else entry.item.pod
    since = entry.item.pending.since if entry.item.pending is not None else float("inf")
    is_larger = any(wanted.of(name) > entry.demand.of(name) for name in ("cpu", "memory"))
    return is_larger, -(pod.spec.priority or 0), qos_class(pod) is not QOSClass.GUARANTEED, since, entry.order


def _decided(
    entry: Entry, wanted: Demand, load: Load, facts: AdmissionFacts, wall: float
) -> tuple[Entry, list[KubeEvent]]:
    """The entry with the new size, or with the reason against it. `wanted`: its resources; a resize is about no ports."""
    pod = entry.wanted
    assert pod is not None
    infeasible = _infeasible(pod, entry.item.pod, facts.rules)
    refusal = Rejection(RESIZE_INFEASIBLE, infeasible) if infeasible else _refusal(pod, wanted, load, facts)
    generation = pod.metadata.generation or 0
    if refusal is None:
        change = entry.item.change or SizeChange(size_of(entry.item.pod))
        item = replace(entry.item, pod=pod, pending=None, change=replace(change, at=wall))
        words = size_in_words("Pod resize started", pod, generation)
        demand = replace(entry.demand, requests=wanted.requests)
        return replace(entry, item=item, demand=demand), [normal(EVENT_RESIZE_STARTED, words, entry.ref)]
    reason = RESIZE_INFEASIBLE if infeasible else RESIZE_DEFERRED
    old = entry.item.pending
    since = old.since if old is not None and old.reason == reason else wall
    pending = PendingResize(reason, refusal.message, generation, since)
    if pending == old:
        return entry, []
    is_reported = (reason, generation) == _last_reported(entry, pod)
    entry = replace(entry, item=replace(entry.item, pending=pending))
    if is_reported:
        return entry, []
    words = size_in_words(f"Pod resize {refusal.reason}", pod, generation, refusal.message)
    kind = EVENT_RESIZE_INFEASIBLE if infeasible else EVENT_RESIZE_DEFERRED
    return entry, [warning(kind, words, entry.ref)]


def _last_reported(entry: Entry, pod: Pod) -> tuple[str, int] | None:
    """The reason and generation of the last report, which may be from before a restart of the agent."""
    if (pending := entry.item.pending) is not None:
        return pending.reason, pending.generation
    events = (c for c in pod.status.conditions if c.type == POD_RESIZE_PENDING)
    return next(((c.reason, c.observedGeneration or 0) for c in events), None)


def _refusal(pod: Pod, demand: Demand, load: Load, facts: AdmissionFacts) -> Rejection | None:
    """Why the pod with its new size does not fit now; None if it fits."""
    if (refusal := refuse_under_pressure(pod, facts.pressure)) is not None:
        return refusal
    shortages = admission.find_shortages(
        demand, load, facts.node, facts.rules.max_pods, facts.placements.placed_resources
    )
    if shortages:
        return shortages[0].rejection
    return admission.refuse_placement(pod, demand, load, facts.node, facts.rules)


def _infeasible(pod: Pod, now: Pod, rules: AdmissionRules) -> str:
    """Why the node can never allocate this size to a running pod, or an empty string. `now`: the pod with its allocated size."""
    if not rules.resize_containers:
        return "InPlacePodVerticalScaling is disabled"
    if rules.limited_swap and _would_move_swap(pod, now):
        return _NO_SWAP
    if amounts_of(pod.spec.resources, None) != amounts_of(now.spec.resources, None) and not rules.resize_pods:
        return "InPlacePodLevelResourcesVerticalScaling is disabled"
    if not rules.resize_init_containers and _plain_inits(pod) != _plain_inits(now):
        return "InPlacePodVerticalScalingInitContainers is disabled"
    if not rules.resize_volumes and not same_limits(size_of(pod), size_of(now)):
        return "InPlacePodVerticalScalingMemoryBackedVolumes is disabled"
    if qos_class(pod) is QOSClass.GUARANTEED:
        what = "Resize is infeasible for Guaranteed Pods alongside"
        whole = rules.places_pods
        if rules.static_cpus and _requests(pod, "cpu", whole=whole) != _requests(now, "cpu", whole=whole):
            return f'{what} CPU Manager policy "static"'
        if rules.static_memory and _requests(pod, "memory", whole=whole) != _requests(now, "memory", whole=whole):
            return f'{what} Memory Manager policy "Static"'
    return ""


def _plain_inits(pod: Pod) -> dict[str, Amounts]:
    return {c.name: amounts_of(c.resources, None) for c in pod.spec.initContainers if not is_sidecar(c)}


def _requests(pod: Pod, resource: str, *, whole: bool) -> dict[str, int]:
    """The requests of the containers, and with `whole` that of the pod."""

    def of(resources: ResourceRequirements | None) -> int:
        amounts = amounts_of(resources, None)
        return amounts.cpu_request if resource == "cpu" else amounts.memory_request

    of_pod = {"": of(pod.spec.resources)} if whole else {}
    return {**{c.name: of(c.resources) for c in resizable(pod)}, **of_pod}


def _would_move_swap(pod: Pod, now: Pod) -> bool:
    """Whether the resize would change a container's swap limit. It depends on the memory request, and is fixed while it runs."""
    after = {c.name: c for c in resizable(pod)}
    pairs = [(old, after[old.name]) for old in resizable(now) if old.name in after]
    return any(
        _memory(old)[0] != _memory(new)[0]
        and not _restarts_for_memory(old)
        and (_has_swap(now, old) or _has_swap(pod, new))
        for old, new in pairs
    )


def _has_swap(pod: Pod, container: Container) -> bool:
    """Whether a container has swap: in Burstable pods that are not critical, containers whose memory limit is not their request."""
    request, limit = _memory(container)
    return request != limit and qos_class(pod) is QOSClass.BURSTABLE and not is_critical(pod)


def _memory(container: Container) -> tuple[int, int]:
    """The memory request and limit in bytes; 0: not set."""
    amounts = amounts_of(container.resources, None)
    return amounts.memory_request, amounts.memory_limit


def _restarts_for_memory(container: Container) -> bool:
    return any(p.resourceName == "memory" and p.restartPolicy == RESTART_CONTAINER for p in container.resizePolicy)
