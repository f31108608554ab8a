"""Decides which of the desired pods the node admits. Pure.

Rules:
- Pods are decided in this order: those that run, those that have ended for good, those that were here before, new pods;
  within each group by creation time and arrival. A pod that already runs is never rejected for lack of resources, so a
  restart of the agent changes nothing.
- A pod counts against the capacity from its admission until its containers are gone. A pod that is no longer desired does
  not count.
- A decision holds until the pod leaves its source, except the rejection of a static pod (`readmission.py`).
- A pod of the API that has ended or is being deleted is admitted without checks, because nothing of it is started.
- Until the runtime was listed, it is not known which pods run. If not all pods fit, all are held until then.
- A critical pod that does not fit preempts others, which are rejected as `Preempting`. It is held until they have ended,
  for at most 1.5 times their longest grace period (at least `MIN_PREEMPTION_WAIT_S`).
- Placement: a pod that may get CPUs, memory or devices of its own is held until provide/placement has found them, and is rejected if
  there are none. Pods that run already are placed too, which confirms what they have. A pod that does not fit for another reason
  is placed all the same: the answer of the resource managers has precedence.
- Extensions are asked last, about pods that would be admitted. One that holds a pod is asked again when it wants to be.
- The watch of pods may be ahead of the agent's view of the Node. A pod that does not match the Node's labels or taints is
  held until the Node was read again. If that read fails, the pod is rejected as `InvalidNodeInfo`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import assert_never

from pykubelet.base.api.core import Pod
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.values import Value, VersionedMap, edited, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.labels import SOURCE_API
from pykubelet.base.model.lifecycle import ENDED_STAGES, KillReason, PodLifecycle
from pykubelet.base.model.mounts import AttachLimit
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.phase import pod_phase
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.reasons import (
    EVENT_EXCEEDED_GRACE_PERIOD,
    EVENT_PREEMPTING,
    INVALID_NODE_INFO,
    INVALID_POD_SPEC,
    PREEMPTING,
    UNEXPECTED_ADMISSION_ERROR,
    VOLUME_ATTACHMENT_LIMIT_EXCEEDED,
)
from pykubelet.base.model.roster import Rejection, has_ended_in_api, is_critical
from pykubelet.base.model.sizing import QOSClass, qos_class
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.desired.roster import admission
from pykubelet.desired.roster.admission import Shortage
from pykubelet.desired.roster.model import (
    RETRY,
    AdmissionFacts,
    AdmissionHold,
    AdmissionVerdict,
    AskExtensions,
    CountedPods,
    Entry,
    Load,
    RosterState,
    unusual,
)
from pykubelet.desired.roster.preemption import PREEMPTED, NoVictims, PreemptionCandidate, choose_victims

_UNSURE = (AdmissionVerdict.OPEN, AdmissionVerdict.PREEMPTING, AdmissionVerdict.PLACING)
MIN_PREEMPTION_WAIT_S = 10.0
DEFAULT_GRACE_S = 30
_NOT_ENDED = "Container runtime did not kill the pod within specified grace period."
_NO_RECOVERY = "Unexpected error while attempting to recover from admission failure: "
_NO_VICTIMS = "preemption: error finding a set of pods to preempt: "
ADMIT = "admit the pod"
NODE_UNKNOWN = Wait("node", Owner.NODE_STATUS, 0.0, detail="its resources are not known yet", next_step=ADMIT)
NODE_TO_BE_READ = Wait(
    "node",
    Owner.NODE_STATUS,
    0.0,
    detail="its known labels and taints do not suit the pod; it is read again from the API server",
    next_step="admit the pod or refuse it",
)
NO_NODE_INFO = "Kubelet cannot get node info."
RUNTIME_UNKNOWN = Wait(
    "container runtime", Owner.RUNTIME_STATUS, 0.0, detail="whether it has strict supplemental groups", next_step=ADMIT
)
UNLISTED = Wait(
    "container runtime",
    Owner.PLEG,
    0.0,
    detail="not all pods fit, and those that run already are admitted first",
    next_step=ADMIT,
)
UNPLACED = Wait("placement", Owner.TOPOLOGY_MANAGER, 0.0, detail="CPUs, memory and devices", next_step=ADMIT)


class Presence(IntEnum):
    """What the runtime has of a pod, in the order of admission: alive, ended for good, dead (may start again), nothing."""

    ALIVE = 0
    OVER = 1
    DEAD = 2
    NONE = 3


class _Admit(Value):
    pass


class _NeedPlacement(Value):
    """Have the pod placed, then admit it; or reject it with `refusal` if its placement succeeds."""

    refusal: Rejection | None = None


class _Reject(Value):
    """Reject the pod. `firm`: even if the pod already runs. `by_extension`: an extension does not want it."""

    rejection: Rejection
    firm: bool = False
    by_extension: bool = False


class _Lack(Value):
    shortages: tuple[Shortage, ...]


class _Postpone(Value):
    """Decide later. `asks`: request that the Node is read again. `again_s`: an extension is to be asked again after so many seconds."""

    wait: Wait
    asks: bool = False
    again_s: float = 0.0


_Decision = _Admit | _NeedPlacement | _Reject | _Lack | _Postpone
Entries = VersionedMap[PodUID, Entry]


def settle(
    state: RosterState, facts: AdmissionFacts, now: float, wall: float
) -> tuple[RosterState, tuple[KubeEvent, ...]]:
    """Decide on all pods that can be decided now. `now`: monotonic seconds. `wall`: seconds since the epoch."""
    unsure = [entry for entry in unusual(state.entries) if entry.verdict in _UNSURE]
    if not unsure:
        return state, ()
    entries, events = _end_preemptions(state.entries, facts, now, wall)
    events.extend(_end_placements(entries, unsure, facts.placements, wall))
    undecided = [e for e in unsure if e.verdict is AdmissionVerdict.OPEN and not (e.is_held and now < e.until)]
    if not undecided:
        return replace(state, entries=entries), tuple(events)
    if not facts.node.allocatable:
        return replace(state, entries=_hold_all(entries, undecided, NODE_UNKNOWN, wall)), tuple(events)
    counted = counted_now(state.counted, entries, facts)
    if facts.observed.listed_at is None and not _all_fit(counted.load, undecided, facts):
        held = _hold_all(entries, undecided, UNLISTED, wall)
        return replace(state, entries=held, counted=counted), tuple(events)
    for entry in sorted(undecided, key=lambda entry: _rank(entry, facts.observed)):
        presence = presence_of(entry.item.pod, entry.ref.uid, facts.observed)
        decision = _decide(entry, presence, counted.load, facts)
        is_here = presence in (Presence.ALIVE, Presence.OVER)
        if not is_here and facts.rules.ask_extensions is not None and not _is_leaving(entry):
            decision = _ask_extensions(facts.rules.ask_extensions, entry, decision, counted, facts, wall)
        if isinstance(decision, _Lack):
            events.extend(_preempt(entries, entry, decision.shortages, facts, (now, wall)))
            counted = counted_now(CountedPods(), entries, facts)  # all anew, as the entries were changed in place
        else:
            if isinstance(decision, _NeedPlacement):
                placing = replace(entry, refusal=decision.refusal)
                entries[entry.ref.uid] = _placing(entries, placing, facts.placements, wall)
            else:
                events.extend(_note(entries, entry, decision, presence, wall))
            if isinstance(decision, _Postpone) and decision.asks:
                entries[entry.ref.uid] = replace(entries[entry.ref.uid], asked_at=now)
            if isinstance(decision, _Postpone) and decision.again_s:
                entries[entry.ref.uid] = replace(entries[entry.ref.uid], until=now + decision.again_s)
            if isinstance(decision, _Reject) and decision.by_extension:
                refused, retry = entries[entry.ref.uid], RETRY.raised(entry.retry, now, now)
                entries[entry.ref.uid] = replace(refused, is_refused=True, retry=retry)
            if counts(entries[entry.ref.uid], facts):
                counted = counted.plus(entry.ref.uid, entry.demand)
    return replace(state, entries=entries, counted=counted), tuple(events)


def _end_preemptions(
    before: Mapping[PodUID, Entry], facts: AdmissionFacts, now: float, wall: float
) -> tuple[Entries, list[KubeEvent]]:
    """Admit pods after their victims have ended, or after the longest wait. Returns Events for victims that have not ended in time."""
    entries, events = edited(before), list[KubeEvent]()
    for entry in sorted(unusual(before), key=_arrival):
        uid = entry.ref.uid
        if entry.verdict is not AdmissionVerdict.PREEMPTING:
            continue
        late = [victim for victim in entry.victims if not _have_ended(frozenset({victim}), before, facts)]
        if late and now < entry.until:
            continue
        needs_placement = _needs_placement(entry, facts)
        entries[uid] = _placing(entries, entry, facts.placements, wall) if needs_placement else _admitted(entry)
        if late:
            events.extend(
                warning(EVENT_EXCEEDED_GRACE_PERIOD, _NOT_ENDED, before[victim].ref)
                for victim in late
                if victim in before
            )
    return entries, events


def _arrival(entry: Entry) -> int:
    return entry.order


def _end_placements(entries: Entries, unsure: Iterable[Entry], placements: Placements, wall: float) -> list[KubeEvent]:
    """Admit or reject, in `entries`, those of the `unsure` pods that have a decided placement. Returns the Events."""
    events = []
    for unplaced in sorted(unsure, key=_arrival):
        uid = unplaced.ref.uid
        entry = entries[uid]
        if entry.verdict is not AdmissionVerdict.PLACING:
            continue
        if _is_leaving(entry):
            entries[uid] = replace(_admitted(entry), was_over=has_ended_in_api(entry.item.pod))
            continue
        found = placements.pods.get(uid)
        if found is None or found.seen_at != entry.item.seen_at:
            entries[uid] = _held(entry, placements.waits.get(uid, UNPLACED), wall)
            continue
        rejection = found.rejection or entry.refusal
        if rejection is None:
            entries[uid] = _admitted(entry)
        else:
            entries[uid] = rejected(entry, rejection)
            events.append(warning(rejection.reason, rejection.message, entry.ref))
    return events


def _is_leaving(entry: Entry) -> bool:
    """Whether nothing of the pod is to be started, because it has ended or is being deleted in the API."""
    pod = entry.item.pod
    return entry.item.source == SOURCE_API and bool(has_ended_in_api(pod) or pod.metadata.deletionTimestamp)


def _needs_placement(entry: Entry, facts: AdmissionFacts) -> bool:
    """Whether the pod may get something of its own: devices, or as a Guaranteed pod CPUs and memory."""
    placements = facts.placements
    if placements.places_all or not placements.placed_resources.isdisjoint(entry.demand.requests):
        return True
    return facts.rules.places_guaranteed and qos_class(entry.item.pod) is QOSClass.GUARANTEED


def _placing(entries: Entries, entry: Entry, placements: Placements, wall: float) -> Entry:
    """The entry, waiting for its placement behind all others that do."""
    number = 1 + max((e.placing_number for e in entries.values() if e.verdict is AdmissionVerdict.PLACING), default=0)
    held = _held(entry, placements.waits.get(entry.ref.uid, UNPLACED), wall)
    return replace(held, verdict=AdmissionVerdict.PLACING, victims=frozenset(), until=0.0, placing_number=number)


def _have_ended(victims: frozenset[PodUID], entries: Mapping[PodUID, Entry], facts: AdmissionFacts) -> bool:
    lifecycles = facts.lifecycles.pods
    return all(lifecycles[uid].stage in ENDED_STAGES if uid in lifecycles else uid not in entries for uid in victims)


def _hold_all(entries: Entries, undecided: list[Entry], wait: Wait, wall: float) -> Entries:
    for entry in undecided:
        entries[entry.ref.uid] = _held(entry, wait, wall)
    return entries


def _held(entry: Entry, wait: Wait, wall: float) -> Entry:
    held = entry.item.admission_wait
    if held is not None and replace(held, since=0.0) == wait:
        return entry
    since = held.since if held is not None else wall
    return replace(entry, item=replace(entry.item, admission_wait=replace(wait, since=since)))


def _admitted(entry: Entry) -> Entry:
    item = entry.item if entry.item.admission_wait is None else replace(entry.item, admission_wait=None)
    return replace(entry, item=item, verdict=AdmissionVerdict.ADMITTED, victims=frozenset(), until=0.0)


def rejected(entry: Entry, rejection: Rejection) -> Entry:
    """The entry of a pod that the node rejects."""
    return replace(
        entry, item=replace(entry.item, rejection=rejection, admission_wait=None), verdict=AdmissionVerdict.REJECTED
    )


def reject_at_limit(
    state: RosterState, limits: Mapping[PodUID, AttachLimit]
) -> tuple[RosterState, tuple[KubeEvent, ...]]:
    """Reject admitted pods that cannot start because no more volumes can be attached to the node. The Events are the second value."""
    if not limits:
        return state, ()
    entries, events = edited(state.entries), []
    for uid, limit in limits.items():
        entry = entries.get(uid)
        if entry is None or entry.verdict is not AdmissionVerdict.ADMITTED:
            continue
        rejection = Rejection(VOLUME_ATTACHMENT_LIMIT_EXCEEDED, limit.message)
        entries[uid] = rejected(entry, rejection)
        events.append(warning(rejection.reason, rejection.message, entry.ref))
    return (replace(state, entries=entries), tuple(events)) if events else (state, ())


# Order and capacity


def presence_of(pod: Pod, uid: PodUID, observed: Observed) -> Presence:
    """The presence of a pod in the runtime. A pod that could not be read yet counts as alive."""
    view = observed.pods.get(uid)
    if view is None and observed.is_unread(uid):
        return Presence.ALIVE  # it exists in the runtime, so it must not be rejected only because it could not be read
    if view is None or view.is_gone:
        return Presence.NONE
    if view.is_alive:
        return Presence.ALIVE
    return Presence.OVER if pod_phase(pod, view, {}, ended=False).is_terminal else Presence.DEAD


def _rank(entry: Entry, observed: Observed) -> tuple[int, float, int]:
    try:
        created = parse_time(entry.item.pod.metadata.creationTimestamp)
    except ValueError:
        created = entry.item.seen_at
    return presence_of(entry.item.pod, entry.ref.uid, observed), created, entry.order


def counts(entry: Entry, facts: AdmissionFacts) -> bool:
    """Whether the pod counts against the capacity of the node now."""
    if entry.verdict in (AdmissionVerdict.PREEMPTING, AdmissionVerdict.PLACING):
        return entry.refusal is None
    if entry.verdict is AdmissionVerdict.QUARANTINED:
        return True
    if entry.verdict is not AdmissionVerdict.ADMITTED:
        return False
    lifecycle = facts.lifecycles.pods.get(entry.ref.uid)
    if lifecycle is None:
        return not entry.was_over
    if lifecycle.stage not in ENDED_STAGES or lifecycle.kill_reason in (KillReason.REMOVED, KillReason.RENEWED):
        return True  # it runs, or is desired again and will start again
    return lifecycle.stage_since == entry.rejected_since  # it was rejected then, and is admitted now


def counted_now(before: CountedPods, entries: Mapping[PodUID, Entry], facts: AdmissionFacts) -> CountedPods:
    """The pods that count against the capacity now. `before`: those of an earlier decision, about a version of the entries before this
    one, or about this one with all that was changed in it since."""
    lives = facts.lifecycles.pods
    marks = None
    if isinstance(entries, VersionedMap) and isinstance(lives, VersionedMap):
        marks = entries.mark, lives.mark
    demands = {
        uid: entry.demand if (entry := entries.get(uid)) is not None and counts(entry, facts) else None
        for uid in _uncounted(before, entries, lives)
    }
    return before.with_demands(demands, marks)


def _uncounted(
    before: CountedPods, entries: Mapping[PodUID, Entry], lives: Mapping[PodUID, PodLifecycle]
) -> Iterable[PodUID]:
    """The pods that may count otherwise than before: all of them, if what has changed is not known."""
    if before.marks is not None and isinstance(entries, VersionedMap) and isinstance(lives, VersionedMap):
        changed, lived = (now.changed_since(mark) for now, mark in zip((entries, lives), before.marks, strict=True))
        if changed is not None and lived is not None:
            return changed | lived
    return {**dict.fromkeys(entries), **dict.fromkeys(before.demands)}


def _all_fit(load: Load, undecided: list[Entry], facts: AdmissionFacts) -> bool:
    """Whether all undecided pods fit, so that their order does not matter."""
    for entry in undecided:
        decision = _decide(entry, Presence.NONE, load, facts)
        if isinstance(decision, _Lack) or (isinstance(decision, _Reject) and not decision.firm):
            return False
        if isinstance(decision, _NeedPlacement) and decision.refusal is not None:
            return False
        if isinstance(decision, (_Admit, _NeedPlacement)):
            load = load.plus(entry.demand)
    return True


# One pod


def would_admit(entry: Entry, load: Load, facts: AdmissionFacts) -> bool:
    """Whether a pod of which nothing runs would be admitted now without preemption, if it can be placed."""
    decision = _decide(entry, Presence.NONE, load, facts)
    return isinstance(decision, _Admit) or (isinstance(decision, _NeedPlacement) and decision.refusal is None)


def _decide(entry: Entry, presence: Presence, load: Load, facts: AdmissionFacts) -> _Decision:
    pod, rules = entry.item.pod, facts.rules
    if _is_leaving(entry):
        return _Admit()
    needs_placement = presence is not Presence.OVER and _needs_placement(entry, facts)
    is_here = presence in (Presence.ALIVE, Presence.OVER)
    refusal = None if is_here else admission.refuse_under_pressure(pod, facts.pressure)
    if refusal is not None:
        return _Reject(refusal)
    unusable = Rejection(INVALID_POD_SPEC, entry.unusable) if entry.unusable and not is_here else None
    refusal = unusable or admission.refuse_sysctls(pod, rules) or admission.refuse_os(pod)
    if refusal is not None:
        return _Reject(refusal, firm=True)
    decision = _Admit() if is_here else _decide_fit(entry, load, facts)
    match decision:
        case _Admit() if needs_placement:
            return _NeedPlacement()
        case _Reject(rejection) if needs_placement:
            return _NeedPlacement(rejection)  # what the resource managers answer comes first
    return decision


def _decide_fit(entry: Entry, load: Load, facts: AdmissionFacts) -> _Decision:
    """The checks against the node and its other pods, for a pod that does not run here."""
    pod, rules = entry.item.pod, facts.rules
    if admission.needs_runtime_features(pod) and not facts.runtime.checked:
        return _Postpone(RUNTIME_UNKNOWN)
    refusal = admission.refuse_groups_policy(pod, facts.runtime)
    if refusal is not None:
        return _Reject(refusal)
    placed = facts.placements.placed_resources
    shortages = admission.find_shortages(entry.demand, load, facts.node, rules.max_pods, placed)
    if shortages and not is_critical(pod):
        return _Reject(shortages[0].rejection)
    refusal = admission.refuse_placement(pod, entry.demand, load, facts.node, rules)
    if refusal is not None and refusal.reason in admission.OF_THE_NODE and facts.node.registered:
        return _decide_by_newest(entry, refusal, facts.node)
    refusal = (
        refusal
        or admission.refuse_app_armor(pod, rules)
        or admission.refuse_features(pod, rules, facts.runtime)
        or admission.refuse_at_shutdown(shutting_down=facts.shutting_down)
    )
    if refusal is not None:
        return _Reject(refusal)
    return _Lack(shortages) if shortages else _Admit()


def _ask_extensions(
    ask: AskExtensions, entry: Entry, decision: _Decision, counted: CountedPods, facts: AdmissionFacts, wall: float
) -> _Decision:
    """The decision on a pod that does not run here, after the extensions were asked if it would be admitted."""
    would_be = isinstance(decision, _Admit) or (isinstance(decision, _NeedPlacement) and decision.refusal is None)
    answer = ask(entry.item.pod, facts, counted, wall) if would_be else None
    match answer:
        case Rejection():
            return _Reject(answer, by_extension=True)
        case AdmissionHold(wait, again_s):
            return _Postpone(replace(wait, next_at=wall + again_s), again_s=again_s)
    return decision


def _decide_by_newest(entry: Entry, refusal: Rejection, node: NodeView) -> _Reject | _Postpone:
    """Reject a pod that does not match the Node only if the Node was read again since; hold it until then."""
    if entry.asked_at is None or node.read_at is None or node.read_at < entry.asked_at:
        return _Postpone(replace(NODE_TO_BE_READ, reason=refusal.reason), asks=entry.asked_at is None)
    return _Reject(Rejection(INVALID_NODE_INFO, NO_NODE_INFO) if node.read_error else refusal)


def _note(
    entries: Entries, entry: Entry, decision: _Admit | _Reject | _Postpone, presence: Presence, wall: float
) -> list[KubeEvent]:
    """Apply a decision to `entries`. Returns the Events."""
    uid = entry.ref.uid
    match decision:
        case _Admit():
            entries[uid] = replace(
                _admitted(entry), was_over=presence is Presence.OVER or has_ended_in_api(entry.item.pod)
            )
            return []
        case _Postpone(wait):
            entries[uid] = _held(entry, wait, wall)
            return []
        case _Reject(rejection):
            entries[uid] = rejected(entry, rejection)
            return [warning(rejection.reason, rejection.message, entry.ref)]
        case _:
            assert_never(decision)


def _preempt(
    entries: Entries, entry: Entry, shortages: tuple[Shortage, ...], facts: AdmissionFacts, at: tuple[float, float]
) -> list[KubeEvent]:
    """Preempt other pods for `entry`, or reject `entry` if that is impossible. `at`: the monotonic and the wall clock."""
    here = [
        PreemptionCandidate(other.ref.uid, other.item.pod, other.demand)
        for other in entries.values()
        if other.verdict in (AdmissionVerdict.PLACING, AdmissionVerdict.ADMITTED) and counts(other, facts)
    ]
    now, wall = at
    try:
        victims = choose_victims(entry.item.pod, here, shortages)
    except NoVictims as error:
        rejection = Rejection(UNEXPECTED_ADMISSION_ERROR, f"{_NO_RECOVERY}{_NO_VICTIMS}{error}")
        return _note(entries, entry, _Reject(rejection), Presence.NONE, wall)
    events = []
    grace = 0
    for uid in victims:
        victim = entries[uid]
        own = victim.item.pod.spec.terminationGracePeriodSeconds
        grace = max(grace, DEFAULT_GRACE_S if own is None else own)
        entries[uid] = rejected(victim, Rejection(PREEMPTING, PREEMPTED))
        events.append(warning(EVENT_PREEMPTING, PREEMPTED, victim.ref))
    names = ", ".join(str(entries[uid].ref) for uid in victims)
    wait = Wait(
        "capacity", Owner.POD_ADMISSION, 0.0, detail=f"these pods are preempted for it: {names}", next_step=ADMIT
    )
    until = now + max(1.5 * grace, MIN_PREEMPTION_WAIT_S)
    held = _held(entry, wait, wall)
    short_of = shortages[0].resource if shortages else ""
    entries[entry.ref.uid] = replace(
        held, verdict=AdmissionVerdict.PREEMPTING, victims=frozenset(victims), until=until, short_of=short_of
    )
    return events
