"""Which of the desired pods the node takes. Pure.

Rules:
- Pods are looked at in the order: what runs already (or ended for good), what was here before, then the new ones by
  creation and first sight. What runs already is never refused for lack of room: a restart of the agent changes nothing.
- A pod counts from its admission until its containers are gone. One that is no longer desired does not count.
- A decision holds until the pod leaves its source.
- A pod of the API that has ended or is being deleted is taken without a look: nothing of it is started.
- While the runtime has not been listed, nobody knows who runs already: if the pods do not all fit, all are held.
- A critical pod that finds no room takes that of others, which are rejected as `Preempting`; it is held until they have
  ended, at most one and a half grace periods.
- The watch of pods may be ahead of that of the Node: a pod that its labels or taints speak against is held until the Node
  was read anew. Where the API server refuses that, the pod is refused as `InvalidNodeInfo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import assert_never

from pykubelet.base.api.core import Pod
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.labels import SOURCE_API
from pykubelet.base.model.lifecycle import KillReason, Stage
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.phase import pod_phase
from pykubelet.base.model.reasons import (
    EVENT_EXCEEDED_GRACE_PERIOD,
    EVENT_PREEMPTING,
    INVALID_NODE_INFO,
    PREEMPTING,
    UNEXPECTED_ADMISSION_ERROR,
)
from pykubelet.base.model.roster import Rejection, has_ended_in_api
from pykubelet.base.model.waits import Wait
from pykubelet.desired.roster import admission
from pykubelet.desired.roster.admission import Load, Shortage
from pykubelet.desired.roster.model import Entry, Facts, RosterState, Verdict
from pykubelet.desired.roster.preemption import PREEMPTED, Candidate, NoVictims, choose_victims, is_critical

_UNSURE = (Verdict.OPEN, Verdict.PREEMPTING)
MIN_PREEMPTION_WAIT_S = 10.0
DEFAULT_GRACE_S = 30
_NOT_ENDED = "Container runtime did not kill the pod within specified grace period."
_NO_RECOVERY = "Unexpected error while attempting to recover from admission failure: "
_NO_VICTIMS = "preemption: error finding a set of pods to preempt: "
ADMIT = "admit the pod"
NODE_UNKNOWN = Wait("node", "report/node", 0.0, detail="its resources are not known yet", next_step=ADMIT)
NODE_TO_BE_READ = Wait(
    "node",
    "report/node",
    0.0,
    detail="what is known of its labels and taints speaks against the pod; it is read anew from the API server",
    next_step="admit the pod or refuse it",
)
NO_NODE_INFO = "Kubelet cannot get node info."
RUNTIME_UNKNOWN = Wait(
    "container runtime", "report/node", 0.0, detail="whether it has strict supplemental groups", next_step=ADMIT
)
UNLISTED = Wait(
    "container runtime",
    "observe/pleg",
    0.0,
    detail="the room is scarce, and pods that run already go first",
    next_step=ADMIT,
)


class Trace(IntEnum):
    """What the runtime has of a pod, in the order of admission."""

    ALIVE = 0
    OVER = 1
    DEAD = 2
    NONE = 3


class _Admit(Value):
    pass


class _Refuse(Value):
    """`firm`: whatever runs already."""

    rejection: Rejection
    firm: bool = False


class _Lacks(Value):
    shortages: tuple[Shortage, ...]


class _Hold(Value):
    """`asks`: the Node is to be read anew."""

    wait: Wait
    asks: bool = False


_Judgement = _Admit | _Refuse | _Lacks | _Hold
Entries = dict[PodUID, Entry]


def settle(state: RosterState, facts: Facts, now: float, wall: float) -> tuple[RosterState, tuple[KubeEvent, ...]]:
    """Decide all that can be decided now. `now`: monotonic seconds; `wall`: seconds since the epoch."""
    unsure = [entry for entry in state.entries.values() if entry.verdict in _UNSURE]
    if not unsure:
        return state, ()
    entries, recorder = _end_preemptions(state.entries, facts, now)
    undecided = [entry for entry in unsure if entry.verdict is Verdict.OPEN]
    if not undecided:
        return replace(state, entries=entries), tuple(recorder)
    if not facts.node.allocatable:
        return replace(state, entries=_hold_all(entries, undecided, NODE_UNKNOWN, wall)), tuple(recorder)
    if facts.observed.listed_at is None and not _all_fit(entries, undecided, facts):
        return replace(state, entries=_hold_all(entries, undecided, UNLISTED, wall)), tuple(recorder)
    load = _load(entries, facts)
    for entry in sorted(undecided, key=lambda entry: _rank(entry, facts.observed)):
        trace = trace_of(entry.item.pod, entry.ref.uid, facts.observed)
        judgement = _judge(entry, trace, load, facts)
        if isinstance(judgement, _Lacks):
            recorder.extend(_preempt(entries, entry, judgement.shortages, facts, (now, wall)))
            load = _load(entries, facts)
        else:
            recorder.extend(_note(entries, entry, judgement, trace, wall))
            if isinstance(judgement, _Hold) and judgement.asks:
                entries[entry.ref.uid] = replace(entries[entry.ref.uid], asked_at=now)
            if counts(entries[entry.ref.uid], facts):
                load = load.plus(entry.demand)
    return replace(state, entries=entries), tuple(recorder)


def _end_preemptions(before: Mapping[PodUID, Entry], facts: Facts, now: float) -> tuple[Entries, list[KubeEvent]]:
    """Who had to wait for others to end and need not any more; what to tell of those that have not ended in time."""
    entries, told = dict(before), list[KubeEvent]()
    for uid, entry in before.items():
        if entry.verdict is not Verdict.PREEMPTING:
            continue
        late = [one for one in entry.victims if not _have_ended(frozenset({one}), before, facts)]
        if not late:
            entries[uid] = _admitted(entry)
        elif now >= entry.until:
            entries[uid] = _admitted(entry)
            told.extend(
                warning(EVENT_EXCEEDED_GRACE_PERIOD, _NOT_ENDED, before[one].ref) for one in late if one in before
            )
    return entries, told


def _have_ended(victims: frozenset[PodUID], entries: Mapping[PodUID, Entry], facts: Facts) -> bool:
    lifecycles = facts.lifecycles.pods
    return all(
        lifecycles[uid].stage in (Stage.TERMINATED, Stage.FINISHED) if uid in lifecycles else uid not in entries
        for uid in victims
    )


def _hold_all(entries: Entries, undecided: list[Entry], wait: Wait, wall: float) -> Entries:
    for entry in undecided:
        entries[entry.ref.uid] = _held(entry, wait, wall)
    return entries


def _held(entry: Entry, wait: Wait, wall: float) -> Entry:
    held = entry.item.held
    if held is not None and replace(held, since=0.0) == wait:
        return entry
    since = held.since if held is not None else wall
    return replace(entry, item=replace(entry.item, held=replace(wait, since=since)))


def _admitted(entry: Entry) -> Entry:
    item = entry.item if entry.item.held is None else replace(entry.item, held=None)
    return replace(entry, item=item, verdict=Verdict.ADMITTED, victims=frozenset(), until=0.0)


def _rejected(entry: Entry, rejection: Rejection) -> Entry:
    return replace(entry, item=replace(entry.item, rejection=rejection, held=None), verdict=Verdict.REJECTED)


# Order and room


def trace_of(pod: Pod, uid: PodUID, observed: Observed) -> Trace:
    view = observed.pods.get(uid)
    if view is None and observed.is_unread(uid):
        return Trace.ALIVE  # something of it is there: it is not refused because nobody could look at it yet
    if view is None or view.is_gone:
        return Trace.NONE
    if view.is_alive:
        return Trace.ALIVE
    return Trace.OVER if pod_phase(pod, view, {}, ended=False).is_terminal else Trace.DEAD


def _rank(entry: Entry, observed: Observed) -> tuple[int, float, int]:
    try:
        created = parse_time(entry.item.pod.metadata.creationTimestamp)
    except ValueError:
        created = entry.item.seen_at
    return trace_of(entry.item.pod, entry.ref.uid, observed), created, entry.order


def counts(entry: Entry, facts: Facts) -> bool:
    """Whether the pod takes room now."""
    if entry.verdict is Verdict.PREEMPTING:
        return True
    if entry.verdict is not Verdict.ADMITTED:
        return False
    lifecycle = facts.lifecycles.pods.get(entry.ref.uid)
    if lifecycle is None:
        return not entry.was_over
    gone = lifecycle.stage in (Stage.TERMINATED, Stage.FINISHED)
    return not gone or lifecycle.kill_reason in (
        KillReason.REMOVED,
        KillReason.RENEWED,
    )  # wanted again: it is about to start anew


def _load(entries: Entries, facts: Facts) -> Load:
    return admission.load_of(entry.demand for entry in entries.values() if counts(entry, facts))


def _all_fit(entries: Entries, undecided: list[Entry], facts: Facts) -> bool:
    """Whether the order does not matter."""
    load = _load(entries, facts)
    for entry in undecided:
        judgement = _judge(entry, Trace.NONE, load, facts)
        if isinstance(judgement, _Lacks) or (isinstance(judgement, _Refuse) and not judgement.firm):
            return False
        if isinstance(judgement, _Admit):
            load = load.plus(entry.demand)
    return True


# One pod


def _judge(entry: Entry, trace: Trace, load: Load, facts: Facts) -> _Judgement:
    pod, rules = entry.item.pod, facts.rules
    if entry.item.source == SOURCE_API and (has_ended_in_api(pod) or pod.metadata.deletionTimestamp):
        return _Admit()
    refusal = admission.refuse_sysctls(pod, rules) or admission.refuse_os(pod)
    if refusal is not None:
        return _Refuse(refusal, firm=True)
    if trace in (Trace.ALIVE, Trace.OVER):
        return _Admit()
    if admission.needs_strict_groups(pod) and not facts.runtime.checked:
        return _Hold(RUNTIME_UNKNOWN)
    refusal = admission.refuse_groups_policy(pod, facts.runtime)
    if refusal is not None:
        return _Refuse(refusal)
    shortages = admission.find_shortages(entry.demand, load, facts.node, rules.max_pods)
    if shortages and not is_critical(pod):
        return _Refuse(shortages[0].rejection)
    refusal = admission.refuse_placement(pod, entry.demand, load, facts.node)
    if refusal is not None and refusal.reason in admission.OF_THE_NODE and facts.node.registered:
        return _judge_by_newest(entry, refusal, facts.node)
    refusal = refusal or admission.refuse_app_armor(pod, rules) or admission.refuse_features(pod, rules)
    if refusal is not None:
        return _Refuse(refusal)
    return _Lacks(shortages) if shortages else _Admit()


def _judge_by_newest(entry: Entry, refusal: Rejection, node: NodeView) -> _Refuse | _Hold:
    """The Node as it is known speaks against the pod: so must the Node as it is."""
    if entry.asked_at is None or node.read_at is None or node.read_at < entry.asked_at:
        return _Hold(replace(NODE_TO_BE_READ, reason=refusal.reason), asks=entry.asked_at is None)
    return _Refuse(Rejection(INVALID_NODE_INFO, NO_NODE_INFO) if node.read_error else refusal)


def _note(
    entries: Entries, entry: Entry, judgement: _Admit | _Refuse | _Hold, trace: Trace, wall: float
) -> list[KubeEvent]:
    """Put a judgement into `entries`."""
    uid = entry.ref.uid
    match judgement:
        case _Admit():
            entries[uid] = replace(_admitted(entry), was_over=trace is Trace.OVER or has_ended_in_api(entry.item.pod))
            return []
        case _Hold(wait):
            entries[uid] = _held(entry, wait, wall)
            return []
        case _Refuse(rejection):
            entries[uid] = _rejected(entry, rejection)
            return [warning(rejection.reason, rejection.message, entry.ref)]
        case _:
            assert_never(judgement)


def _preempt(
    entries: Entries, entry: Entry, shortages: tuple[Shortage, ...], facts: Facts, at: tuple[float, float]
) -> list[KubeEvent]:
    """Reject others in favour of `entry`, or else `entry`. `at`: the monotonic and the wall clock."""
    here = [
        Candidate(other.ref.uid, other.item.pod, other.demand)
        for other in entries.values()
        if other.verdict is Verdict.ADMITTED and counts(other, facts)
    ]
    now, wall = at
    try:
        victims = choose_victims(entry.item.pod, here, shortages)
    except NoVictims as error:
        rejection = Rejection(UNEXPECTED_ADMISSION_ERROR, f"{_NO_RECOVERY}{_NO_VICTIMS}{error}")
        return _note(entries, entry, _Refuse(rejection), Trace.NONE, wall)
    recorder = []
    grace = 0
    for uid in victims:
        victim = entries[uid]
        own = victim.item.pod.spec.terminationGracePeriodSeconds
        grace = max(grace, DEFAULT_GRACE_S if own is None else own)
        entries[uid] = _rejected(victim, Rejection(PREEMPTING, PREEMPTED))
        recorder.append(warning(EVENT_PREEMPTING, PREEMPTED, victim.ref))
    names = ", ".join(str(entries[uid].ref) for uid in victims)
    wait = Wait("room", "desired/roster", 0.0, detail=f"these pods end to make room: {names}", next_step=ADMIT)
    until = now + max(1.5 * grace, MIN_PREEMPTION_WAIT_S)
    held = _held(entry, wait, wall)
    short_of = shortages[0].resource if shortages else ""
    entries[entry.ref.uid] = replace(
        held, verdict=Verdict.PREEMPTING, victims=frozenset(victims), until=until, short_of=short_of
    )
    return recorder
