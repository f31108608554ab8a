"""Which pods have a worker, and what each worker is sent, from the desired and the observed pods.

Rules:
- A desired pod gets a worker once the runtime has been listed and what it holds of the pod has been read. A static pod also
  waits until no older pod of the same full name is left. A waiting pod publishes what it waits for.
- A pod that is no longer desired is killed. Before all sources have reported, absence from the roster kills nothing.
- A pod that runs but is not desired (an orphan) is killed with a grace period of one second.
- The worker of a pod of which nothing is left ends; if the pod is desired again, a new worker starts. The worker of a pod
  that was deleted in the API stays until the object is gone there, so that `finished` stays published until then.
- A pod that has ended in the API and of which nothing runs never runs again: its worker starts as terminated.
- After a crash of its worker, a pod pauses with back-off, then gets a new worker that starts from what is observed.

Times are monotonic seconds unless a name says wall. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from pykubelet.act.pods.api_content import start_keys
from pykubelet.act.pods.decide_worker_start import Start, desired_start, orphan_start, update_events
from pykubelet.act.pods.model import (
    REMOVING,
    Event,
    KillRequested,
    PodState,
    RuntimeChanged,
    Work,
)
from pykubelet.base.kit.backoff import Backoff, BackoffPolicy
from pykubelet.base.kit.changes import changed_keys, missing_keys
from pykubelet.base.kit.values import Value
from pykubelet.base.model.content import Content, ObjectKey, changed_content
from pykubelet.base.model.ids import PodRef, PodUID, SandboxID
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.reasons import INTERNAL_ERROR
from pykubelet.base.model.roster import Roster, RosterPod, is_static, pod_ref
from pykubelet.base.model.waits import Wait

CRASH_PAUSE = BackoffPolicy(initial_s=1.0, cap_s=60.0)
TAKE_UP = "take the pod up"


class HasPodState(Protocol):
    """The part of a running pod worker that decisions read."""

    @property
    def state(self) -> PodState:
        """The current state of the worker's pod."""
        ...


W = TypeVar("W", bound=HasPodState)


class WorkerRecord(Struct, Generic[W]):
    """All that the loop keeps of one pod: its worker, or why it has none. Changed by the loop alone."""

    worker: W | None = None
    #: The roster entry that the worker was sent last; None for an orphan.
    entry: RosterPod | None = None
    #: The worker was asked to kill the pod because the pod is not desired.
    kill_sent: bool = False
    #: When nothing of the pod was left; a view that was read earlier shows what has been removed since.
    removed_at: float | None = None
    #: The pause after a crash of the worker.
    pause: Wait | None = None
    #: The back-off of these pauses; kept while the pod is desired or observed.
    backoff: Backoff | None = None


Records = Mapping[PodUID, WorkerRecord[W]]


class PodsSnapshot(Value):
    """What one pass decides from. `at`: monotonic seconds, `wall`: wall seconds."""

    roster: Roster
    observed: Observed
    at: float = 0.0
    wall: float = 0.0


# Actions, in the order in which they are carried out


class StartWorker(Value):
    """Start a worker with this state and these first events. `entry` None: the pod is an orphan, and its kill is sent."""

    state: PodState
    events: tuple[Event, ...]
    entry: RosterPod | None = None


class UpdateWorker(Value):
    """The roster has a new entry for the pod."""

    uid: PodUID
    entry: RosterPod
    events: tuple[Event, ...]


class RequestKill(Value):
    """The pod is no longer desired."""

    uid: PodUID
    event: KillRequested


class SendView(Value):
    """The runtime shows the pod in another state."""

    uid: PodUID
    event: RuntimeChanged


class RequestRead(Value):
    """Have PLEG read the pod: its worker waits for a newer view than the last relist has brought."""

    ref: PodRef


class ForgetPod(Value):
    """Drop the pod's record."""

    uid: PodUID


Action = StartWorker | UpdateWorker | RequestKill | SendView | RequestRead | ForgetPod


class Decision(Value):
    """`shown`: changed lifecycles of pods that wait for a worker; None where a pod is to be shown no longer."""

    actions: tuple[Action, ...]
    shown: Mapping[PodUID, PodLifecycle | None]


def decide_workers(
    records: Records[W], shown: Mapping[PodUID, PodLifecycle], before: PodsSnapshot, now: PodsSnapshot
) -> Decision:
    """One pass over all pods. `shown`: the published lifecycles; `before`: the snapshot of the previous pass.

    The cost per pod that did not change is that of the C loops in `base/kit/changes.py`.
    """
    this = _Pass(records, before, now)
    if now.observed.listed_at is not None:
        this.update_workers()
        this.start_workers()
        if now.roster.sources_ready:
            this.kill_undesired()
            this.start_orphans()
        this.send_views()
        this.forget_pods()
    return Decision(tuple(this.actions), this.changed_waits(shown))


class _Pass(Generic[W]):
    """One pass under way."""

    def __init__(self, records: Records[W], before: PodsSnapshot, now: PodsSnapshot) -> None:
        self.actions: list[Action] = []
        self._records, self._before, self._now = records, before, now
        self._roster, self._observed = now.roster.pods, now.observed.pods
        self._started: dict[PodUID, PodRef] = {}
        self._idle = [uid for uid, record in records.items() if record.worker is None]
        without = missing_keys(self._roster, records) + [uid for uid in self._idle if uid in self._roster]
        self._without_worker = sorted(without, key=lambda uid: uid not in self._observed)

    def update_workers(self) -> None:
        for uid in changed_keys(self._before.roster.pods, self._roster):
            record, entry = self._records.get(uid), self._roster.get(uid)
            if record is not None and record.worker is not None and entry is not None and record.entry is not entry:
                self.actions.append(UpdateWorker(uid, entry, update_events(record.entry, entry)))

    def start_workers(self) -> None:
        """Those first of which the runtime holds something."""
        unread = self._now.observed.unread
        for uid in self._without_worker:
            entry, record = self._roster[uid], self._records.get(uid)
            is_blocked = entry.held is not None or (record is not None and self._is_blocked(uid, record))
            if is_blocked or pod_ref(entry.pod) in unread or self._older_namesake(entry) is not None:
                continue
            self._start(desired_start(entry, self._observed.get(uid), self._now.at, self._now.wall), entry)

    def kill_undesired(self) -> None:
        for uid in missing_keys(self._records, self._roster):
            record = self._records[uid]
            if record.worker is not None and not record.kill_sent:
                self.actions.append(RequestKill(uid, KillRequested(KillReason.REMOVED, "no longer desired")))

    def start_orphans(self) -> None:
        for uid in missing_keys(self._observed, self._roster):
            record, view = self._records.get(uid), self._observed[uid]
            is_taken = record is not None and (record.worker is not None or self._is_blocked(uid, record))
            if not is_taken and not view.is_gone:
                self._start(orphan_start(view, self._now.wall), None)

    def send_views(self) -> None:
        observed, wall = self._now.observed, self._now.wall
        for uid in missing_keys(self._records, self._observed):
            worker = self._records[uid].worker
            if worker is not None and (absent := _absent_view(worker.state, observed)) is not None:
                self.actions.append(SendView(uid, RuntimeChanged(absent, wall)))
        changed = changed_keys(self._before.observed.pods, self._observed)
        for uid in changed:
            record, view = self._records.get(uid), self._observed.get(uid)
            if record is not None and record.worker is not None and view is not None:
                self.actions.append(SendView(uid, RuntimeChanged(view.with_pending_exits(), wall)))
        if observed.listed_at != self._before.observed.listed_at:
            for uid in self._records.keys() & self._observed.keys() - set(changed):
                worker = self._records[uid].worker
                if worker is not None and _is_view_overdue(worker.state, observed):
                    self.actions.append(RequestRead(worker.state.ref))

    def forget_pods(self) -> None:
        for uid in self._idle:
            record = self._records[uid]
            is_known = uid in self._observed or uid in self._roster
            if uid in self._started or self._is_blocked(uid, record) or (record.backoff is not None and is_known):
                continue
            self.actions.append(ForgetPod(uid))

    def changed_waits(self, shown: Mapping[PodUID, PodLifecycle]) -> dict[PodUID, PodLifecycle | None]:
        """What pods without a worker wait for, where it is not what is shown."""
        waiting = {uid: self._waiting(self._roster[uid]) for uid in self._without_worker if uid not in self._started}
        changed: dict[PodUID, PodLifecycle | None] = {
            uid: None
            for uid in chain(missing_keys(shown, self._records), self._idle)
            if uid in shown and uid not in waiting and uid not in self._started
        }
        for uid, lifecycle in waiting.items():
            if _wait_texts(shown.get(uid)) != _wait_texts(lifecycle):
                changed[uid] = lifecycle
        return changed

    def _start(self, start: Start, entry: RosterPod | None) -> None:
        state, events = start
        self._started[state.ref.uid] = state.ref
        self.actions.append(StartWorker(state, events, entry))

    def _is_blocked(self, uid: PodUID, record: WorkerRecord[W]) -> bool:
        """A pause after a crash, or a removal that the runtime does not show yet."""
        return record.pause is not None or self._is_removal_unseen(uid, record)

    def _is_removal_unseen(self, uid: PodUID, record: WorkerRecord[W]) -> bool:
        view = self._observed.get(uid)
        return record.removed_at is not None and view is not None and view.read_at < record.removed_at

    def _older_namesake(self, entry: RosterPod) -> PodRef | None:
        """The other pod of a static pod's full name that must end first."""
        if not is_static(entry.pod):
            return None
        mine = pod_ref(entry.pod)
        others = chain(self._worker_refs(), self._orphan_refs())
        return next((ref for ref in others if ref.full_name == mine.full_name and ref.uid != mine.uid), None)

    def _worker_refs(self) -> Iterator[PodRef]:
        """Pods with a worker, except desired ones from the API server: these do not collide with static pods."""
        workers = ((uid, r.worker.state.ref) for uid, r in self._records.items() if r.worker is not None)
        for uid, ref in chain(self._started.items(), workers):
            entry = self._roster.get(uid)
            if entry is None or is_static(entry.pod):
                yield ref

    def _orphan_refs(self) -> Iterator[PodRef]:
        """What an earlier run of the agent has left in the runtime."""
        for uid in missing_keys(self._observed, self._roster):
            view, record = self._observed[uid], self._records.get(uid)
            if view.is_alive and (record is None or not self._is_removal_unseen(uid, record)):
                yield view.ref
        for ref in self._now.observed.unread:
            if ref.uid not in self._roster:
                yield ref

    def _waiting(self, entry: RosterPod) -> PodLifecycle:
        """The lifecycle of a desired pod that has no worker yet."""
        ref, wall, record = pod_ref(entry.pod), self._now.wall, self._records.get(pod_ref(entry.pod).uid)
        if entry.held is not None:
            wait = entry.held
        elif self._now.observed.listed_at is None:
            detail = "its pods have not been listed yet"
            wait = Wait("container runtime", "observe/pleg", wall, detail=detail, next_step="list them")
        elif older := self._older_namesake(entry):
            what, detail = "older pod of the same name", f"the older pod {older} must end first"
            wait = Wait(what, "act/pods", wall, str(older.uid), detail=detail, next_step=TAKE_UP)
        elif record is not None and record.pause is not None:
            wait = record.pause
        else:
            detail = "what it has of the pod is not known yet"
            wait = Wait("container runtime", "observe/pleg", wall, detail=detail, next_step=TAKE_UP)
        return PodLifecycle(ref, entry.pod, Stage.SYNCING, wall, entry.seen_at, waits=(wait,))


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
    """The pause of a pod whose worker has crashed, and its back-off."""
    raised = CRASH_PAUSE.raised(backoff, at, at)
    next_at = wall + raised.delay_s
    return raised, Wait("retry", "act/pods", wall, "pod", INTERNAL_ERROR, message, "start afresh", next_at)


def workers_of_probes(records: Records[W], before: ProbeResults, now: ProbeResults) -> Iterator[W]:
    """The workers that changed probe results concern."""
    changed = {container for container, _ in changed_keys(before.results, now.results)}
    for record in records.values():
        if (worker := record.worker) is not None:
            view = worker.state.view
            if before.watched != now.watched or (view is not None and any(c.id in changed for c in view.containers)):
                yield worker


def workers_of_content(records: Records[W], before: Content, now: Content) -> Iterator[W]:
    """The workers of pods that a changed API object may let start.

    The first answer for an object concerns none of them: the work that waited for it has received it.
    """
    keys = (key for key in changed_content(before, now) if isinstance(key, ObjectKey))
    changed = {key for key in keys if key in before.objects}
    for record in records.values() if changed else ():
        worker = record.worker
        if worker is None or not worker.state.needs_content or changed.isdisjoint(start_keys(worker.state.pod)):
            continue
        yield worker


def sandbox_in_use(state: PodState) -> SandboxID | None:
    """The sandbox in which containers of the pod run while no work is under way."""
    view = state.view
    if state.stage is not Stage.SYNCING or state.work is not Work.NONE or view is None or not view.running:
        return None
    return view.sandboxes[0].id if view.sandboxes else None


def _absent_view(state: PodState, observed: Observed) -> PodView | None:
    """An empty view, if a relist did not contain the pod and the worker does not know that yet."""
    listed_at = observed.listed_at
    if listed_at is None or state.ref in observed.unread:
        return None
    read_at = state.view.read_at if state.view is not None else 0.0
    is_known = state.view is not None and state.view.is_gone and read_at >= state.read_after
    return PodView(state.ref, read_at=listed_at) if listed_at > read_at and not is_known else None


def _is_view_overdue(state: PodState, observed: Observed) -> bool:
    """The worker needs a view from after its last work, and the last relist, which began later, brought none."""
    listed_at = observed.listed_at
    if listed_at is None or state.view is None or state.work is not Work.NONE:
        return False
    return state.view.read_at < state.read_after < listed_at


def _wait_texts(lifecycle: PodLifecycle | None) -> list[tuple[str, str, str]] | None:
    return None if lifecycle is None else [(wait.what, wait.subject, wait.detail) for wait in lifecycle.waits]
