"""Decides from the desired and the observed pods which pods have a worker, and which events each worker gets.

Rules:
- A desired pod gets a worker when the runtime has been listed and the pod has been read from it. A static pod also waits
  until no older pod of the same full name is left. A waiting pod publishes what it waits for.
- A pod that is no longer desired is killed, but not before all sources have reported.
- A pod that runs but is not desired (an orphan) is killed with a grace period of one second. It is made from the labels and
  annotations of its containers.
- When nothing of a pod is left, its worker ends; if the pod is desired again, a new worker starts. The worker of a pod
  that was deleted in the API stays until the object is gone there, so that `finished` stays published until then.
- Of static pods of one full name, the roster has one at most.
- If a pod has ended in the API and nothing of it runs, its worker starts as terminated: it never runs again.
- After a crash of its worker, a pod pauses with back-off. Then it gets a new worker that starts from what is observed.

A pass looks at the pods that have changed since the last one and at those that this has left `open`; after a relist, and where something
has changed that concerns all pods, at all of them. What a pod costs does not depend on how many others there are.

Times are monotonic seconds unless a name has `wall` in it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, compress, repeat
from operator import attrgetter, is_
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from pykubelet.act.pods.decide import MIN_GRACE_S
from pykubelet.act.pods.decide_orphans import orphan_start
from pykubelet.act.pods.model import (
    REMOVING,
    Event,
    KillOrder,
    KillRequested,
    PodSizes,
    PodWorkerState,
    RuntimeChanged,
    SpecChanged,
    Work,
)
from pykubelet.base.api.times import parse_time, wall_to_monotonic
from pykubelet.base.kit.backoff import Backoff, BackoffPolicy
from pykubelet.base.kit.values import Value, changed_keys, field, missing_keys, replace
from pykubelet.base.model.content import Content, ObjectKey, Unreadable, changed_content
from pykubelet.base.model.evictions import PodEviction
from pykubelet.base.model.ids import PodRef, PodUID, SandboxID
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage, StatusOverride
from pykubelet.base.model.needs import start_keys
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.phase import Phase
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.reasons import INTERNAL_ERROR, PREEMPTING
from pykubelet.base.model.restart import doubtful_successes
from pykubelet.base.model.roster import (
    Rejection,
    Roster,
    RosterPod,
    has_ended_in_api,
    is_quarantined,
    is_static,
    pod_ref,
)
from pykubelet.base.model.waits import Owner, Wait

CRASH_PAUSE = BackoffPolicy(initial_s=1.0, cap_s=60.0)
#: A pod that takes its environment from more objects than this is not tried again for each of them.
MANY_OBJECTS = 100
TAKE_UP = "take the pod up"


class HasWorkerState(Protocol):
    """The part of a pod worker that decisions read."""

    @property
    def state(self) -> PodWorkerState:
        """The current state of the worker's pod."""
        ...


W = TypeVar("W", bound=HasWorkerState)


class WorkerRecord(Struct, Generic[W]):
    """What the loop knows of one pod: its worker, or why it has none. Only the loop changes it."""

    worker: W | None = None
    #: The roster entry that the worker was sent last; None for an orphan.
    entry: RosterPod | None = None
    #: The worker was asked to kill the pod because the pod is not desired.
    kill_sent: bool = False
    #: When the last of the pod was removed; views that were read earlier are outdated.
    removed_at: float | None = None
    #: The pause after a crash of the worker.
    pause: Wait | None = None
    #: The back-off of these pauses; kept while the pod is desired or observed.
    backoff: Backoff | None = None


Records = Mapping[PodUID, WorkerRecord[W]]


class PodsSnapshot(Value):
    """The input of one pass. `at`: monotonic seconds, `wall`: wall seconds. `evictions`: pods that the node evicts or shuts down."""

    roster: Roster
    observed: Observed
    at: float = 0.0
    wall: float = 0.0
    evictions: Mapping[PodUID, PodEviction] = field(default_factory=dict)


# Actions, in the order in which they are carried out


class StartWorker(Value):
    """Start a worker with this state and these first events. `entry` None: the pod is an orphan, and `events` has its kill."""

    state: PodWorkerState
    events: tuple[Event, ...]
    entry: RosterPod | None = None


class UpdateWorker(Value):
    """Send a worker the pod's new roster entry."""

    uid: PodUID
    entry: RosterPod
    events: tuple[Event, ...]


class RequestKill(Value):
    """Kill a pod that is no longer desired."""

    uid: PodUID
    event: KillRequested


class RequestEviction(Value):
    """Kill a pod because of node pressure or a node shutdown."""

    uid: PodUID
    event: KillRequested


class SendView(Value):
    """Send a worker a changed view of its pod."""

    uid: PodUID
    event: RuntimeChanged


class RequestRead(Value):
    """Have the PLEG read the pod: its worker needs a newer view than the last relist has brought."""

    ref: PodRef


class ForgetPod(Value):
    """Drop the pod's record."""

    uid: PodUID


Action = StartWorker | UpdateWorker | RequestKill | RequestEviction | SendView | RequestRead | ForgetPod


class LastPass(Value):
    """What a pass leaves to the next one. `snapshot`: what it was about. `waiting`: what each desired pod without a worker waits for.

    `open`: the pods that every pass looks at, because they are desired or known and have no worker. `left`: the pods that are not
    desired, of which there is a worker or something in the runtime.
    """

    snapshot: PodsSnapshot = field(default_factory=lambda: PodsSnapshot(Roster(), Observed()))
    waiting: Mapping[PodUID, Wait] = field(default_factory=dict)
    open: Mapping[PodUID, None] = field(default_factory=dict)
    left: Mapping[PodUID, None] = field(default_factory=dict)


class WorkerDecisions(Value):
    """The result of one pass. `shown`: changed lifecycles of pods without a worker; None removes the pod's lifecycle."""

    actions: tuple[Action, ...]
    shown: Mapping[PodUID, PodLifecycle | None]
    last: LastPass


def decide_workers(
    records: Records[W],
    shown: Mapping[PodUID, PodLifecycle],
    last: LastPass,
    now: PodsSnapshot,
    ended: Iterable[PodUID] = (),
    *,
    all_pods: bool = False,
) -> WorkerDecisions:
    """One pass. `shown`: the published lifecycles. `ended`: the pods of which a worker has ended since the last pass. `all_pods`: look at
    all of them, whether something of them has changed or not."""
    current = _Pass(records, shown, last, now, ended, all_pods=all_pods)
    if now.observed.listed_at is not None:
        current.update_workers()
        current.start_workers()
        if now.roster.sources_ready:
            current.kill_undesired()
            current.start_orphans()
        current.evict()
        current.send_views()
        current.forget_pods()
    return WorkerDecisions(tuple(current.actions), current.changed_lifecycles(), current.left_to_next())


class _Pass(Generic[W]):
    """One run of `decide_workers`: collects the actions. `_looks`: the pods that it looks at; after a relist, `send_views` looks at all
    that have a worker.
    """

    def __init__(
        self,
        records: Records[W],
        shown: Mapping[PodUID, PodLifecycle],
        last: LastPass,
        now: PodsSnapshot,
        ended: Iterable[PodUID],
        *,
        all_pods: bool,
    ) -> None:
        self.actions: list[Action] = []
        self._records, self._shown, self._last, self._now = records, shown, last, now
        self._before = last.snapshot
        self._roster, self._observed = now.roster.pods, now.observed.pods
        self._started: dict[PodUID, PodRef] = {}
        self._forgotten: set[PodUID] = set()
        self._changed = changed_keys(self._before.roster.pods, self._roster)
        self._changed_views = changed_keys(self._before.observed.pods, self._observed)
        self._is_complete = all_pods or _concerns_all(self._before, now)
        looks = self._complete() if self._is_complete else chain(last.open, ended, self._changed, self._changed_views)
        self._looks = list(dict.fromkeys(looks))
        self._idle = [uid for uid in self._looks if uid in records and records[uid].worker is None]
        without = [uid for uid in self._looks if uid in self._roster and not self._has_worker(uid)]
        self._without_worker = sorted(without, key=lambda uid: uid not in self._observed)
        self._undesired = [uid for uid in self._looks if uid not in self._roster]
        self._left = self._find_left()
        self._names: dict[str, PodRef] | None = None

    def _complete(self) -> Iterator[PodUID]:
        """Every pod that has no worker, or is not desired; in C, as in `changed_keys`."""
        records = self._records
        without_worker = map(is_, map(attrgetter("worker"), records.values()), repeat(None))
        return chain(
            missing_keys(self._roster, records),
            compress(records, without_worker),
            missing_keys(records, self._roster),
            missing_keys(self._observed, self._roster),
            missing_keys(self._shown, records),
        )

    def _has_worker(self, uid: PodUID) -> bool:
        record = self._records.get(uid)
        return record is not None and record.worker is not None

    def _find_left(self) -> dict[PodUID, None]:
        left = {} if self._is_complete else dict(self._last.left)
        for uid in self._looks:
            if uid not in self._roster and (uid in self._records or uid in self._observed):
                left[uid] = None
            else:
                left.pop(uid, None)
        return left

    def update_workers(self) -> None:
        for uid in self._changed:
            record, entry = self._records.get(uid), self._roster.get(uid)
            if record is not None and record.worker is not None and entry is not None and record.entry is not entry:
                self.actions.append(UpdateWorker(uid, entry, update_events(record.entry, entry)))

    def start_workers(self) -> None:
        """Start the workers of desired pods; pods with containers in the runtime first."""
        unread = self._now.observed.unread
        for uid in self._without_worker:
            entry, record = self._roster[uid], self._records.get(uid)
            is_blocked = entry.admission_wait is not None or (record is not None and self._is_blocked(uid, record))
            if is_blocked or pod_ref(entry.pod) in unread or self._older_namesake(entry) is not None:
                continue
            self._start(desired_start(entry, self._observed.get(uid), self._now.at, self._now.wall), entry)

    def kill_undesired(self) -> None:
        for uid in self._undesired:
            record = self._records.get(uid)
            if record is not None and record.worker is not None and not record.kill_sent:
                self.actions.append(RequestKill(uid, KillRequested(KillReason.REMOVED, "no longer desired")))

    def evict(self) -> None:
        """Request the evictions that are new, and those of pods with a new worker."""
        evictions = self._now.evictions
        for uid in dict.fromkeys((*changed_keys(self._before.evictions, evictions), *self._started)):
            if uid in evictions and (uid in self._started or self._has_worker(uid)):
                self.actions.append(RequestEviction(uid, eviction_event(evictions[uid])))

    def start_orphans(self) -> None:
        for uid in self._undesired:
            record = self._records.get(uid)
            if uid not in self._observed or (record is not None and record.worker is not None):
                continue
            view, is_blocked = self._observed[uid], record is not None and self._is_blocked(uid, record)
            if not is_blocked and not view.is_gone and view.ref.full_name not in self._now.roster.withheld:
                self._start(orphan_start(view, self._now.wall), None)

    def send_views(self) -> None:
        observed, before, wall = self._now.observed, self._before.observed, self._now.wall
        changed = self._changed_views
        for uid in missing_keys(self._records if self._is_complete else changed, self._observed):
            record = self._records.get(uid)
            worker = record.worker if record is not None else None
            if worker is not None and (absent := _absent_view(worker.state, observed)) is not None:
                self.actions.append(SendView(uid, RuntimeChanged(absent, wall)))
        for uid in changed:
            record, view = self._records.get(uid), self._observed.get(uid)
            if record is not None and record.worker is not None and view is not None:
                shown = (
                    view.with_pending_exits(doubtful_successes(record.worker.state.pod)) if view.pending_exits else view
                )
                self.actions.append(SendView(uid, RuntimeChanged(shown, wall)))
        if observed.listed_at != before.listed_at:
            for uid in missing_keys(self._records, set(changed)):
                worker = self._records[uid].worker
                if worker is not None and uid in self._observed and _is_view_overdue(worker.state, observed):
                    self.actions.append(RequestRead(worker.state.ref))

    def forget_pods(self) -> None:
        for uid in self._idle:
            record = self._records[uid]
            is_known = uid in self._observed or uid in self._roster
            if uid in self._started or self._is_blocked(uid, record) or (record.backoff is not None and is_known):
                continue
            self.actions.append(ForgetPod(uid))
            self._forgotten.add(uid)

    def changed_lifecycles(self) -> dict[PodUID, PodLifecycle | None]:
        """The lifecycles of pods without a worker that differ from the published ones."""
        shown = self._shown
        waiting = {uid: self._roster[uid] for uid in self._without_worker if uid not in self._started}
        changed: dict[PodUID, PodLifecycle | None] = {
            uid: None
            for uid in self._looks
            if uid in shown and uid not in waiting and uid not in self._started and not self._has_worker(uid)
        }
        for uid, entry in waiting.items():
            known, wait = shown.get(uid), entry.admission_wait
            quarantine = wait.detail if wait is not None and is_quarantined(entry) else ""
            if known is None or known.has_worker or known.quarantine != quarantine:
                changed[uid] = PodLifecycle(
                    pod_ref(entry.pod),
                    entry.pod,
                    Stage.SYNCING,
                    self._now.wall,
                    entry.seen_at,
                    has_worker=False,
                    quarantine=quarantine,
                )
        return changed

    def left_to_next(self) -> LastPass:
        """What the next pass gets."""
        waiting, left = self._waiting(), self._left
        idle = (uid for uid in self._idle if uid not in self._started and uid not in self._forgotten)
        for uid in missing_keys(self._forgotten, self._observed):
            left.pop(uid, None)
        return LastPass(self._now, waiting, dict.fromkeys(chain(waiting, idle)), left)

    def _waiting(self) -> dict[PodUID, Wait]:
        """What each desired pod without a worker waits for. A wait that was there before keeps its start."""
        waiting: dict[PodUID, Wait] = {}
        for uid in self._without_worker:
            if uid not in self._started:
                known, wait = self._last.waiting.get(uid), self._wait_of(self._roster[uid])
                waiting[uid] = known if known is not None and replace(wait, since=known.since) == known else wait
        return waiting

    def _start(self, start: Start, entry: RosterPod | None) -> None:
        state, events = start
        self._started[state.ref.uid] = state.ref
        self.actions.append(StartWorker(state, events, entry))

    def _is_blocked(self, uid: PodUID, record: WorkerRecord[W]) -> bool:
        """Whether a new worker must wait: for the pause after a crash, or until the view shows the removal of the pod."""
        return record.pause is not None or self._is_removal_unseen(uid, record)

    def _is_removal_unseen(self, uid: PodUID, record: WorkerRecord[W]) -> bool:
        view = self._observed.get(uid)
        return record.removed_at is not None and view is not None and view.read_at < record.removed_at

    def _older_namesake(self, entry: RosterPod) -> PodRef | None:
        """The undesired pod with the full name of this static pod, which must end first; None if there is none."""
        if not is_static(entry.pod):
            return None
        if self._names is None:
            self._names = {ref.full_name: ref for ref in chain(self._unread_refs(), self._left_refs())}
        return self._names.get(pod_ref(entry.pod).full_name)

    def _left_refs(self) -> Iterator[PodRef]:
        """Pods with a worker that are not desired, and those that an earlier run of the agent has left in the runtime."""
        for uid in self._left:
            record, view = self._records.get(uid), self._observed.get(uid)
            if record is not None and record.worker is not None:
                yield record.worker.state.ref
            elif view is not None and view.is_alive and not (record and self._is_removal_unseen(uid, record)):
                yield view.ref

    def _unread_refs(self) -> Iterator[PodRef]:
        return (ref for ref in self._now.observed.unread if ref.uid not in self._roster)

    def _wait_of(self, entry: RosterPod) -> Wait:
        """What a desired pod that has no worker yet waits for."""
        wall, record = self._now.wall, self._records.get(pod_ref(entry.pod).uid)
        if entry.admission_wait is not None:
            return entry.admission_wait
        if self._now.observed.listed_at is None:
            detail = "its pods have not been listed yet"
            return Wait("container runtime", Owner.PLEG, wall, detail=detail, next_step="list them")
        if older := self._older_namesake(entry):
            what, detail = "older pod of the same name", f"the older pod {older} must end first"
            return Wait(what, Owner.POD_WORKER, wall, str(older.uid), detail=detail, next_step=TAKE_UP)
        if record is not None and record.pause is not None:
            return record.pause
        detail = "what it has of the pod is not known yet"
        return Wait("container runtime", Owner.PLEG, wall, detail=detail, next_step=TAKE_UP)


def _concerns_all(before: PodsSnapshot, now: PodsSnapshot) -> bool:
    """Whether something else than single pods has changed."""
    was, roster, seen, observed = before.roster, now.roster, before.observed, now.observed
    is_listed = observed.listed_at != seen.listed_at or observed.unread != seen.unread
    return is_listed or roster.sources_ready != was.sources_ready or roster.withheld != was.withheld


# One worker


def is_worker_done(lifecycle: PodLifecycle, removed: bool, is_desired: bool) -> bool:
    """Whether the worker of a finished pod ends. `removed`: its containers, sandboxes and logs are gone."""
    if lifecycle.stage is not Stage.FINISHED:
        return False
    if lifecycle.kill_reason is KillReason.RENEWED:
        return True
    if lifecycle.kill_reason is KillReason.DELETED:
        return removed and not is_desired
    return removed and lifecycle.kill_reason in REMOVING


def crash_pause(backoff: Backoff | None, message: str, at: float, wall: float) -> tuple[Backoff, Wait]:
    """The pause of a pod after a crash of its worker, and its back-off."""
    raised = CRASH_PAUSE.raised(backoff, at, at)
    next_at = wall + raised.delay_s
    return raised, Wait("retry", Owner.POD_WORKER, wall, "pod", INTERNAL_ERROR, message, "start afresh", next_at)


def workers_of_probes(records: Records[W], before: ProbeResults, now: ProbeResults) -> Iterator[W]:
    """The workers of pods with changed probe results; all of them if the watched probe kinds have changed."""
    changed = {container for container, _ in changed_keys(before.results, now.results)}
    for record in records.values():
        if (worker := record.worker) is not None:
            view = worker.state.view
            if before.watched != now.watched or (view is not None and any(c.id in changed for c in view.containers)):
                yield worker


def workers_of_content(records: Records[W], before: Content, now: Content) -> Iterator[W]:
    """The workers of pods that may be able to start because an API object has changed.

    The first answer for an object counts for none of them: the work that waited for it has already got it. A pod of more than
    `MANY_OBJECTS` is none of them before all are readable; it is tried again after its back-off anyway.
    """
    keys = (key for key in changed_content(before, now) if isinstance(key, ObjectKey))
    changed = {key for key in keys if key in before.objects}
    for record in records.values() if changed else ():
        worker = record.worker
        if worker is None or not worker.state.needs_content:
            continue
        wanted = start_keys(worker.state.pod)
        if not changed.isdisjoint(wanted) and not (len(wanted) > MANY_OBJECTS and _some_unreadable(wanted, now)):
            yield worker


def _some_unreadable(keys: frozenset[ObjectKey], content: Content) -> bool:
    return any(isinstance(content.objects.get(key), Unreadable) for key in keys)


def sandbox_in_use(state: PodWorkerState) -> SandboxID | None:
    """The sandbox in which containers of the pod run while no work is under way."""
    view = state.view
    if state.stage is not Stage.SYNCING or state.work is not Work.NONE or view is None or not view.running:
        return None
    return view.sandboxes[0].id if view.sandboxes else None


def _absent_view(state: PodWorkerState, observed: Observed) -> PodView | None:
    """An empty view, if a relist did not contain the pod and the worker does not know that yet."""
    listed_at = observed.listed_at
    if listed_at is None or state.ref in observed.unread:
        return None
    read_at = state.view.read_at if state.view is not None else 0.0
    is_known = state.view is not None and state.view.is_gone and read_at >= state.read_after
    return PodView(state.ref, read_at=listed_at) if listed_at > read_at and not is_known else None


def _is_view_overdue(state: PodWorkerState, observed: Observed) -> bool:
    """Whether the worker still needs a view from after its last work, although a relist has begun since."""
    listed_at = observed.listed_at
    if listed_at is None or state.view is None or state.work is not Work.NONE:
        return False
    return state.view.read_at < state.read_after < listed_at


# The first state and events of a worker, and those of changes

#: The first state of a worker, and its first events.
Start = tuple[PodWorkerState, tuple[Event, ...]]


def desired_start(entry: RosterPod, view: PodView | None, at: float, wall: float) -> Start:
    """The start of a desired pod's worker, which adopts the pod's sandboxes and containers in the runtime.

    `at`, `wall`: the current time on the monotonic and the wall clock.
    """
    ref, pod = pod_ref(entry.pod), entry.pod
    dates = _earlier_starts(entry, view)
    state = PodWorkerState(
        ref=ref,
        pod=pod,
        stage=Stage.SYNCING,
        started_wall=min((entry.seen_at, *dates)),
        active_since=min((wall_to_monotonic(date, at, wall) for date in dates), default=at),
        view=view if view is not None else PodView(ref, read_at=at),
        sizes=PodSizes.of_adopted(pod, entry.change),
    )
    has_ended = has_ended_in_api(pod)
    if has_ended and (view is None or not view.is_alive):
        kill = KillOrder(KillReason.COMPLETED, MIN_GRACE_S)
        state = replace(state, stage=Stage.TERMINATED, kill=kill, terminal=True)
    events: list[Event] = []
    if entry.rejection is not None:  # the first event, so that no work begins
        events.append(_refusal(entry.rejection))
    elif pod.metadata.deletionTimestamp or has_ended:
        events.append(SpecChanged(pod, "deleted or ended in the API"))
    if view is not None:
        events.append(RuntimeChanged(view, wall, "found running"))
    else:
        events.append(RuntimeChanged(PodView(ref, read_at=at), wall, "new pod"))
    return state, tuple(events)


def update_events(before: RosterPod | None, entry: RosterPod) -> tuple[Event, ...]:
    """The events of a running worker whose pod has a new roster entry. `before` None: it was an orphan."""
    if entry.rejection is not None and (before is None or before.rejection is None):
        return (_refusal(entry.rejection),)
    changed = SpecChanged(entry.pod, "manifest changed")
    if before is not None and before.seen_at != entry.seen_at and is_static(entry.pod):
        return KillRequested(KillReason.REMOVED, "it was away and has come back"), changed
    return (changed,)


def eviction_event(eviction: PodEviction) -> KillRequested:
    """The kill of a pod that the node evicts or shuts down. The pod fails, unless all its containers exit with 0, even if they
    do so when they are stopped."""
    override = StatusOverride(Phase.FAILED, eviction.reason, eviction.message, unless_succeeded=True)
    reason = KillReason.EVICTED if eviction.disrupts else KillReason.REJECTED
    reason = KillReason.SHUTDOWN if eviction.for_shutdown else reason
    return KillRequested(reason, eviction.reason, eviction.grace_s, override)


def _refusal(rejection: Rejection) -> KillRequested:
    """The kill of a pod that the node rejects, or that a pod of higher priority preempts."""
    if rejection.reason == PREEMPTING:
        override = StatusOverride(Phase.FAILED, rejection.reason, rejection.message, unless_succeeded=True)
        return KillRequested(KillReason.EVICTED, "preempted", override=override)
    override = StatusOverride(Phase.FAILED, rejection.reason, f"Pod was rejected: {rejection.message}")
    return KillRequested(KillReason.REJECTED, "rejected by the node", override=override)


def _earlier_starts(entry: RosterPod, view: PodView | None) -> tuple[float, ...]:
    """The pod's start times from before the agent's restart, by its status and its sandboxes, in wall seconds."""
    start_time = entry.pod.status.startTime
    sandboxes = view.sandboxes if view is not None else ()
    dates = (parse_time(start_time),) if start_time else ()
    return (*dates, *(sandbox.created_at / 1e9 for sandbox in sandboxes if sandbox.created_at))
