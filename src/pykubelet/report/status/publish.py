"""The publisher: makes the API server's copies of the pods' statuses what `Statuses` says, and has finished pods deleted.

Owns: the cell `ReportWaits`; when what is sent; one request at a time for a pod, at most `AT_ONCE` together. Reads:
`ApiPods`, `Roster`, `Statuses`, `Lifecycles`. What to send is decided in `merge`, from the newest that is known of the API
server's copy: by its watch, or by the answer to the last patch.

Rules:
- Level, not edge: nothing is queued. What is newest when a request goes out is what is sent; the API server may have been
  away for hours. A status that another one overwrote is put right.
- An answer that differs from what was asked for (a server may drop what it does not know) is not asked for again.
- When nothing is left of a deleted pod and its end was told, it is deleted for good, and nothing more is told of it.
- Ends and last deletions go first, then changes of readiness, then other news. Statuses that tell nothing yet (the
  container is being created) wait for `QUIET_S`, longer when there are many, and much longer after one of the same pod:
  most are overtaken by the start itself. Of a pod that is being deleted hardly more than its end is told.
- What was told before a restart of the agent is not told again before the pod was looked at: the API server may know more.
- What fails is tried again, later and later. When the server cannot be reached at all, everything rests together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.kit.cells import Cell, CellWriter, ringing
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.retries import Retries
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_HASH, CONFIG_MIRROR
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.roster import ApiPods, Roster, is_mirror, is_static, pod_ref
from pykubelet.base.model.statuses import ReportWaits, Statuses
from pykubelet.base.model.waits import Wait
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.status.merge import (
    Urgency,
    final_delete,
    may_delete,
    newer,
    render_patch,
    status_for_api,
    urgency_of,
)
from pykubelet.report.status.model import ENDED_STAGES

log = Log("status")
AT_ONCE = 10
NEWS_S = 0.1
QUIET_S = 1.0
#: Seconds that each other quiet pod adds to the wait of all.
QUIET_EACH_S = 0.2
QUIET_AGAIN_S = 20.0
LATE_S = 20.0
RETRY_S = 0.2
RETRY_MAX_S = 20.0
AWAY_MAX_S = 5.0
_ALL = "all"


@dataclass(frozen=True, slots=True)
class PublishInputs:
    """The cells this loop reads."""

    pods: Cell[ApiPods]
    roster: Cell[Roster]
    statuses: Cell[Statuses]
    lifecycles: Cell[Lifecycles]


@dataclass(frozen=True, slots=True)
class _Case:
    """All that the report of one pod is made from. `api`: as the watch has it."""

    api: Pod
    told: PodStatus | None
    has_ended: bool = False
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class _Order:
    """What the API server's copy of a status is to become."""

    wanted: PodStatus
    urgency: Urgency


@dataclass(slots=True)
class _Book:
    """One pod. `known`: its newest state at the API server. `here`: the UID of the pod it stands for. `settled`: the status
    told, and what was answered to it.

    `inputs`: the very objects looked at last. `looked`: what `order` was made from. `since`: when there first was something
    to send. `quiet_at`: when something quiet was sent.
    """

    known: Pod
    here: PodUID
    inputs: tuple[Pod, PodStatus | None, PodLifecycle | None] | None = None
    looked: _Case | None = None
    order: _Order | None = None
    ends: bool = False
    since: float = 0.0
    quiet_at: float = float("-inf")
    settled: tuple[PodStatus, bool, PodStatus] | None = None
    is_busy: bool = False
    is_deleted: bool = False


class StatusPublisher:
    """`run` never returns."""

    def __init__(
        self,
        client: ApiClient,
        inputs: PublishInputs,
        waits: CellWriter[ReportWaits],
        clock: Clock,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._client = client
        self._inputs = inputs
        self._waits = waits
        self._clock = clock
        self._quiet_s = quiet_s
        self._books: dict[PodUID, _Book] = {}
        self._open: set[PodUID] = set()
        self._busy = 0
        self._retries = Retries[PodUID](RETRY_S, RETRY_MAX_S)
        self._away = Retries[str](RETRY_S, AWAY_MAX_S)
        self._failures: dict[PodUID, Wait] = {}
        self._bell = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._supervisor = Supervisor("publisher")

    async def run(self) -> None:
        async with self._supervisor as supervisor:
            cells = self._inputs
            with ringing(self._bell, cells.pods, cells.roster, cells.statuses, cells.lifecycles):
                supervisor.start_root("publisher-send", self._follow())
                raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            self._look()
            self._send_due()
            self._tell_waits()

    # What there is to send

    def _look(self) -> None:
        pods = self._inputs.pods.get().pods
        if self._books.keys() - pods.keys():
            self._forget(pods)
        now, lifecycles = self._inputs.statuses.get(), self._inputs.lifecycles.get().pods
        statuses, remembered = now.pods, now.remembered
        originals = _originals(self._inputs.roster.get())
        for uid, pod in pods.items():
            source = originals.get(_mirror_key(pod), uid) if is_mirror(pod) else uid
            told = statuses.get(source) if source not in remembered else None
            self._look_at(uid, source, pod, told, lifecycles.get(source))

    def _forget(self, pods: Mapping[PodUID, Pod]) -> None:
        for uid in [uid for uid, book in self._books.items() if uid not in pods and not book.is_busy]:
            del self._books[uid]
            self._open.discard(uid)
            self._retries.succeeded(uid)
            self._failures.pop(uid, None)

    def _look_at(
        self, uid: PodUID, here: PodUID, api: Pod, told: PodStatus | None, lifecycle: PodLifecycle | None
    ) -> None:
        book = self._books.get(uid)
        if book is None:
            book = self._books[uid] = _Book(api, here)
        elif book.inputs is not None:
            pod, status, life = book.inputs
            if pod is api and status is told and life is lifecycle:
                return
        book.here, book.inputs = here, (api, told, lifecycle)
        case = _case(api, told, lifecycle)
        if book.looked is not None and _is_same(book.looked, case):
            return
        book.looked = case
        book.known = newer(book.known, case.api)
        self._plan(uid, book, case)

    def _plan(self, uid: PodUID, book: _Book, case: _Case) -> None:
        had = book.order is not None or book.ends
        book.order = self._order(book, case)
        book.ends = case.is_finished and not book.is_deleted and may_delete(book.known)
        if book.ends or book.is_deleted:
            book.order = None  # nobody reads any more of it
        if not had:
            book.since = self._clock.monotonic()
        if book.order is not None or book.ends:
            self._open.add(uid)
        else:
            self._open.discard(uid)

    def _order(self, book: _Book, case: _Case) -> _Order | None:
        told = case.told
        if told is None:
            return None
        if book.settled is not None:
            sent, ended, answer = book.settled
            if sent is told and ended == case.has_ended and answer == book.known.status:
                return None
        wanted = status_for_api(book.known, told, has_ended=case.has_ended)
        if wanted is None or wanted == book.known.status:
            return None
        return _Order(wanted, urgency_of(book.known, wanted))

    # Sending

    def _send_due(self) -> None:
        """Start what is due, most urgent first; come back for the rest."""
        now = self._clock.monotonic()
        due: list[tuple[Urgency, float, PodUID]] = []
        later: list[float] = []
        waiting = [(uid, self._books[uid]) for uid in self._open]
        quiet = sum(1 for _, book in waiting if book.order is not None and book.order.urgency is Urgency.QUIET)
        pauses = {Urgency.NEWS: NEWS_S, Urgency.QUIET: self._quiet_s + QUIET_EACH_S * quiet, Urgency.LATE: LATE_S}
        for uid, book in waiting:
            if book.is_busy:
                continue
            urgency = book.order.urgency if book.order is not None else Urgency.END
            at = max(book.since + pauses.get(urgency, 0.0), self._retries.free_at(uid), self._away.free_at(_ALL))
            if urgency is Urgency.QUIET:
                at = max(at, book.quiet_at + QUIET_AGAIN_S)
            if at <= now:
                due.append((urgency, book.since, uid))
            else:
                later.append(at)
        for _, _, uid in sorted(due)[: max(0, AT_ONCE - self._busy)]:
            self._start(uid, self._books[uid])
        self._wake_at(min(later, default=None), now)

    def _wake_at(self, at: float | None, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.001, at - now), self._bell.set)

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
            self._bell.set()

    async def _patched(self, uid: PodUID, book: _Book, case: _Case, order: _Order) -> None:
        body = render_patch(book.known, order.wanted)
        if body is None:  # only the order of conditions differs
            self._settle(uid, book, case, book.known.status)
            return
        try:
            answer = await self._client.patch(f"{_path(book.known)}/status", body, PatchKind.STRATEGIC, Pod)
        except ApiError as error:
            self._failed(uid, book, error, "status")
            return
        self._went_well(uid, book)
        fields = ",".join(sorted(body["status"]))
        log.debug("status told", pod=pod_ref(book.known), uid=uid, urgency=order.urgency.name, fields=fields)
        book.known = newer(answer, book.known)
        self._settle(uid, book, case, answer.status)

    def _settle(self, uid: PodUID, book: _Book, case: _Case, answer: PodStatus) -> None:
        """What `case` tells is done, with this result; on to what has come up meanwhile."""
        if case.told is not None:
            book.settled = (case.told, case.has_ended, answer)
        if book.looked is not None:
            self._plan(uid, book, book.looked)

    async def _deleted(self, uid: PodUID, book: _Book) -> None:
        try:
            await self._client.delete(_path(book.known), final_delete(book.known))
        except ApiError as error:
            if not error.is_not_found and error.status != 409:
                self._failed(uid, book, error, "last deletion")
                return
        self._went_well(uid, book)
        book.is_deleted, book.ends = True, False
        self._open.discard(uid)
        log.info("pod is deleted for good", pod=pod_ref(book.known), uid=uid)

    def _failed(self, uid: PodUID, book: _Book, error: ApiError, what: str) -> None:
        now, at_least = self._clock.monotonic(), error.retry_after_s or 0.0
        if error.is_not_found or error.is_conflict:
            book.order = None  # the pod is gone or another: its watch will tell
            self._open.discard(uid)
            return
        count = self._retries.failed(uid, now, at_least)
        if error.status == 0 and now >= self._away.free_at(_ALL):
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
            self._bell.set()
        self._failures.pop(uid, None)
        if self._retries.succeeded(uid):
            log.info("the pod can be reported again", pod=pod_ref(book.known), uid=uid)

    def _tell_waits(self) -> None:
        """For the pods of this node, under the UIDs they have here."""
        before = self._waits.get().pods
        told: dict[PodUID, tuple[Wait, ...]] = {}
        for uid, wait in self._failures.items():
            told[self._books[uid].here] = (wait,)
        for uid, book in self._books.items():
            if book.is_deleted and book.known.metadata.finalizers and uid not in told:
                keepers = ", ".join(book.known.metadata.finalizers)
                known = before.get(uid)
                fresh = Wait("finalizers", "the API server", self._clock.wall(), detail=keepers)
                told[uid] = known if known is not None and known[0].detail == keepers else (fresh,)
        if told != before:
            self._waits.publish(ReportWaits(told))


def _case(api: Pod, told: PodStatus | None, lifecycle: PodLifecycle | None) -> _Case:
    if lifecycle is None:
        return _Case(api, told)
    finished = lifecycle.stage is Stage.FINISHED and lifecycle.kill_reason is KillReason.DELETED
    return _Case(api, told, lifecycle.stage in ENDED_STAGES, finished)


def _is_same(before: _Case, now: _Case) -> bool:
    if before.api is not now.api or before.told is not now.told:
        return False
    return (before.has_ended, before.is_finished) == (now.has_ended, now.is_finished)


def _originals(roster: Roster) -> Mapping[tuple[str, str], PodUID]:
    """The static pods, by full name and hash."""
    if not roster.mirrors:
        return {}
    return {
        (pod_ref(entry.pod).full_name, entry.pod.metadata.annotations.get(CONFIG_HASH, "")): uid
        for uid, entry in roster.pods.items()
        if is_static(entry.pod)
    }


def _mirror_key(mirror: Pod) -> tuple[str, str]:
    return pod_ref(mirror).full_name, mirror.metadata.annotations.get(CONFIG_MIRROR, "")


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
