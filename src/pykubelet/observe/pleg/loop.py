"""The loop of the PLEG: keeps `Observed` up to date by events, with relists as the safety net.

Owns: the cell `Observed`. Reads: the runtime and its event stream; `RuntimeReady`. Takes `PodReadWanted` and `StopInProgress`.

A hint from the runtime, or a `PodReadWanted` from a component that has just changed a pod, marks that pod. Marked pods are
read concurrently, so that a runtime that hangs for one pod delays no other. A relist runs when the event stream is opened and
a moment later, for IDs that stay unknown, and periodically. Containers that the agent has started are read by ID. For what it has stopped
or removed, the runtime's answer is enough. While the runtime is away, it is called seldom.
`decide.py` has the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox, Post, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Counter, Gauge, Histogram
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.kit.yields import Yields
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.observed import Observed, PodReadWanted, PodView, Started, StopInProgress
from pykubelet.base.model.reasons import EVENT_FAILED_SYNC
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.cri.events import HintKind, NoEvents, RuntimeEventSource, RuntimeHint, StreamLost, watch_runtime
from pykubelet.observe.pleg.cache import PodCache
from pykubelet.observe.pleg.decide import (
    RESUBSCRIBE_S,
    Inspection,
    ReadRecord,
    ReadState,
    RelistPeriods,
    ids_of,
    inspection,
    is_more_than_start,
    missing_pods,
    needs_read,
    view_from_answer,
    without_stale,
)
from pykubelet.observe.pleg.exits import ExitReader
from pykubelet.observe.pleg.read import complete_pod, list_pods, read_pod, read_started
from pykubelet.observe.pleg.unknown import UnknownIds
from pykubelet.observe.pleg.views import ListedPod

RELIST_DURATIONS = Histogram("kubelet_pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG.")
RELIST_INTERVALS = Histogram("kubelet_pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG.")
READ_DURATIONS = Histogram(
    "kubelet_pleg_pod_relist_duration_seconds", "Duration in seconds for relisting a single pod in PLEG."
)
LAST_SEEN = Gauge("kubelet_pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active.")
SUBSCRIPTIONS = Counter(
    "kubelet_evented_pleg_connection_success_count",
    "The number of times a streaming client was obtained to receive CRI Events.",
)
SUBSCRIPTIONS_LOST = Counter(
    "kubelet_evented_pleg_connection_error_count",
    "The number of errors encountered during the establishment of streaming connection with the CRI runtime.",
)


log = Log("pleg")

RETRY_S = 0.5
#: While the runtime is away, it is called after this many seconds. Usually `observe/node` notices its return earlier.
AWAY_S = 15.0
#: How long a relist waits for the reads of single pods. Then it is published without them.
PATIENCE_S = 1.0

#: After so many hints or requests, other tasks go on: each may change the view of a pod with many containers.
AT_ONCE = 16

Hints = Callable[[CriClient], AsyncIterator[RuntimeHint]]


class PlegCells(Value):
    """The cell that the PLEG writes, and the one that it reads."""

    observed: CellWriter[Observed]
    runtime: Cell[RuntimeReady]


class _Listed(Value):
    """One pod in a list, and when that list began."""

    found: ListedPod
    read_at: float


class Pleg:
    """The pod lifecycle event generator. `run` never returns."""

    def __init__(
        self,
        cri: CriClient,
        clock: Clock,
        cells: PlegCells,
        mailbox: Mailbox[PodReadWanted | StopInProgress],
        periods: RelistPeriods,
        recorder: Post[KubeEvent],
        hints: Hints = watch_runtime,
    ) -> None:
        self._cri = cri
        self._clock = clock
        self._cache = PodCache(cells.observed)
        self._runtime = cells.runtime
        self._mailbox = mailbox
        self._periods = periods
        self._recorder = recorder
        self._hints = hints
        self._records: dict[PodUID, ReadRecord] = {}
        self._relist_due = asyncio.Event()
        self._unknown = UnknownIds(clock, periods.unknown_s, self._relist_due)
        self._has_events = False
        self._has_subscribed = False  # since the last relist
        self._list_failed = False
        self._supervisor = Supervisor("pleg")
        self._exits = ExitReader(cri, clock, self._cache, self._supervisor, periods.stopper_s, mailbox)

    async def run(self) -> None:
        """Follow hints and `PodReadWanted` events, and relist. Never returns."""
        async with self._supervisor as supervisor:
            supervisor.start_root("pleg-hints", self._follow_hints())
            supervisor.start_root("pleg-relist", self._relist_when_due())
            supervisor.start_root("pleg-touched", self._follow_mailbox())
            raise await supervisor.wait_failed()

    # Wake-ups

    async def _follow_mailbox(self) -> None:
        yields = Yields(AT_ONCE)
        while True:
            for event in await self._mailbox.get_all():
                if isinstance(event, StopInProgress):
                    self._exits.follow_stop(event)
                else:
                    self._follow_touch(event)
                await yields.done()

    def _follow_touch(self, touch: PodReadWanted) -> None:
        record = self._record(touch.ref)
        record.stale |= touch.changed
        view = view_from_answer(touch, self._cache.view(touch.ref.uid), record)
        if view is not None:
            self._take(view)
        else:
            self._mark(record, touch.answer if isinstance(touch.answer, Started) else None)

    async def _follow_hints(self) -> None:
        failures, yields = 0, Yields(AT_ONCE)
        while True:
            try:
                async for hint in self._hints(self._cri):
                    failures = 0
                    self._take_hint(hint)
                    await yields.done()
            except NoEvents as error:
                log.warning("no events from the runtime, relisting instead", error=error)
                return
            except StreamLost as error:
                SUBSCRIPTIONS_LOST.inc()
                if self._has_events:
                    log.info("event stream lost, subscribing again", error=error)
            self._has_events = False
            self._relist_due.set()
            await asyncio.sleep(RESUBSCRIBE_S[min(failures, len(RESUBSCRIBE_S) - 1)])
            failures += 1
            await self._wait_runtime()

    async def _wait_runtime(self) -> None:
        """Wait until the runtime is back, at most AWAY_S."""
        await within(AWAY_S, self._runtime.wait_for(lambda now: not now.away))

    def _take_hint(self, hint: RuntimeHint) -> None:
        if hint.kind is HintKind.SUBSCRIBED:
            log.info("following runtime events", source=hint.source)
            SUBSCRIPTIONS.inc()
            self._has_events = self._has_subscribed = True
            self._relist_due.set()
            return
        hint = self._exits.trusted(hint)
        uid = PodUID(hint.pod_uid) if hint.pod_uid else self._cache.owner(hint.id)
        record = self._records.get(uid) if uid is not None else None
        if record is None:
            self._unknown.note(hint)
            return
        match inspection(hint, self._cache.view(record.ref.uid)):
            case Inspection.EXIT:
                self._exits.take_hint(record.ref.uid, hint)
            case Inspection.POD:
                self._mark(record)
            case Inspection.NONE:
                pass

    # Reads

    def _record(self, ref: PodRef) -> ReadRecord:
        record = self._records.get(ref.uid)
        if record is None:
            record = self._records[ref.uid] = ReadRecord(ref)
        return record

    def _mark(self, record: ReadRecord, begin: _Listed | Started | None = None) -> asyncio.Task[None] | None:
        """Have a pod read, or read again if a read is running. `begin`: what a list has shown, or what was started."""
        if record.read is not ReadState.IDLE:
            record.read = ReadState.AGAIN
            return None
        record.read = ReadState.READING
        return self._supervisor.start_child(f"pleg-read-{record.ref.uid}", self._read(record, begin))

    async def _read(self, record: ReadRecord, begin: _Listed | Started | None) -> None:
        while True:
            if begin is None:  # this read also answers touches that came before it began
                record.read = ReadState.READING
            began = self._clock.monotonic()
            try:
                self._take(await self._read_once(record, begin))
                READ_DURATIONS.observe(self._clock.monotonic() - began)
                record.failing = False
            except Exception as error:  # an unexpected error with one pod's data must not stop the reads of others
                if not record.failing:
                    bug, ref = None if isinstance(error, CriError) else error, record.ref
                    log.error("cannot read a pod from the runtime", pod=ref, uid=ref.uid, error=error, exc_info=bug)
                    self._recorder.post(warning(EVENT_FAILED_SYNC, f"error determining status: {error}", ref))
                    record.failing = True
                record.read = ReadState.AGAIN
                await asyncio.sleep(RETRY_S)
                await self._wait_runtime()
            if record.read is ReadState.READING:
                record.read = ReadState.IDLE
                return
            begin = None

    async def _read_once(self, record: ReadRecord, begin: _Listed | Started | None) -> PodView:
        stale = record.stale
        known = without_stale(self._cache.view(record.ref.uid), stale)
        if begin is None:
            view = await read_pod(self._cri, self._clock, record.ref, known)
        elif isinstance(begin, Started):
            view = await read_started(self._cri, self._clock, record.ref, begin, known)
        else:
            view = await complete_pod(self._cri, record.ref, begin.found, known, begin.read_at)
        record.stale -= stale
        return view

    def _take(self, view: PodView) -> None:
        """Publish one pod's view unless a newer one is known."""
        if self._cache.is_outdated(view):
            return
        self._record(view.ref)
        hints = self._early_hints(view)
        self._cache.update(view, [hint.end for hint in hints if hint.end is not None])
        for hint in hints:
            self._exits.follow(view.ref.uid, hint.id, RuntimeEventSource.CRI)

    def _early_hints(self, view: PodView) -> list[RuntimeHint]:
        """The earlier hints for IDs that this view shows for the first time, except starts."""
        shown = (*(c.id for c in view.containers), *(s.id for s in view.sandboxes))
        hints = (self._unknown.take(runtime_id) for runtime_id in shown)
        return [hint for hint in hints if hint is not None and is_more_than_start(hint)]

    # Relists

    async def _relist_when_due(self) -> None:
        last: float | None = None
        while True:
            self._relist_due.clear()
            is_first, self._has_subscribed = self._has_subscribed, False
            began = self._clock.monotonic()
            if last is not None:
                RELIST_INTERVALS.observe(began - last)
            last = began
            LAST_SEEN.set(self._clock.wall())
            await self._relist()
            RELIST_DURATIONS.observe(self._clock.monotonic() - began)
            if self._list_failed and self._runtime.get().away:
                await self._wait_runtime()
                continue
            await within(self._periods.period_s(self._has_events, is_first=is_first), self._relist_due.wait())

    async def _relist(self) -> None:
        try:
            read_at, listed = await list_pods(self._cri, self._clock)
        except CriError as error:
            if not self._list_failed:
                log.warning("cannot list pods", error=error)
            self._list_failed = True
            return
        if self._list_failed:
            log.info("listing pods works again")
        self._list_failed = False
        await self._read_listed(read_at, listed)
        changed = missing_pods(self._cache.pods, {ref.uid for ref in listed}, read_at, self._records)
        for uid, view in changed.items():
            if view is None:
                self._records.pop(uid, None)
        shown = ids_of(listed.values())
        self._unknown.keep_only(shown, read_at)
        self._exits.forget_ooms(lambda runtime_id: runtime_id in shown or runtime_id in self._unknown)
        self._cache.relisted(changed, listed, read_at)

    async def _read_listed(self, read_at: float, listed: dict[PodRef, ListedPod]) -> None:
        """Read the listed pods that have changed. Waits at most PATIENCE_S; slower reads continue."""
        pods, reads = self._cache.pods, []
        for ref, found in listed.items():
            record = self._record(ref)
            record.ref = ref
            if needs_read(pods.get(ref.uid), found, read_at):
                reads.append(self._mark(record, _Listed(found, read_at)))
        if under_way := [read for read in reads if read is not None]:
            await asyncio.wait(under_way, timeout=PATIENCE_S)
