"""The publisher: makes the API server's copies of the pods' statuses what `Statuses` says, and has finished pods deleted.

Owns: the cell `ReportWaits`; when what is sent; one request at a time for a pod, at most `AT_ONCE` together. Reads:
`ApiPods`, `Roster`, `Statuses`, `Lifecycles`, `ApiState`. What to send is decided in `merge`, from the newest that is known of the API
server's copy: by its watch, or by the answer to the last patch.

Rules:
- Level, not edge: nothing is queued. What is newest when a request goes out is what is sent; the API server may have been
  away for hours. A status that another one overwrote is put right.
- An answer that differs from what was asked for (a server may drop what it does not know) is not asked for again.
- When nothing is left of a deleted pod and its end was told, it is deleted for good, and nothing more is told of it.
- Ends and last deletions go first, then changes of readiness, then other news. Statuses that tell nothing yet (the
  container is being created) wait for `quiet_s`, longer where there were many, and much longer after one of the same
  pod unless a condition has changed: most are overtaken by the start itself, if nothing is in its way. Of a pod that is
  being deleted hardly more than its end is told.
- What was told before a restart of the agent is not told again before the pod was looked at: the API server may know more.
- What fails is tried again, later and later; after a conflict, too: should the pod be another, its watch tells. When the
  server cannot be reached at all, everything rests together; once `ApiState` tells that it is back, nothing does that
  had got no answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Struct

from pykubelet.base.api.core import ObjectMeta, Pod, PodStatus
from pykubelet.base.kit.cells import Cell, CellWriter, ringing
from pykubelet.base.kit.changes import missing_keys
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Histogram
from pykubelet.base.kit.retries import Retries
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.apistate import ApiState
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.roster import ApiPods, Roster, pod_ref
from pykubelet.base.model.statuses import ReportWaits, Statuses
from pykubelet.base.model.waits import Wait
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.status.cases import Case, Seen, is_same, sources_of
from pykubelet.report.status.merge import (
    Urgency,
    final_delete,
    may_delete,
    newer,
    render_patch,
    revived,
    status_for_api,
    turns_condition,
    urgency_of,
)

log = Log("status")
AT_ONCE = 10
NEWS_S = 0.1
#: Seconds that each other quiet pod adds to the wait of all.
QUIET_EACH_S = 0.2
QUIET_AGAIN_S = 20.0
LATE_S = 20.0
#: How often those that may wait are gone through: they are many when much happens.
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
    """Seconds. `quiet_s`: see the rules. `retry_s`: the first pause after a failure, doubling to `retry_max_s`, and to
    `away_max_s` for all together while the server cannot be reached."""

    quiet_s: float = 1.0
    retry_s: float = 0.2
    retry_max_s: float = 20.0
    away_max_s: float = 5.0


class PublishInputs(Value):
    """The cells this loop reads."""

    pods: Cell[ApiPods]
    roster: Cell[Roster]
    statuses: Cell[Statuses]
    lifecycles: Cell[Lifecycles]
    api: Cell[ApiState]


class _Answer(msgspec.Struct, frozen=True):
    """What of the answer to a patch of the status may be new."""

    metadata: ObjectMeta
    status: PodStatus


class _Order(Value):
    """What the API server's copy of a status is to become. `turns`: a condition becomes true or is no longer."""

    wanted: PodStatus
    urgency: Urgency
    turns: bool


class _Book(Struct):
    """One pod. `known`: its newest state at the API server. `here`: the UID of the pod it stands for. `settled`: the status
    told, and what was answered to it.

    `looked`: what `order` was made from. `since`: when there first was something to send. `crowd`: the most quiet pods there
    were at once since then. `quiet_at`: when something quiet was sent.
    """

    known: Pod
    here: PodUID
    looked: Case | None = None
    order: _Order | None = None
    ends: bool = False
    since: float = 0.0
    crowd: int = 0
    quiet_at: float = float("-inf")
    settled: tuple[PodStatus, bool, PodStatus] | None = None
    is_busy: bool = False
    is_deleted: bool = False

    @property
    def urgency(self) -> Urgency | None:
        """Of what is to be sent; None when there is nothing."""
        return self.order.urgency if self.order is not None else Urgency.END if self.ends else None


class StatusPublisher:
    """`run` never returns."""

    def __init__(
        self,
        client: ApiClient,
        inputs: PublishInputs,
        waits: CellWriter[ReportWaits],
        clock: Clock,
        periods: PublishPeriods | None = None,
    ) -> None:
        self._client = client
        self._inputs = inputs
        self._waits = waits
        self._clock = clock
        self._periods = periods or PublishPeriods()
        self._api = inputs.api.get()
        self._books: dict[PodUID, _Book] = {}
        # where a pod waits for its turn, and those that are deleted for good and still there
        self._prompt: set[PodUID] = set()
        self._patient: set[PodUID] = set()
        self._patient_at = 0.0
        self._over: set[PodUID] = set()
        self._busy = 0
        self._retries = Retries[PodUID](self._periods.retry_s, self._periods.retry_max_s)
        self._away = Retries[str](self._periods.retry_s, self._periods.away_max_s)
        self._unanswered: set[PodUID] = set()
        self._failures: dict[PodUID, Wait] = {}
        self._seen = Seen()
        self._is_stirred = False
        self._bell = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._supervisor = Supervisor("publisher")

    async def run(self) -> None:
        async with self._supervisor as supervisor:
            cells = self._inputs
            with ringing(self._bell, cells.pods, cells.roster, cells.statuses, cells.lifecycles, cells.api):
                supervisor.start_root("publisher-send", self._follow())
                raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            self._hear_of_server()
            self._look()
            if self._is_stirred:
                self._is_stirred = False
                self._send_due()
                self._tell_waits()

    def _stir(self) -> None:
        """What is due may be something else now."""
        self._is_stirred = True
        self._bell.set()

    def _hear_of_server(self) -> None:
        before, self._api = self._api, self._inputs.api.get()
        if self._api.is_back_since(before):
            self._away.succeeded(_ALL)
            for uid in self._unanswered:
                self._retries.hasten(uid)
            self._unanswered.clear()
            self._is_stirred = True

    # What there is to send

    def _look(self) -> None:
        cells, before = self._inputs, self._seen
        pods, roster = cells.pods.get().pods, cells.roster.get()
        is_old = pods is before.pods and roster is before.roster
        sources = before.sources if is_old else sources_of(pods, roster)
        now = self._seen = Seen(pods, roster, cells.statuses.get(), cells.lifecycles.get().pods, sources)
        if gone := missing_keys(self._books, pods):
            self._forget(gone)
        for uid in now.changed_since(before):
            self._look_at(uid, now)

    def _forget(self, gone: list[PodUID]) -> None:
        for uid in gone:
            if self._books[uid].is_busy:
                continue
            del self._books[uid]
            self._open(uid, None)
            self._over.discard(uid)
            self._retries.succeeded(uid)
            self._unanswered.discard(uid)
            self._failures.pop(uid, None)
            self._is_stirred = True

    def _look_at(self, uid: PodUID, now: Seen) -> None:
        case, here = now.case(uid), now.sources.get(uid, uid)
        book = self._books.get(uid)
        if book is None:
            book = self._books[uid] = _Book(case.api, here)
        book.here = here
        if book.looked is None or not is_same(book.looked, case):
            book.looked = case
            book.known = newer(book.known, case.api)
            self._plan(uid, book, case)

    def _plan(self, uid: PodUID, book: _Book, case: Case) -> None:
        had = book.urgency
        book.order = self._order(book, case)
        book.ends = case.is_finished and not book.is_deleted and may_delete(book.known)
        if book.ends or book.is_deleted:
            book.order = None  # nobody reads any more of it
        if had is None:
            book.since, book.crowd = self._clock.monotonic(), 0
        self._open(uid, book.urgency)
        self._is_stirred |= had is not None or book.urgency is not None

    def _open(self, uid: PodUID, urgency: Urgency | None) -> None:
        """Among whom the pod waits for its turn; None: nowhere."""
        self._prompt.discard(uid)
        self._patient.discard(uid)
        if urgency is not None:
            (self._patient if urgency in _PATIENT else self._prompt).add(uid)

    def _order(self, book: _Book, case: Case) -> _Order | None:
        told = case.told
        if told is None:
            return None
        if book.settled is not None:
            sent, ended, answer = book.settled
            if sent is told and ended == case.has_ended and answer == book.known.status:
                return None
        if container := revived(book.known, told):
            log.warning("no status is told in which an end is undone", pod=pod_ref(book.known), container=container)
            return None
        wanted = status_for_api(book.known, told, has_ended=case.has_ended)
        if wanted is None or wanted == book.known.status:
            return None
        urgency = urgency_of(book.known, wanted, is_held_up=case.is_held_up)
        return _Order(wanted, urgency, turns_condition(book.known.status, wanted))

    # Sending

    def _send_due(self) -> None:
        """Start what is due, most urgent first; come back for the rest."""
        now = self._clock.monotonic()
        due: list[tuple[Urgency, float, PodUID]] = []
        later: list[float] = []
        waiting, pauses = self._prompt, {Urgency.NEWS: NEWS_S, Urgency.LATE: LATE_S}
        if now >= self._patient_at:
            waiting, self._patient_at = self._prompt | self._patient, now + PATIENCE_S
            self._count_quiet()
        for uid in waiting:
            book = self._books[uid]
            urgency = book.urgency
            if book.is_busy or urgency is None:
                continue
            if urgency is Urgency.QUIET:
                pauses[urgency] = self._periods.quiet_s + QUIET_EACH_S * book.crowd
            at = max(book.since + pauses.get(urgency, 0.0), self._retries.free_at(uid), self._away.free_at(_ALL))
            if urgency is Urgency.QUIET and book.order is not None and not book.order.turns:
                at = max(at, book.quiet_at + QUIET_AGAIN_S)
            if at <= now:
                due.append((urgency, book.since, uid))
            elif urgency not in _PATIENT:
                later.append(at)
        for _, _, uid in sorted(due)[: max(0, AT_ONCE - self._busy)]:
            self._start(uid, self._books[uid])
        if self._patient:
            later.append(self._patient_at)
        self._wake_at(min(later, default=None), now)

    def _count_quiet(self) -> None:
        """What says little waits the longer, the more of it there was: the last of a crowd are no sooner told than the first."""
        quiet = [book for uid in self._patient if (book := self._books[uid]).urgency is Urgency.QUIET]
        for book in quiet:
            book.crowd = max(book.crowd, len(quiet))

    def _wake_at(self, at: float | None, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.001, at - now), self._stir)

    def _start(self, uid: PodUID, book: _Book) -> None:
        assert book.looked is not None
        book.is_busy = True
        self._busy += 1
        if book.order is not None and book.order.urgency is Urgency.QUIET:
            book.quiet_at = self._clock.monotonic()
        work = self._patched(uid, book, book.looked, book.order) if book.order is not None else self._deleted(uid, book)
        self._supervisor.start_root(f"publish-{uid}", self._tracked(book, work))

    async def _tracked(self, book: _Book, work: Any) -> None:
        try:
            await work
        finally:
            book.is_busy = False
            self._busy -= 1
            self._stir()

    async def _patched(self, uid: PodUID, book: _Book, case: Case, order: _Order) -> None:
        body = render_patch(book.known, order.wanted)
        if body is None:  # only the order of conditions differs
            self._settle(uid, book, case, book.known.status)
            return
        try:
            answer = await self._client.patch(f"{_path(book.known)}/status", body, PatchKind.STRATEGIC, _Answer)
        except ApiError as error:
            self._failed(uid, book, error, "status")
            return
        self._went_well(uid, book)
        SYNC_DURATIONS.observe(self._clock.monotonic() - book.since)
        fields = ",".join(sorted(body["status"]))
        log.debug("status told", pod=pod_ref(book.known), uid=uid, urgency=order.urgency.name, fields=fields)
        told = replace(book.known, metadata=answer.metadata, status=answer.status)
        book.known = newer(told, book.known)
        self._settle(uid, book, case, answer.status)

    def _settle(self, uid: PodUID, book: _Book, case: Case, answer: PodStatus) -> None:
        """What `case` tells is done, with this result; on to what has come up meanwhile."""
        if case.told is not None:
            book.settled = (case.told, case.has_ended, answer)
        if book.looked is not None:
            self._plan(uid, book, book.looked)

    async def _deleted(self, uid: PodUID, book: _Book) -> None:
        try:
            await self._client.delete(_path(book.known), final_delete(book.known))
        except ApiError as error:
            if not error.is_not_found:  # should the name be another pod's by now, the watch will tell
                self._failed(uid, book, error, "last deletion")
                return
        self._went_well(uid, book)
        book.is_deleted, book.ends = True, False
        self._open(uid, None)
        self._over.add(uid)
        log.info("pod is deleted for good", pod=pod_ref(book.known), uid=uid)

    def _failed(self, uid: PodUID, book: _Book, error: ApiError, what: str) -> None:
        now, at_least = self._clock.monotonic(), error.retry_after_s or 0.0
        if error.is_not_found:
            book.order = None  # the pod is gone: its watch will tell
            self._open(uid, None)
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
            "report/status",
            since,
            what,
            error.reason,
            error.message,
            "send it again",
            wall + max(0.0, free_at - now),
        )
        if count == 1:
            log.warning("a pod cannot be reported", pod=pod_ref(book.known), uid=uid, what=what, error=error.message)

    def _went_well(self, uid: PodUID, book: _Book) -> None:
        if self._away.succeeded(_ALL):
            self._stir()
        self._unanswered.discard(uid)
        self._failures.pop(uid, None)
        if self._retries.succeeded(uid):
            log.info("the pod can be reported again", pod=pod_ref(book.known), uid=uid)

    def _tell_waits(self) -> None:
        """For the pods of this node, under the UIDs they have here."""
        before = self._waits.get().pods
        told: dict[PodUID, tuple[Wait, ...]] = {}
        for uid, wait in self._failures.items():
            told[self._books[uid].here] = (wait,)
        for uid in self._over:
            book = self._books[uid]
            if book.known.metadata.finalizers and uid not in told:
                keepers = ", ".join(book.known.metadata.finalizers)
                known = before.get(uid)
                fresh = Wait("finalizers", "the API server", self._clock.wall(), detail=keepers)
                told[uid] = known if known is not None and known[0].detail == keepers else (fresh,)
        if told != before:
            self._waits.publish(ReportWaits(told))


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
