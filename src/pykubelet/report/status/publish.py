"""The publisher: patches the pods' statuses at the API server, and deletes finished pods there.

Owns: one record for each pod, their `Diagnostics`, and the times of requests: one request at a time for each pod, and at most
`AT_ONCE` in total. Reads: `ApiPods`, `Roster`, `Statuses`, `Lifecycles`, `ApiState`. `merge` makes the content of a
patch from the newest known copy of the pod, from the watch or from the answer to the last patch.

Rules:
- Level-triggered: statuses are not queued. A request has the newest status when it is sent, because the API server may have
  been away for hours. A status that another client has overwritten is restored.
- If the answer differs from the request (a server may drop unknown fields), the request is not repeated.
- When nothing is left of a deleted pod and its final status is published, it is deleted for good. No patch follows.
- Final statuses and last deletions are sent first, then changes of readiness, then other changes. Statuses with little
  content (such as ContainerCreating) wait for `quiet_s`, longer if there are many, and much longer after another one of the
  same pod, unless a condition changed. Usually the start of the containers replaces them. For a pod that is being deleted,
  little more than its final status is sent.
- The status from before a restart of the agent is not sent, because the API server may have a newer one.
- A failed request is repeated with exponential back-off, also after a conflict; if the pod was replaced, the watch shows
  it. While the server cannot be reached, all requests pause together. When `ApiState` shows that it is back, requests
  without an answer are sent at once.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Struct

from pykubelet.base.api.core import ObjectMeta, Pod, PodStatus
from pykubelet.base.kit.cells import Cell, LazyCellWriter, set_on_change
from pykubelet.base.kit.changes import missing_keys
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Histogram
from pykubelet.base.kit.retries import Retries
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.apistate import ApiState
from pykubelet.base.model.diagnostics import Diagnostics, of_waits
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.roster import ApiPods, Roster, pod_ref
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.status.merge import (
    Urgency,
    differs_in_condition,
    final_delete,
    may_delete,
    newer,
    render_patch,
    revived,
    status_for_api,
    urgency_of,
)
from pykubelet.report.status.patch_inputs import PatchInput, PatchSnapshot, is_same, sources_of

log = Log("status")
AT_ONCE = 10
NEWS_S = 0.1
#: Seconds that each pending quiet patch adds to the delay of all.
QUIET_EACH_S = 0.2
QUIET_AGAIN_S = 20.0
LATE_S = 20.0
#: Seconds between two passes over the patches that may wait, because there may be many of them.
PATIENCE_S = 0.2
_PATIENT = (Urgency.QUIET, Urgency.LATE)
_ALL = "all"
SYNC_DURATIONS = Histogram(
    "kubelet_pod_status_sync_duration_seconds",
    "Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the"
    " API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
    (),
    (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0),
)


class PublishPeriods(Value):
    """Seconds. `quiet_s`: see the rules. `retry_s`: the first back-off after a failure, doubling to `retry_max_s`; for all
    requests together, while the server cannot be reached, to `away_max_s`."""

    quiet_s: float = 1.0
    retry_s: float = 0.2
    retry_max_s: float = 20.0
    away_max_s: float = 5.0


class PublishInputs(Value):
    """The cells that the publisher reads."""

    pods: Cell[ApiPods]
    roster: Cell[Roster]
    statuses: Cell[Statuses]
    lifecycles: Cell[Lifecycles]
    api: Cell[ApiState]


class _Answer(msgspec.Struct, frozen=True):
    """The parts of the answer to a status patch that may have changed."""

    metadata: ObjectMeta
    status: PodStatus


class _Patch(Value):
    """A patch to `wanted`. `changes_condition`: a condition becomes True, or is no longer True."""

    wanted: PodStatus
    urgency: Urgency
    changes_condition: bool


class _PodRecord(Struct):
    """One pod of the API server.

    `known`: its newest copy. `here`: its UID on this node. `inputs`: those that `patch` was made from. `deletes`: its last
    deletion must be sent. `since`: when there first was something to send (monotonic seconds). `crowd`: the highest number of
    pending quiet patches since then. `quiet_at`: when the last quiet patch was sent (monotonic seconds). `settled`: the status
    that was sent last, whether the pod had ended, and the answer.
    """

    known: Pod
    here: PodUID
    inputs: PatchInput | None = None
    patch: _Patch | None = None
    deletes: bool = False
    since: float = 0.0
    crowd: int = 0
    quiet_at: float = float("-inf")
    settled: tuple[PodStatus, bool, PodStatus] | None = None
    is_busy: bool = False
    is_deleted: bool = False

    @property
    def urgency(self) -> Urgency | None:
        """The urgency of the request to send; None: there is nothing to send."""
        return self.patch.urgency if self.patch is not None else Urgency.END if self.deletes else None


class StatusPublisher:
    """`run` never returns."""

    def __init__(
        self,
        client: ApiClient,
        inputs: PublishInputs,
        diagnostics: LazyCellWriter[Diagnostics],
        clock: Clock,
        periods: PublishPeriods | None = None,
    ) -> None:
        self._client = client
        self._inputs = inputs
        self._clock = clock
        self._periods = periods or PublishPeriods()
        self._api = inputs.api.get()
        self._records: dict[PodUID, _PodRecord] = {}
        # pods with something to send, by whether it may wait; pods that were deleted for good and still exist
        self._prompt: set[PodUID] = set()
        self._patient: set[PodUID] = set()
        self._patient_at = 0.0
        self._over: dict[PodUID, float] = {}  # since when, in wall seconds
        self._busy = 0
        self._retries = Retries[PodUID](self._periods.retry_s, self._periods.retry_max_s)
        self._away = Retries[str](self._periods.retry_s, self._periods.away_max_s)
        self._unanswered: set[PodUID] = set()
        self._failures: dict[PodUID, Wait] = {}
        self._snapshot = PatchSnapshot()
        self._must_send = False
        self._wakeup = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._supervisor = Supervisor("publisher")
        diagnostics.answer_with(self._diagnostics)

    async def run(self) -> None:
        """Keep the API server's copies of pod statuses equal to those of this node. Never returns."""
        async with self._supervisor as supervisor:
            cells = self._inputs
            with set_on_change(self._wakeup, cells.pods, cells.roster, cells.statuses, cells.lifecycles, cells.api):
                supervisor.start_root("publisher-send", self._follow())
                raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            self._note_server()
            self._update()
            if self._must_send:
                self._must_send = False
                self._send_due()

    def _reschedule(self) -> None:
        """Wake the loop to send the requests that are due."""
        self._must_send = True
        self._wakeup.set()

    def _note_server(self) -> None:
        before, self._api = self._api, self._inputs.api.get()
        if self._api.is_back_since(before):
            self._away.succeeded(_ALL)
            for uid in self._unanswered:
                self._retries.retry_now(uid)
            self._unanswered.clear()
            self._must_send = True

    # Planning

    def _update(self) -> None:
        cells, before = self._inputs, self._snapshot
        pods, roster = cells.pods.get().pods, cells.roster.get()
        is_old = pods is before.pods and roster is before.roster
        sources = before.sources if is_old else sources_of(pods, roster)
        now = self._snapshot = PatchSnapshot(pods, roster, cells.statuses.get(), cells.lifecycles.get().pods, sources)
        if gone := missing_keys(self._records, pods):
            self._forget(gone)
        for uid in now.changed_since(before):
            self._update_pod(uid, now)

    def _forget(self, gone: list[PodUID]) -> None:
        for uid in gone:
            if self._records[uid].is_busy:
                continue
            del self._records[uid]
            self._enter(uid, None)
            self._over.pop(uid, None)
            self._retries.succeeded(uid)
            self._unanswered.discard(uid)
            self._failures.pop(uid, None)
            self._must_send = True

    def _update_pod(self, uid: PodUID, now: PatchSnapshot) -> None:
        inputs, here = now.of(uid), now.sources.get(uid, uid)
        record = self._records.get(uid)
        if record is None:
            record = self._records[uid] = _PodRecord(inputs.api, here)
        record.here = here
        if record.inputs is None or not is_same(record.inputs, inputs):
            record.inputs = inputs
            record.known = newer(record.known, inputs.api)
            self._plan(uid, record, inputs)

    def _plan(self, uid: PodUID, record: _PodRecord, inputs: PatchInput) -> None:
        had = record.urgency
        record.patch = self._patch(record, inputs)
        record.deletes = inputs.is_finished and not record.is_deleted and may_delete(record.known)
        if record.deletes or record.is_deleted:
            record.patch = None  # the object is about to be deleted
        if had is None:
            record.since, record.crowd = self._clock.monotonic(), 0
        self._enter(uid, record.urgency)
        self._must_send |= had is not None or record.urgency is not None

    def _enter(self, uid: PodUID, urgency: Urgency | None) -> None:
        """Add the pod to those with something to send, by urgency. None: there is nothing to send."""
        self._prompt.discard(uid)
        self._patient.discard(uid)
        if urgency is not None:
            (self._patient if urgency in _PATIENT else self._prompt).add(uid)

    def _patch(self, record: _PodRecord, inputs: PatchInput) -> _Patch | None:
        status = inputs.status
        if status is None:
            return None
        if record.settled is not None:
            sent, ended, answer = record.settled
            if sent is status and ended == inputs.has_ended and answer == record.known.status:
                return None
        if container := revived(record.known, status):
            log.warning(
                "not publishing: the status would revert a terminated container to running",
                pod=pod_ref(record.known),
                container=container,
            )
            return None
        wanted = status_for_api(record.known, status, has_ended=inputs.has_ended)
        if wanted is None or wanted == record.known.status:
            return None
        urgency = urgency_of(record.known, wanted, is_held_up=inputs.is_held_up)
        return _Patch(wanted, urgency, differs_in_condition(record.known.status, wanted))

    # Sending

    def _send_due(self) -> None:
        """Start the requests that are due, the most urgent first, and set the timer for the rest."""
        now = self._clock.monotonic()
        due: list[tuple[Urgency, float, PodUID]] = []
        later: list[float] = []
        waiting, pauses = self._prompt, {Urgency.NEWS: NEWS_S, Urgency.LATE: LATE_S}
        if now >= self._patient_at:
            waiting, self._patient_at = self._prompt | self._patient, now + PATIENCE_S
            self._count_quiet()
        for uid in waiting:
            record = self._records[uid]
            urgency = record.urgency
            if record.is_busy or urgency is None:
                continue
            if urgency is Urgency.QUIET:
                pauses[urgency] = self._periods.quiet_s + QUIET_EACH_S * record.crowd
            at = max(record.since + pauses.get(urgency, 0.0), self._retries.free_at(uid), self._away.free_at(_ALL))
            if urgency is Urgency.QUIET and record.patch is not None and not record.patch.changes_condition:
                at = max(at, record.quiet_at + QUIET_AGAIN_S)
            if at <= now:
                due.append((urgency, record.since, uid))
            elif urgency not in _PATIENT:
                later.append(at)
        for _, _, uid in sorted(due)[: max(0, AT_ONCE - self._busy)]:
            self._start(uid, self._records[uid])
        if self._patient:
            later.append(self._patient_at)
        self._wake_at(min(later, default=None), now)

    def _count_quiet(self) -> None:
        """Delay low-priority patches in proportion to the number that is pending."""
        quiet = [record for uid in self._patient if (record := self._records[uid]).urgency is Urgency.QUIET]
        for record in quiet:
            record.crowd = max(record.crowd, len(quiet))

    def _wake_at(self, at: float | None, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.001, at - now), self._reschedule)

    def _start(self, uid: PodUID, record: _PodRecord) -> None:
        assert record.inputs is not None
        record.is_busy = True
        self._busy += 1
        if record.patch is not None and record.patch.urgency is Urgency.QUIET:
            record.quiet_at = self._clock.monotonic()
        work = (
            self._patched(uid, record, record.inputs, record.patch)
            if record.patch is not None
            else self._deleted(uid, record)
        )
        self._supervisor.start_root(f"publish-{uid}", self._tracked(record, work))

    async def _tracked(self, record: _PodRecord, work: Any) -> None:
        try:
            await work
        finally:
            record.is_busy = False
            self._busy -= 1
            self._reschedule()

    async def _patched(self, uid: PodUID, record: _PodRecord, inputs: PatchInput, patch: _Patch) -> None:
        body = render_patch(record.known, patch.wanted)
        if body is None:  # only the order of conditions differs
            self._settle(uid, record, inputs, record.known.status)
            return
        try:
            answer = await self._client.patch(f"{_path(record.known)}/status", body, PatchKind.STRATEGIC, _Answer)
        except ApiError as error:
            self._failed(uid, record, error, "status")
            return
        self._went_well(uid, record)
        SYNC_DURATIONS.observe(self._clock.monotonic() - record.since)
        fields = ",".join(sorted(body["status"]))
        log.debug("status patched", pod=pod_ref(record.known), uid=uid, urgency=patch.urgency.name, fields=fields)
        patched = replace(record.known, metadata=answer.metadata, status=answer.status)
        record.known = newer(patched, record.known)
        self._settle(uid, record, inputs, answer.status)

    def _settle(self, uid: PodUID, record: _PodRecord, inputs: PatchInput, answer: PodStatus) -> None:
        """Note the answer to the patch made from `inputs`, and plan again, because the inputs may have changed meanwhile."""
        if inputs.status is not None:
            record.settled = (inputs.status, inputs.has_ended, answer)
        if record.inputs is not None:
            self._plan(uid, record, record.inputs)

    async def _deleted(self, uid: PodUID, record: _PodRecord) -> None:
        try:
            await self._client.delete(_path(record.known), final_delete(record.known))
        except ApiError as error:
            if not error.is_not_found:  # if the name now belongs to another pod, the watch shows it
                self._failed(uid, record, error, "last deletion")
                return
        self._went_well(uid, record)
        record.is_deleted, record.deletes = True, False
        self._enter(uid, None)
        self._over.setdefault(uid, self._clock.wall())
        log.info("pod deleted for good", pod=pod_ref(record.known), uid=uid)

    def _failed(self, uid: PodUID, record: _PodRecord, error: ApiError, what: str) -> None:
        now, at_least = self._clock.monotonic(), error.retry_after_s or 0.0
        if error.is_not_found:
            record.patch = None  # the pod is gone: the watch shows it
            self._enter(uid, None)
            return
        count = self._retries.failed(uid, now, at_least)
        if error.status > 0:
            self._unanswered.discard(uid)
        else:
            self._unanswered.add(uid)
            if now >= self._away.free_at(_ALL):
                self._away.failed(_ALL, now)
        wall, free_at = self._clock.wall(), max(self._retries.free_at(uid), self._away.free_at(_ALL))
        since = self._failures[uid].since if uid in self._failures else wall
        self._failures[uid] = Wait(
            "the API server",
            Owner.STATUS_MANAGER,
            since,
            what,
            error.reason,
            error.message,
            "send it again",
            wall + max(0.0, free_at - now),
        )
        if count == 1:
            log.warning(
                "cannot publish a pod's status", pod=pod_ref(record.known), uid=uid, what=what, error=error.message
            )

    def _went_well(self, uid: PodUID, record: _PodRecord) -> None:
        if self._away.succeeded(_ALL):
            self._reschedule()
        self._unanswered.discard(uid)
        self._failures.pop(uid, None)
        if self._retries.succeeded(uid):
            log.info("a pod's status is published again", pod=pod_ref(record.known), uid=uid)

    def _diagnostics(self) -> Diagnostics:
        """Why statuses have not reached the API server, by the UIDs that the pods have on this node."""
        waits: dict[PodUID, tuple[Wait, ...]] = {
            self._records[uid].here: (wait,) for uid, wait in self._failures.items()
        }
        for uid, since in self._over.items():
            record = self._records[uid]
            if record.known.metadata.finalizers and uid not in waits:
                finalizers = ", ".join(record.known.metadata.finalizers)
                waits[uid] = (Wait("finalizers", Owner.API_SERVER, since, detail=finalizers),)
        return of_waits(waits)


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
