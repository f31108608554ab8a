"""The decisions of the publisher: the pure function `decide` maps its state and events to the next state and requests.

Rules:
- One request at a time for each pod, and at most `AT_ONCE` in total.
- Level-triggered: statuses are not queued. A request has the newest status when it is sent, because the API server may have
  been away for hours. A status that another client has overwritten is restored.
- If the answer differs from the request (a server may drop unknown fields), the request is not repeated.
- When nothing is left of a deleted pod and its final status is published, it is deleted for good. No patch follows.
- What a client may wait for is sent at once: final statuses and last deletions first, then changes of readiness, then others, of which
  each pod has a limited number in a second. What more follows soon, such as one of several containers that start, waits shortly.
- Statuses with little content (such as ContainerCreating) are deferred for `defer_s`, longer if there are many, and much longer
  after another one of the same pod, unless a condition changed. Usually the start of the containers replaces them. For a pod that
  is being deleted, little more than its final status is sent.
- The status from before a restart of the agent is not sent, because the API server may have a newer one.
- A failed request is repeated with exponential back-off, also after a conflict; if the pod was replaced, the watch shows
  it. While the server cannot be reached, all requests pause together. When `ApiState` shows that it is back, requests
  without an answer are sent at once.

The cost of a decision depends on the pods that have changed or are due, apart from the deferred ones, which are all looked at
every `DEFERRED_EACH_S`, and from copies of the collections, which take microseconds for thousands of pods.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any, assert_never

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy, Failures
from pykubelet.base.kit.log_lines import LogNote
from pykubelet.base.kit.values import changed_keys, edited, replace
from pykubelet.base.model.diagnostics import Diagnostics, of_waits
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import pod_ref
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.report.status.merge import (
    Urgency,
    differs_in_condition,
    may_delete,
    newer,
    revived,
    status_for_api,
    urgency_of,
)
from pykubelet.report.status.patch_inputs import PatchSnapshot, is_same, sources_of
from pykubelet.report.status.records import (
    CHANGE_EACH_S,
    DEFERRED,
    Agenda,
    Deleted,
    Event,
    Patched,
    PublishPeriods,
    PublishState,
    Request,
    RequestFailed,
    RequestFailure,
    SendDeletion,
    SendPatch,
    Settled,
    SnapshotsChanged,
    StatusChange,
    StatusRecord,
)

#: The most requests that are under way.
AT_ONCE = 10
#: Seconds that each deferrable patch adds to the delay of all.
DEFER_EACH_S = 0.2
#: The pause after a deferrable patch of the same pod that changed no condition.
DEFER_AGAIN_S = 20.0
#: How long a patch waits that the pod's final status will probably replace.
SUPERSEDED_S = 20.0
#: Seconds between two looks at the deferred patches, because there may be many of them.
DEFERRED_EACH_S = 0.2

Decision = tuple[PublishState, list[Request], list[LogNote]]


def decide(state: PublishState, events: Iterable[Event], now: float, periods: PublishPeriods) -> Decision:
    """The next state, the requests to send, the most urgent first, and what is to be logged. `now`: monotonic seconds."""
    step = _Step(state, now, periods)
    for event in events:
        step.take(event)
    step.forget_gone()
    wake_at = state.wake_at
    if step.may_send or (wake_at is not None and now >= wake_at):
        step.send_due()
        wake_at = step.next_moment()
    return step.end(wake_at), step.requests, step.notes


def diagnostics(state: PublishState) -> Diagnostics:
    """Why statuses have not reached the API server, by the UIDs that the pods have on this node."""
    records = state.records.values()
    waits = {record.here: (record.failure.wait,) for record in records if record.failure is not None}
    for record in records:
        finalizers = ", ".join(record.known.metadata.finalizers)
        if record.deleted_wall is not None and finalizers and record.uid not in waits:
            waits[record.uid] = (Wait("finalizers", Owner.API_SERVER, record.deleted_wall, detail=finalizers),)
    return of_waits(waits)


class _Step:
    """One decision: the state that it changes (its collections are copied once), and what it has decided so far.

    `may_send`: something has changed that decides on what is sent. `answered`: the pods of which a request was answered.
    """

    def __init__(self, state: PublishState, now: float, periods: PublishPeriods) -> None:
        self.before, self.now, self.periods = state, now, periods
        self.api, self.snapshot, self.away, self.under_way = state.api, state.snapshot, state.away, state.under_way
        self.records = edited(state.records)
        agenda = state.agenda
        self.later, self.due, self.deferred = list(agenda.later), list(agenda.due), dict(agenda.deferred)
        self.deferred_at = agenda.deferred_at
        self.requests: list[Request] = []
        self.notes: list[LogNote] = []
        self.answered: list[PodUID] = []
        self.may_send = False

    def end(self, wake_at: float | None) -> PublishState:
        """The next state."""
        agenda = Agenda(tuple(self.later), tuple(self.due), self.deferred, self.deferred_at)
        return PublishState(self.api, self.snapshot, self.records, agenda, self.under_way, self.away, wake_at)

    def note(self, record: StatusRecord, text: str, *, is_problem: bool = False, **fields: str) -> None:
        """Have a line about the pod logged."""
        self.notes.append(LogNote(text, {"pod": pod_ref(record.known), **fields}, is_problem))

    # Records

    def put(self, record: StatusRecord) -> None:
        """Store the record, and its place in the agenda."""
        self._leave(record.uid)
        self.records[record.uid] = record
        if record.urgency in DEFERRED:
            self.deferred[record.uid] = None
        elif record.urgency is not None and not record.is_under_way:
            insort(self.later, (record.due_at, record.uid))

    def _leave(self, uid: PodUID) -> None:
        record = self.records.get(uid)
        if record is None or record.urgency is None:
            return
        if record.urgency in DEFERRED:
            del self.deferred[uid]
        elif not record.is_under_way and not _drop(self.later, (record.due_at, uid)):
            _drop(self.due, (record.urgency, record.since, uid))

    def forget_gone(self) -> None:
        """Forget the pods that the API server does not have any more. One with a request under way is forgotten later."""
        pods = self.snapshot.pods
        for uid in dict.fromkeys((*self.answered, *changed_keys(self.before.snapshot.pods, pods))):
            record = self.records.get(uid)
            if uid not in pods and record is not None and not record.is_under_way:
                self._leave(uid)
                del self.records[uid]
                self.may_send = True

    # Events

    def take(self, event: Event) -> None:
        """Take one event."""
        match event:
            case SnapshotsChanged():
                self._inputs_changed(event)
                return
            case Patched(request, there):
                self._patched(self._answered(request), request, there)
            case Deleted(request, wall):
                record = self._without_failure(self._answered(request))
                self.put(replace(record, deletes=False, deleted_wall=wall))
            case RequestFailed(request):
                self._failed(self._answered(request), event)
            case _:
                assert_never(event)
        self.may_send = True

    def _inputs_changed(self, event: SnapshotsChanged) -> None:
        before = self.snapshot
        is_old = event.pods is before.pods and event.roster is before.roster
        sources = before.sources if is_old else sources_of(event.pods, event.roster)
        now = self.snapshot = PatchSnapshot(event.pods, event.roster, event.statuses, event.lifecycles, sources)
        if event.api.is_back_since(self.api):
            self._server_is_back()
        self.api = event.api
        for uid in now.changed_since(before):
            inputs, here, record = now.of(uid), now.sources.get(uid, uid), self.records.get(uid)
            if record is None:
                self._plan(StatusRecord(uid, inputs.api, here, inputs))
            elif is_same(record.inputs, inputs):
                self.records[uid] = replace(record, here=here)
            else:
                self._plan(replace(record, known=newer(record.known, inputs.api), here=here, inputs=inputs))

    def _server_is_back(self) -> None:
        """Send at once what got no answer. This looks at all pods, once for each time that the server was away."""
        self.away, self.may_send = Failures(), True
        for record in list(self.records.values()):
            if (failure := record.failure) is not None and failure.is_unanswered:
                self.put(replace(record, failure=replace(failure, row=Failures(), is_unanswered=False)))

    def _plan(self, record: StatusRecord) -> None:
        """Store the record with what its inputs and its copy require to be sent."""
        before, inputs = self.records.get(record.uid, record), record.inputs
        patch = self._change_of(record)
        deletes = inputs.is_finished and record.deleted_wall is None and may_delete(record.known)
        if deletes or record.deleted_wall is not None:
            patch = None  # the object is about to be deleted
        record = replace(record, patch=patch, deletes=deletes)
        if before.urgency is None:
            record = replace(record, since=self.now, crowd=0)
        self.put(record)
        self.may_send |= before.urgency is not None or record.urgency is not None

    def _change_of(self, record: StatusRecord) -> StatusChange | None:
        status, has_ended, there = record.inputs.status, record.inputs.has_ended, record.known.status
        if status is None:
            return None
        sent = record.settled
        if sent is not None and sent.status is status and sent.has_ended == has_ended and sent.answer == there:
            return None
        if container := revived(record.known, status):
            text = "not publishing: the status would revert a terminated container to running"
            self.note(record, text, is_problem=True, container=container)
            return None
        wanted = status_for_api(record.known, status, has_ended=has_ended)
        if wanted is None or wanted == there:
            return None
        urgency = urgency_of(record.known, wanted, is_held_up=record.inputs.is_held_up)
        return StatusChange(wanted, urgency, differs_in_condition(there, wanted))

    # Answers

    def _answered(self, request: Request) -> StatusRecord:
        """The record of the pod, without a request under way."""
        self.under_way -= 1
        self.answered.append(request.uid)
        self.put(replace(self.records[request.uid], is_under_way=False))
        return self.records[request.uid]

    def _without_failure(self, record: StatusRecord) -> StatusRecord:
        self.away = Failures()
        if record.failure is not None:
            self.note(record, "a pod's status is published again", uid=record.uid)
        return replace(record, failure=None)

    def _patched(self, record: StatusRecord, request: SendPatch, there: Pod | None) -> None:
        """Note the answer, and plan again, because the inputs may have changed meanwhile."""
        status = record.known.status
        if there is not None:
            record, status = self._without_failure(record), there.status
            patched = replace(record.known, metadata=there.metadata, status=status)
            record = replace(record, known=newer(patched, record.known))
        sent = request.inputs
        if sent.status is not None:
            record = replace(record, settled=Settled(sent.status, sent.has_ended, status))
        self._plan(record)

    def _failed(self, record: StatusRecord, event: RequestFailed) -> None:
        error, periods, now = event.error, self.periods, self.now
        if error.is_not_found:  # the pod is gone: the watch shows it
            self.put(replace(record, patch=None, deletes=False))
            return
        before, is_unanswered = record.failure, error.status == 0
        policy = BackoffPolicy(periods.retry_s, periods.retry_max_s)
        row = (before.row if before is not None else Failures()).another(
            policy, now, event.fraction, error.retry_after_s or 0.0
        )
        if is_unanswered and now >= self.away.until:
            self.away = self.away.another(BackoffPolicy(periods.retry_s, periods.away_max_s), now, event.fraction)
        what = "status" if isinstance(event.request, SendPatch) else "last deletion"
        wait = Wait(
            "the API server",
            Owner.STATUS_MANAGER,
            before.wait.since if before is not None else event.wall,
            what,
            error.reason,
            error.message,
            "send it again",
            event.wall + max(0.0, max(row.until, self.away.until) - now),
        )
        if row.count == 1:
            text, fields = "cannot publish a pod's status", {"uid": record.uid, "what": what, "error": error.message}
            self.note(record, text, is_problem=True, **fields)
        self.put(replace(record, failure=RequestFailure(row, wait, is_unanswered)))

    # Sending

    def send_due(self) -> None:
        """Decide which requests begin now: those that are due, the most urgent first."""
        while self.later and self.later[0][0] <= self.now:
            record = self.records[self.later.pop(0)[1]]
            assert record.urgency is not None
            insort(self.due, (record.urgency, record.since, record.uid))
        due = [*self.due, *sorted(self._deferred_due())] if self.now >= self.deferred_at else self.due
        free = AT_ONCE - self.under_way if self.now >= self.away.until else 0
        for _, _, uid in due[: max(0, free)]:
            self._begin(self.records[uid])

    def _deferred_due(self) -> list[tuple[Urgency, float, PodUID]]:
        """The deferred patches that are due. Deferrable ones are delayed in proportion to their highest number so far."""
        self.deferred_at = self.now + DEFERRED_EACH_S
        records = [self.records[uid] for uid in self.deferred]
        crowd = sum(record.urgency is Urgency.DEFERRABLE for record in records)
        found = []
        for record in records:
            if record.urgency is Urgency.DEFERRABLE and record.crowd < crowd:
                record = self.records[record.uid] = replace(record, crowd=crowd)
            if not record.is_under_way and self._deferred_until(record) <= self.now:
                assert record.urgency is not None
                found.append((record.urgency, record.since, record.uid))
        return found

    def _deferred_until(self, record: StatusRecord) -> float:
        if record.urgency is Urgency.SUPERSEDED:
            return max(record.since + SUPERSEDED_S, record.free_at)
        at = max(record.since + (self.periods.defer_s + DEFER_EACH_S * record.crowd), record.free_at)
        is_repeated = record.patch is not None and not record.patch.changes_condition
        return max(at, record.deferrable_at + DEFER_AGAIN_S) if is_repeated else at

    def _begin(self, record: StatusRecord) -> None:
        patch, uid, known = record.patch, record.uid, record.known
        if patch is None:
            self.requests.append(SendDeletion(uid, known))
        else:
            self.requests.append(SendPatch(uid, known, patch.wanted, patch.urgency, record.inputs, record.since))
        begun = replace(record, is_under_way=True)
        if record.urgency is Urgency.DEFERRABLE:
            begun = replace(begun, deferrable_at=self.now)
        elif record.urgency is Urgency.CHANGED:
            begun = replace(begun, changes_until=max(self.now, record.changes_until) + CHANGE_EACH_S)
        self.put(begun)
        self.under_way += 1

    def next_moment(self) -> float | None:
        """When something is due that is not due now, or may be. None: what is due now waits for the end of a request."""
        times = [self.deferred_at] if self.deferred else []
        if self.due and self.away.until > self.now:
            times.append(self.away.until)
        elif self.later:
            times.append(max(self.later[0][0], self.away.until))
        return min(times, default=None)


def _drop(entries: list[Any], entry: object) -> bool:
    """Remove the entry from the sorted list; False if it has none."""
    at = bisect_left(entries, entry)
    found = at < len(entries) and entries[at] == entry
    if found:
        del entries[at]
    return found
