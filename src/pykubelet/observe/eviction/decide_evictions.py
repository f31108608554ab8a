"""Decides which pods are evicted, and for how long their end is waited for. Pure.

Rules:
- One pod is evicted at a time for a threshold. The next one is not evicted before it has ended, or its time is over. Thresholds
  of memory do not wait for pods that exceeded a limit of local storage.
- Every pod that exceeds a limit of local storage is evicted.
- Critical pods are spared. A dry run evicts no pod, and notes which it would have evicted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from pykubelet.base.kit.clock import Moment
from pykubelet.base.kit.log_lines import LogNote
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.evictions import Evictions, PodEviction, WouldEvict
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.reasons import EVICTED
from pykubelet.base.model.roster import Roster, is_critical, pod_ref
from pykubelet.base.model.usage import Usage
from pykubelet.config.eviction import Threshold
from pykubelet.observe.eviction.decide import eviction_grace_s
from pykubelet.observe.eviction.decide_memory import MEMORY_SIGNALS
from pykubelet.observe.eviction.limits import excesses
from pykubelet.observe.eviction.messages import Annotations, eviction_message
from pykubelet.observe.eviction.model import (
    IMMEDIATE_GRACE_S,
    AskForRanking,
    Candidate,
    EvictedPod,
    EvictionSettings,
    EvictionState,
    FsLayout,
    Observations,
)
from pykubelet.observe.eviction.signals import SIGNAL_RULES

#: How long the manager waits for the end of an evicted pod before it measures the node again.
END_WAIT_S = 30.0
SHOWN_DRY_RUNS = 20


class PodsSeen(Value):
    """The pods of the node, and what they use."""

    roster: Roster
    lifecycles: Lifecycles
    usage: Usage


class Order(Value):
    """The eviction of a pod that begins. `annotations`: of its Event."""

    eviction: PodEviction
    signal: str
    annotations: Annotations = ()


class Decision(Value):
    """The next state, the evictions that begin, and what is logged."""

    state: EvictionState
    orders: tuple[Order, ...] = ()
    notes: tuple[LogNote, ...] = ()

    @property
    def first(self) -> PodUID | None:
        """The first pod that is evicted."""
        return self.orders[0].eviction.ref.uid if self.orders else None


def evict_for(
    state: EvictionState,
    due: Sequence[Threshold],
    observations: Observations,
    pods: PodsSeen,
    settings: EvictionSettings,
    now: Moment,
) -> Decision:
    """The eviction of the first pod in the order of the first threshold. `due`: the thresholds to act on."""
    threshold, layout, notes = due[0], state.file_systems.layout, list[LogNote]()
    signal = threshold.signal
    for candidate in in_order(_candidates(state, pods), signal, layout, settings.ask_extensions):
        ref = pod_ref(candidate.pod)
        if is_critical(candidate.pod):
            notes.append(LogNote("a critical pod is not evicted", {"pod": ref, "signal": signal}))
            continue
        message, annotations = eviction_message(
            threshold, due, observations, (candidate.pod, candidate.use), pod_level=settings.pod_level_resources
        )
        grace_s = eviction_grace_s(threshold, candidate.pod, settings.max_pod_grace_s)
        order = Order(PodEviction(ref, EVICTED, message, grace_s), signal, annotations)
        decision = with_order(Decision(state), order, settings, now)
        return replace(decision, notes=(*notes, *decision.notes))
    notes.append(LogNote("no pod can be evicted", {"signal": signal}, is_problem=True))
    return Decision(state, notes=tuple(notes))


def evict_over_limits(state: EvictionState, pods: PodsSeen, settings: EvictionSettings, now: Moment) -> Decision:
    """The evictions of all pods that exceed a limit of local storage."""
    decision = Decision(state)
    for excess in excesses(_candidates(state, pods), state.file_systems.layout):
        eviction = PodEviction(pod_ref(excess.pod), EVICTED, excess.message, IMMEDIATE_GRACE_S, disrupts=False)
        decision = with_order(decision, Order(eviction, excess.signal), settings, now)
    return decision


def with_order(decision: Decision, order: Order, settings: EvictionSettings, now: Moment) -> Decision:
    """The decision and one more eviction; in a dry run, only a note of it."""
    state, eviction = decision.state, order.eviction
    fields: dict[str, object] = {"pod": eviction.ref, "signal": order.signal}
    if settings.dry_run:
        if any(
            earlier.eviction.ref == eviction.ref and earlier.signal == order.signal for earlier in state.would_evict
        ):
            return decision
        would = (*state.would_evict, WouldEvict(now.wall, eviction, order.signal))[-SHOWN_DRY_RUNS:]
        note = LogNote("dry run: a pod would be evicted", fields | {"why": eviction.message}, is_problem=True)
        return Decision(replace(state, would_evict=would), decision.orders, (*decision.notes, note))
    fields |= {"grace_s": eviction.grace_s, "why": eviction.message}
    evicted = EvictedPod(eviction, now.mono + (eviction.grace_s or 0) + END_WAIT_S)
    return Decision(
        replace(state, evicted={**state.evicted, eviction.ref.uid: evicted}),
        (*decision.orders, order),
        (*decision.notes, LogNote("a pod is evicted", fields, is_problem=True)),
    )


def is_ending(state: EvictionState, threshold: Threshold, lifecycles: Lifecycles, now: float) -> bool:
    """Whether an evicted pod has not ended yet, so that no other pod is evicted before it has freed its resources."""
    frees_any = threshold.signal not in MEMORY_SIGNALS
    return any(
        now < evicted.until and not has_ended(lifecycles.pods.get(uid))
        for uid, evicted in state.evicted.items()
        if frees_any or evicted.eviction.disrupts
    )


def has_ended(life: PodLifecycle | None) -> bool:
    """Whether the pod has freed its resources."""
    return life is None or life.stage is Stage.FINISHED


def without_gone(state: EvictionState, known: AbstractSet[PodUID]) -> EvictionState:
    """The state without evictions of pods that are gone from the node. `known`: the pods of the node."""
    if state.evicted.keys() <= known:
        return state
    return replace(state, evicted={uid: evicted for uid, evicted in state.evicted.items() if uid in known})


def evictions_of(state: EvictionState) -> Evictions:
    """The evictions as they are published."""
    return Evictions({uid: evicted.eviction for uid, evicted in state.evicted.items()})


def candidates_of(
    roster: Roster, lifecycles: Lifecycles, usage: Usage, evicted: Collection[PodUID]
) -> tuple[Candidate, ...]:
    """The pods that run or are being stopped, with their allocated sizes, without those already evicted."""
    return tuple(
        Candidate(lifecycle.pod, usage.pods.get(uid))
        for uid, lifecycle in lifecycles.pods.items()
        if lifecycle.stage in (Stage.SYNCING, Stage.TERMINATING)
        and uid not in evicted
        and (entry := roster.pods.get(uid)) is not None
        and entry.rejection is None
        and entry.admission_wait is None
    )


def in_order(
    candidates: Sequence[Candidate], signal: str, layout: FsLayout, ask_extensions: AskForRanking | None
) -> Sequence[Candidate]:
    """The candidates in the order in which they are evicted for a signal."""
    rules = SIGNAL_RULES[signal]
    ranked = sorted(candidates, key=lambda candidate: rules.rank(candidate, layout))
    answer = ask_extensions(ranked, signal) if ask_extensions is not None and ranked else None
    return ranked if answer is None else answer


def layers_are_older(usage: Usage, since: float) -> bool:
    """Whether a writable layer was measured before `since`, wall seconds."""
    layers = (container.rootfs for pod in usage.pods.values() for container in pod.containers)
    return any(layer is not None and layer.at < since for layer in layers)


def _candidates(state: EvictionState, pods: PodsSeen) -> tuple[Candidate, ...]:
    return candidates_of(pods.roster, pods.lifecycles, pods.usage, state.evicted)
