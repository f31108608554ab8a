"""The look-out: keeps `Observed` true by events first, by relisting as the safety net.

Owns: the cell `Observed`. Reads: the runtime, and its event stream; `RuntimeReady`. Wakes on `PodTouched` and `BeingStopped`.

How: a hint from the runtime, or a touch by somebody who just did something to a pod, marks that pod; marked pods are
read, several at once, each on its own, so a runtime that hangs for one pod delays no other. A view that began to be
read earlier never replaces one that began later. A full relist comes when the event stream is (re)opened, for ids
nobody knows, and every `relist_s`; without an event stream every `relist_without_events_s`. What the agent itself is
stopping is looked at when the runtime has answered that, not at the hints of its end. What it has started is asked for by
id; what it has stopped or removed is so when the runtime has answered that. While the runtime is away, it is hardly asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from pykubelet.base.kit.cells import Cell, CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Mailbox, Post
from pykubelet.base.kit.metrics import Counter, Gauge, Histogram
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.happenings import Happening, warning
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.observed import (
    BeingStopped,
    ContainerState,
    Observed,
    PodTouched,
    PodView,
    Removed,
    Started,
    Stopped,
)
from pykubelet.base.model.reasons import EVENT_FAILED_SYNC
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.cri.events import EventSource, HintKind, NoEvents, RuntimeHint, StreamLost, watch_runtime
from pykubelet.observe.pleg.read import (
    ListedPod,
    complete_pod,
    find_pod,
    ids_of,
    is_unchanged,
    list_pods,
    read_exit,
    read_pod,
    read_started,
)
from pykubelet.observe.pleg.unknown import UnknownIds

log = Log("pleg")

RESUBSCRIBE_S = (0.05, 0.1, 0.2, 0.5, 1.0)
#: When to ask for a container after a hint of its end. containerd says "stopped", some 20 ms later "reaped", and another
#: 12 to 20 ms later its CRI status says so: waiting for "reaped" comes first, then asking. With CRI's own events the
#: status is right at once. On a machine with more to do than it can, containerd may need seconds.
REAP_S = 0.08
EXIT_LAG_S: tuple[float, ...] = (0.012, 0.004, 0.004, 0.004, 0.006, 0.012, 0.02, 0.04, 0.08, 0.2, 0.4, *(0.5,) * 60)
EXIT_LAG_OF_CRI_S: tuple[float, ...] = (0.0, *EXIT_LAG_S)
SANDBOX_LAG_S = (0.25, 0.25, 0.5, 1.0, 2.0, 3.0)
RETRY_S = 0.5
#: A runtime that is away is asked when it is back, which report/node sees, and so often in case that one is wrong.
AWAY_S = 15.0
#: How long a full look waits for single pods whose statuses do not come; after that it counts without them.
PATIENCE_S = 1.0

Hints = Callable[[CriClient], AsyncIterator[RuntimeHint]]


class RelistPeriods(Value):
    """Seconds between full looks, with and without an event stream.

    `stopper_s`: so long whoever stops something has for telling that it has ended, once a hint has said so.
    `unknown_s`: so long an id may be unknown before a full look.
    """

    with_events_s: float = 10.0
    without_events_s: float = 1.0
    stopper_s: float = 5.0
    unknown_s: float = 2.0


class _Listed(Value):
    """One pod in a full list, and when that list was begun."""

    found: ListedPod
    read_at: float


class LookoutCells(Value):
    """The cell it writes, and the one it reads."""

    observed: CellWriter[Observed]
    runtime: Cell[RuntimeReady]


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


class PodLookout:
    """observe/pleg's loop. `run` never returns."""

    def __init__(
        self,
        cri: CriClient,
        clock: Clock,
        cells: LookoutCells,
        mailbox: Mailbox[PodTouched | BeingStopped],
        periods: RelistPeriods,
        happenings: Post[Happening],
        hints: Hints = watch_runtime,
    ) -> None:
        self._cri = cri
        self._clock = clock
        self._observed = cells.observed
        self._runtime = cells.runtime
        self._mailbox = mailbox
        self._periods = periods
        self._happenings = happenings
        self._hints = hints
        self._pods: dict[PodUID, PodView] = {}
        self._refs: dict[PodUID, PodRef] = {}
        self._reading: set[PodUID] = set()
        self._again: set[PodUID] = set()
        self._stale: dict[PodUID, frozenset[ContainerID]] = {}
        self._ending: dict[str, asyncio.Event] = {}
        self._being_stopped: dict[str, asyncio.TimerHandle | None] = {}
        self._oom_killed: set[str] = set()
        self._listed_at: float | None = None
        self._unread: frozenset[PodRef] = frozenset()
        self._relist_due = asyncio.Event()
        self._unknown = UnknownIds(clock, periods.unknown_s, self._relist_due)
        self._has_events = False
        self._failing: set[PodUID] = set()
        self._list_failed = False
        self._supervisor = Supervisor("pleg")

    async def run(self) -> None:
        async with self._supervisor as supervisor:
            supervisor.start_root("pleg-hints", self._follow_hints())
            supervisor.start_root("pleg-relist", self._relist_when_due())
            supervisor.start_root("pleg-touched", self._follow_touches())
            raise await supervisor.wait_failed()

    # Wake-ups

    async def _follow_touches(self) -> None:
        while True:
            for touch in await self._mailbox.get_all():
                if isinstance(touch, BeingStopped):
                    self._follow_stop(touch)
                    continue
                self._refs.setdefault(touch.ref.uid, touch.ref)
                self._follow_touch(touch)

    def _follow_touch(self, touch: PodTouched) -> None:
        uid, answer = touch.ref.uid, touch.answer
        if touch.changed:
            self._stale[uid] = self._stale.get(uid, frozenset()) | touch.changed
        if isinstance(answer, Removed):
            self._take(PodView(touch.ref, read_at=answer.at))
        elif isinstance(answer, Stopped) and (view := self._stopped(uid, answer.at)) is not None:
            self._take(view)
        else:
            self._mark(uid, answer if isinstance(answer, Started) else None)

    def _stopped(self, uid: PodUID, at: float) -> PodView | None:
        """A pod after all of it was stopped; None when more must be known of it for that."""
        view = self._pods.get(uid)
        if view is None or uid in self._reading or any(c.state is not ContainerState.EXITED for c in view.containers):
            return None
        return replace(view, sandboxes=tuple(replace(s, ready=False) for s in view.sandboxes), read_at=at)

    def _follow_stop(self, stop: BeingStopped) -> None:
        if not stop.is_over:
            self._being_stopped.setdefault(stop.id, None)
            return
        timer = self._being_stopped.pop(stop.id, None)
        if timer is not None:
            timer.cancel()
        view = self._pods.get(stop.ref.uid)
        if view is not None and not stop.for_good and any(c.id == stop.id for c in view.containers):
            self._await_exit(stop.ref.uid, stop.id, EventSource.CRI)  # of sandboxes the pod's next touch tells

    async def _follow_hints(self) -> None:
        failures = 0
        while True:
            try:
                async for hint in self._hints(self._cri):
                    failures = 0
                    self._take_hint(hint)
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
            await self._runtime_there()

    async def _runtime_there(self) -> None:
        """Before asking again what could not be asked."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AWAY_S):
                await self._runtime.wait_for(lambda now: not now.away)

    def _take_hint(self, hint: RuntimeHint) -> None:
        if hint.kind is HintKind.SUBSCRIBED:
            log.info("following runtime events", source=hint.source)
            SUBSCRIPTIONS.inc()
            self._has_events = True
            self._relist_due.set()
            return
        hint = self._without_doubtful_end(hint)
        uid = PodUID(hint.pod_uid) if hint.pod_uid else find_pod(self._pods, hint.id)
        if uid is None or uid not in self._refs:
            self._unknown.note(hint)
        elif hint.kind in (HintKind.STOPPED, HintKind.REAPED):
            self._take_end(uid, hint)
        elif hint.kind not in (HintKind.STARTED, HintKind.CREATED) or not self._knows(uid, hint.id):
            self._mark(uid)

    def _without_doubtful_end(self, hint: RuntimeHint) -> RuntimeHint:
        """Exit code 0 after the kernel killed a process for its memory is no success: the runtime's status decides."""
        if hint.kind is HintKind.OOM:
            self._oom_killed.add(hint.id)
        elif hint.id in self._oom_killed and hint.end is not None and hint.end.exit_code == 0:
            return replace(hint, end=None)
        return hint

    def _knows(self, uid: PodUID, runtime_id: str) -> bool:
        view = self._pods.get(uid)
        if view is None:
            return False
        state = next((c.state for c in view.containers if c.id == runtime_id), None)
        return state is ContainerState.RUNNING or any(s.id == runtime_id for s in view.sandboxes)

    def _take_end(self, uid: PodUID, hint: RuntimeHint) -> None:
        """How a container has ended may be acted on before the runtime's status says so."""
        view = self._pods.get(uid)
        if view is not None and hint.end is not None and hint.id not in self._being_stopped:
            told = view.with_ends((hint.end,))
            if told.ends != view.ends:
                self._take(told)
        self._await_exit(uid, hint.id, hint.source)

    def _await_exit(self, uid: PodUID, runtime_id: str, source: EventSource) -> None:
        """Something has ended, says a hint; look until the runtime says so too. A second hint of it: it was reaped."""
        if runtime_id in self._being_stopped:
            if self._being_stopped[runtime_id] is None:
                after, late = asyncio.get_running_loop().call_later, self._periods.stopper_s
                self._being_stopped[runtime_id] = after(late, self._miss_stopper, uid, runtime_id, source)
            return
        reaped = self._ending.get(runtime_id)
        if reaped is not None:
            reaped.set()
            return
        if _is_known_to_have_ended(self._pods.get(uid), runtime_id):
            return
        reaped = self._ending[runtime_id] = asyncio.Event()
        work = self._read_until_ended(uid, runtime_id, reaped, source)
        self._supervisor.start_child(f"pleg-exit-{runtime_id[:12]}", work)

    def _miss_stopper(self, uid: PodUID, runtime_id: str, source: EventSource) -> None:
        del self._being_stopped[runtime_id]
        self._await_exit(uid, runtime_id, source)

    async def _read_until_ended(self, uid: PodUID, runtime_id: str, reaped: asyncio.Event, source: EventSource) -> None:
        hinted_at = self._clock.monotonic()
        try:
            view = self._pods.get(uid)
            pauses = EXIT_LAG_OF_CRI_S
            if view is not None and any(s.id == runtime_id for s in view.sandboxes):
                pauses = SANDBOX_LAG_S  # whoever stops a pod looks at it afterwards
            elif source is EventSource.CONTAINERD:
                pauses = EXIT_LAG_S
                await _rung(reaped, REAP_S)
            for pause in pauses:
                await asyncio.sleep(pause)
                view = self._pods.get(uid)
                if runtime_id in self._being_stopped or view is None or _has_ended(view, runtime_id, hinted_at):
                    return
                await self._read_exit(uid, runtime_id)
        finally:
            del self._ending[runtime_id]

    async def _read_exit(self, uid: PodUID, runtime_id: str) -> None:
        """Ask for one container alone: that is all a hint of its end is about. Anything else: the whole pod."""
        try:
            ended = await read_exit(self._cri, self._pods[uid], runtime_id)
        except CriError:
            ended = None
        view = self._pods.get(uid)
        if ended is None or view is None:
            self._mark(uid)
        elif ended.state is ContainerState.EXITED:
            containers = tuple(ended if c.id == ended.id and c.is_running else c for c in view.containers)
            self._take(replace(view, containers=containers))

    # Looking

    def _mark(self, uid: PodUID, begin: _Listed | Started | None = None) -> asyncio.Task[None] | None:
        """Have a pod read; once more if it is being read already. `begin`: with what a list has shown, or was started."""
        if uid in self._reading:
            self._again.add(uid)
            return None
        self._reading.add(uid)
        return self._supervisor.start_child(f"pleg-read-{uid}", self._read(uid, begin))

    async def _read(self, uid: PodUID, begin: _Listed | Started | None) -> None:
        while True:
            if begin is None:  # whoever touched the pod meanwhile wants a look that begins now
                self._again.discard(uid)
            began = self._clock.monotonic()
            try:
                self._take(await self._look(uid, begin))
                READ_DURATIONS.observe(self._clock.monotonic() - began)
                self._failing.discard(uid)
            except Exception as error:  # a pod that cannot be understood must not blind us for the others
                if uid not in self._failing:
                    bug = None if isinstance(error, CriError) else error
                    ref = self._refs[uid]
                    log.error("cannot read a pod from the runtime", pod=ref, uid=uid, error=error, exc_info=bug)
                    self._happenings.post(warning(EVENT_FAILED_SYNC, f"error determining status: {error}", ref))
                    self._failing.add(uid)
                self._again.add(uid)
                await asyncio.sleep(RETRY_S)
                await self._runtime_there()
            if uid not in self._again:
                self._reading.discard(uid)
                return
            begin = None

    async def _look(self, uid: PodUID, begin: _Listed | Started | None) -> PodView:
        ref, known, stale = self._refs[uid], self._pods.get(uid), self._stale.get(uid, frozenset())
        if known is not None and stale:
            known = replace(known, containers=tuple(c for c in known.containers if c.id not in stale))
        if begin is None:
            view = await read_pod(self._cri, self._clock, ref, known)
        elif isinstance(begin, Started):
            view = await read_started(self._cri, self._clock, ref, begin, known)
        else:
            view = await complete_pod(self._cri, ref, begin.found, known, begin.read_at)
        if stale and (left := self._stale.pop(uid) - stale):
            self._stale[uid] = left
        return view

    def _take(self, view: PodView) -> None:
        """Publish one pod's newer view."""
        uid = view.ref.uid
        known = self._pods.get(uid)
        if known is not None and known.read_at > view.read_at:
            return
        hints = self._ends_known_before(view)
        ends = [hint.end for hint in hints if hint.end is not None]
        if known is not None:
            view = _without_resurrection(known, view)
            ends += known.ends
        view = view.with_ends(ends) if ends else view
        self._pods = {**self._pods, uid: view}
        self._refs.setdefault(uid, view.ref)
        self._unread -= {view.ref}
        self._observed.publish(Observed(self._pods, self._listed_at, self._unread))
        for hint in hints:
            self._await_exit(uid, hint.id, EventSource.CRI)

    def _ends_known_before(self, view: PodView) -> list[RuntimeHint]:
        """What hints have told of the ends of containers that this look shows for the first time."""
        shown = (*(c.id for c in view.containers), *(s.id for s in view.sandboxes))
        hints = (self._unknown.take(runtime_id) for runtime_id in shown)
        return [hint for hint in hints if hint is not None and hint.kind not in (HintKind.CREATED, HintKind.STARTED)]

    async def _relist_when_due(self) -> None:
        last: float | None = None
        while True:
            self._relist_due.clear()
            began = self._clock.monotonic()
            if last is not None:
                RELIST_INTERVALS.observe(began - last)
            last = began
            LAST_SEEN.set(self._clock.wall())
            await self._relist()
            RELIST_DURATIONS.observe(self._clock.monotonic() - began)
            if self._list_failed and self._runtime.get().away:
                await self._runtime_there()
                continue
            period = self._periods.with_events_s if self._has_events else self._periods.without_events_s
            try:
                async with asyncio.timeout(period):
                    await self._relist_due.wait()
            except TimeoutError:
                continue

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
        reads = []
        for ref, found in listed.items():
            self._refs[ref.uid] = ref
            known = self._pods.get(ref.uid)
            if known is None or (known.read_at <= read_at and not is_unchanged(known, *found)):
                reads.append(self._mark(ref.uid, _Listed(found, read_at)))
        if under_way := [read for read in reads if read is not None]:
            await asyncio.wait(under_way, timeout=PATIENCE_S)
        present = {ref.uid for ref in listed}
        pods = dict(self._pods)
        for uid, view in self._pods.items():
            if uid not in present and view.read_at < read_at:
                if not view.is_gone:
                    pods[uid] = PodView(view.ref, read_at=read_at)
                elif uid not in self._reading:
                    del pods[uid]
                    self._refs.pop(uid, None)
        self._pods = pods
        self._listed_at = read_at
        self._unread = frozenset(ref for ref in listed if ref.uid not in pods)
        shown = ids_of(listed.values())
        self._unknown.keep_only(shown, read_at)
        self._oom_killed = {one for one in self._oom_killed if one in shown or one in self._unknown}
        self._observed.publish(Observed(pods, read_at, self._unread))


def _without_resurrection(known: PodView, view: PodView) -> PodView:
    """A container seen ended stays ended, also in a look that began before its end was read."""
    ended = {c.id: c for c in known.containers if c.state is ContainerState.EXITED}
    if not any(c.is_running and c.id in ended for c in view.containers):
        return view
    return replace(view, containers=tuple(ended.get(c.id, c) if c.is_running else c for c in view.containers))


async def _rung(bell: asyncio.Event, within_s: float) -> None:
    """Wait for the bell, at most so long."""
    try:
        async with asyncio.timeout(within_s):
            await bell.wait()
    except TimeoutError:
        return


def _is_known_to_have_ended(view: PodView | None, runtime_id: str) -> bool:
    return view is not None and any(c.id == runtime_id and c.state is ContainerState.EXITED for c in view.containers)


def _has_ended(view: PodView, runtime_id: str, hinted_at: float) -> bool:
    """Whether the end that a hint told of is in the view; something that a later look does not show is gone."""
    container = next((c for c in view.containers if c.id == runtime_id), None)
    if container is not None:
        return container.state is ContainerState.EXITED
    sandbox = next((s for s in view.sandboxes if s.id == runtime_id), None)
    return not sandbox.ready if sandbox is not None else view.read_at >= hinted_at
