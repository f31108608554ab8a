"""Sends Events to the API server, with the lowest priority.

Owns: the queue of unsent Events. No component waits for it. The queue is bounded, repetitions of a queued Event are sent as
one, and while the API server is away, Events wait until it is back.

Rules:
- Pods have priority: Events wait while new Events arrive and while the runtime creates pods, at most HOLD_S.
- An Event of the node waits for the Node's UID, by which clients find it. Other Events overtake it, and after a minute it is
  sent without the UID.
- An Event is created once; repetitions patch its count. If it no longer exists, it is created again.
- An Event that the server refuses is dropped. After other errors it is sent again.

Source: `eventRecordQPS`, `eventBurst` of KubeletConfiguration, which are the limits of the client that is used here.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict

import msgspec

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, Mailbox
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.kube_events import Occurrence
from pykubelet.base.model.lifecycle import Starts
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.roster import Roster
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.events.render_event import event_namespace, render_event, render_repetition

log = Log("events")
QUEUE_MAX = 1000
REMEMBERED = 4096
#: Seconds without a new Event before Events are sent, so that the requests and statuses of pods are sent first.
SETTLE_S = 0.2
#: The longest time in seconds that an Event waits for such a pause.
HOLD_S = 5.0
#: The longest time in seconds that an Event of the node waits for the Node's UID: a busy API server may register it late.
NAMELESS_S = 60.0
RETRY_S, RETRY_MAX_S = 0.5, 10.0
TRIES = 12


class _Taken(msgspec.Struct, frozen=True):
    """An answer whose content is not needed."""


class _Waiting(Value):
    """An Event to send. `since`: when it, or the first of its queued repetitions, arrived, in monotonic seconds."""

    found: Occurrence
    since: float


class EventPeriods(Value):
    """Seconds. `settle_s`: the time without a new Event before Events are sent. `hold_s`: the longest time that an Event waits
    for that. `retry_max_s`: the longest pause after a failure."""

    settle_s: float = SETTLE_S
    hold_s: float = HOLD_S
    retry_max_s: float = RETRY_MAX_S


class EventSender:
    """Sends Events. `run` never returns. `client`: has the rate limit of Events."""

    def __init__(
        self,
        client: ApiClient,
        waiting: Mailbox[Occurrence],
        roster: Cell[Roster],
        starts: Cell[Starts],
        node: Cell[NodeView],
        clock: Clock,
        periods: EventPeriods | None = None,
    ) -> None:
        self._client = client
        self._mailbox = waiting
        self._roster = roster
        self._starts = starts
        self._node = node
        self._clock = clock
        self._periods = periods or EventPeriods()
        self._backoff = BackoffPolicy(RETRY_S, self._periods.retry_max_s)
        self._queue: OrderedDict[int, _Waiting] = OrderedDict()
        self._newest_at = float("-inf")
        self._names: OrderedDict[int, str] = OrderedDict()
        self._filled = asyncio.Event()
        self._dropped = 0

    async def run(self) -> None:
        """Send Events to the API server, the oldest first. Never returns."""
        async with Supervisor("event-sender") as supervisor:
            supervisor.start_root("events-queue", self._collect())
            supervisor.start_root("events-send", self._send_always())
            raise await supervisor.wait_failed()

    async def _collect(self) -> None:
        while True:
            news = await self._mailbox.get_all()
            self._newest_at = now = self._clock.monotonic()
            for found in news:
                known = self._queue.get(found.serial)  # a repetition replaces the queued Event
                self._queue[found.serial] = _Waiting(found, known.since if known is not None else now)
                if len(self._queue) > QUEUE_MAX:
                    self._queue.popitem(last=False)
                    self._log_dropped()
            self._filled.set()

    def _log_dropped(self) -> None:
        self._dropped += 1
        if self._dropped & (self._dropped - 1) == 0:  # log the first, and then more and more rarely
            log.warning("too many Events are waiting; the oldest is dropped", dropped=self._dropped)

    async def _send_always(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._queue:
                await self._lull()
                await self._send(self._queue.pop(self._next()).found)

    async def _lull(self) -> None:
        """Wait until no Event has arrived for a while and no pod is being created, or the oldest Event has waited long enough."""
        while self._queue:
            now = self._clock.monotonic()
            first = self._queue[self._next()]
            is_nameless = self._is_nameless(first.found)
            held_s = first.since + (NAMELESS_S if is_nameless else self._periods.hold_s) - now
            calm_s = self._newest_at + self._periods.settle_s - now
            if calm_s <= 0 and (is_nameless or self._starts.get().any_long(self._clock.wall(), self._periods.hold_s)):
                calm_s = self._periods.settle_s
            if min(held_s, calm_s) <= 0:
                return
            await asyncio.sleep(min(held_s, calm_s))

    def _next(self) -> int:
        """The serial of the oldest Event whose object's UID is known; if there is none, of the oldest Event."""
        named = (serial for serial, waiting in self._queue.items() if not self._is_nameless(waiting.found))
        return next(named, next(iter(self._queue)))

    def _is_nameless(self, found: Occurrence) -> bool:
        """Whether it is an Event of the node, and the Node's UID is not known yet."""
        return found.kube_event.pod is None and not self._node.get().uid

    async def _send(self, found: Occurrence) -> None:
        """Send an Event until it is accepted or refused, or was tried `TRIES` times with an answer."""
        failures, refusals = 0, 0
        while refusals < TRIES:
            try:
                await self._send_once(found)
                return
            except ApiError as error:
                if not error.is_transient:
                    log.debug("the API server refuses an Event", reason=found.kube_event.reason, error=error)
                    return
                failures += 1
                refusals += error.status > 0
                delay = self._backoff.delay_s(failures) * random.uniform(0.5, 1.5)
                await asyncio.sleep(max(delay, error.retry_after_s or 0.0))
                newer = self._queue.pop(found.serial, None)
                found = newer.found if newer is not None else found

    async def _send_once(self, found: Occurrence) -> None:
        path = f"/api/v1/namespaces/{event_namespace(found)}/events"
        name = self._names.get(found.serial)
        if name is not None:
            try:
                await self._client.patch(f"{path}/{name}", render_repetition(found), PatchKind.STRATEGIC, _Taken)
                return
            except ApiError as error:
                if not error.is_not_found:
                    raise
                del self._names[found.serial]
        event = render_event(found, self._node.get(), self._version(found))
        try:
            await self._client.create(path, event, _Taken)
        except ApiError as error:
            if not error.already_exists:  # an earlier try has created it, but its answer was lost
                raise
        self._names[found.serial] = event.metadata.name
        if len(self._names) > REMEMBERED:
            self._names.popitem(last=False)

    def _version(self, found: Occurrence) -> str:
        pod = found.kube_event.pod
        entry = self._roster.get().pods.get(pod.uid) if pod is not None else None
        return entry.pod.metadata.resourceVersion if entry is not None else ""
