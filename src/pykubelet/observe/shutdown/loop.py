"""Delays a shutdown of the machine until the pods have ended, lowest priority first.

Owns: the cell `NodeShutdown`, the inhibitor lock and the connection to logind, which announces shutdowns. Reads:
`Lifecycles`. `decide` forms the groups. `act/pods` (ends the pods), `report/node` (the Node's condition) and
`desired/roster` (admission) follow the cell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight, start_thread
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.evictions import NodeShutdown
from pykubelet.base.model.kube_events import KubeEvent, normal
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.reasons import EVENT_SHUTDOWN
from pykubelet.edges.host.fs.errors import HostError, Translating
from pykubelet.observe.shutdown.decide import PodsOfGroup, ShutdownGroup, delay_s, is_there, pods_by_group
from pykubelet.observe.shutdown.record import ShutdownRecord

if TYPE_CHECKING:
    from pykubelet.edges.host.services.logind import Lock, ShutdownManager

log = Log("shutdown")
T = TypeVar("T")
DETECTED = "Shutdown manager detected shutdown event"
CANCELLED = "Shutdown manager detected shutdown cancellation"
#: Seconds for one call of the shutdown manager.
CALL_DEADLINE_S = 15.0
#: Seconds before the next connection: after a connection has worked, and while none has worked yet.
RECONNECT_S, RETRY_S = 1.0, 30.0
#: How often the raised delay is read again, and the pauses before each read.
DELAY_READS, DELAY_PAUSES = 5, BackoffPolicy(0.1, 1.6)


class Announced(Value):
    """A shutdown was announced (`active`) or cancelled."""

    active: bool


class Ended(Value):
    """The connection to the shutdown manager has ended."""

    error: str


class ShutdownLoop:
    """Graceful node shutdown. `run` never returns. `connect`: opens the shutdown manager; it blocks, and raises HostError."""

    def __init__(
        self,
        groups: tuple[ShutdownGroup, ...],
        connect: Callable[[], ShutdownManager],
        lifecycles: Cell[Lifecycles],
        state: CellWriter[NodeShutdown],
        recorder: Post[KubeEvent],
        record: ShutdownRecord,
        clock: Clock,
        flight: SingleFlight,
    ) -> None:
        self._groups = groups
        self._connect = connect
        self._lifecycles = lifecycles
        self._state = state
        self._recorder = recorder
        self._record = record
        self._clock = clock
        self._flight = flight
        self._mailbox: Mailbox[Announced | Ended] = Mailbox("shutdown")
        self._supervisor = Supervisor("shutdown")
        self._ending: asyncio.Task[None] | None = None
        self._lock: Lock | None = None

    async def run(self) -> None:
        """Follow the announcements; connect again whenever the connection ends."""
        await self._record.load()
        has_worked, problem = False, ""
        async with self._supervisor:
            while True:
                try:
                    manager = await self._call("connect", self._connect)
                    try:
                        await self._inhibit(manager)
                        has_worked, problem = True, ""
                        await self._follow(manager)
                    finally:
                        manager.close()
                except HostError as error:
                    if str(error) != problem:
                        log.warning("cannot watch for a shutdown of the machine; it is tried again", error=error)
                    problem = str(error)
                await asyncio.sleep(RECONNECT_S if has_worked else RETRY_S)

    async def _inhibit(self, manager: ShutdownManager) -> None:
        """Make sure that the delay is long enough, and take the lock. The previous lock is released afterwards."""
        await self._ensure_delay(manager)
        if self._ending is None or self._ending.done():
            self._replace_lock(await self._call("inhibit", manager.inhibit))

    async def _ensure_delay(self, manager: ShutdownManager) -> None:
        wanted = delay_s(self._groups)
        found = await self._call("delay", manager.max_delay_s)
        if found >= wanted:
            return
        await self._call("raise", lambda: manager.raise_max_delay(wanted))
        for attempt in range(1, DELAY_READS + 1):
            await asyncio.sleep(DELAY_PAUSES.delay_s(attempt))
            found = await self._call("delay", manager.max_delay_s)
            if found >= wanted:
                return
        message = (
            f"node shutdown manager was timed out after {DELAY_READS} attempts waiting for logind InhibitDelayMaxSec to "
            f"update to {wanted}s (ShutdownGracePeriod), current value is {found:g}s"
        )
        raise HostError("inhibit", "", "", message)

    async def _follow(self, manager: ShutdownManager) -> None:
        """Act on announcements until the connection ends."""
        with Translating("watch", "logind"):
            start_thread(partial(self._watch, manager, asyncio.get_running_loop()), "logind")
        while True:
            match await self._mailbox.get():
                case Announced(active=True):
                    self._begin()
                case Announced():
                    await self._cancel(manager)
                case Ended(error=error):
                    raise HostError("watch", "logind", "", error)

    def _watch(self, manager: ShutdownManager, loop: asyncio.AbstractEventLoop) -> None:
        """The watching thread: posts announcements, and finally that the connection has ended."""

        def post(event: Announced | Ended) -> None:
            try:
                loop.call_soon_threadsafe(self._mailbox.post, event)
            except RuntimeError:
                pass  # the agent has ended

        try:
            manager.watch(lambda active: post(Announced(active)))
            post(Ended("the connection was closed"))
        except HostError as error:
            post(Ended(str(error)))

    def _begin(self) -> None:
        self._recorder.post(normal(EVENT_SHUTDOWN, DETECTED))
        if self._ending is not None and not self._ending.done():
            return
        log.info("the machine is being shut down: its pods end now")
        self._state.publish(replace(self._state.get(), active=True))
        self._ending = self._supervisor.start_child("shutdown-pods", self._end_pods(), self._ended_by_bug)

    async def _cancel(self, manager: ShutdownManager) -> None:
        """Cancel the shutdown: terminating pods still end, pods of later groups keep running. The next shutdown is delayed again."""
        self._recorder.post(normal(EVENT_SHUTDOWN, CANCELLED))
        log.info("the shutdown of the machine was cancelled")
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.wait([self._ending])  # it releases the lock of this shutdown
            self._ending = None
        there = self._lifecycles.get().pods
        orders = {uid: order for uid, order in self._state.get().pods.items() if uid in there}
        self._state.publish(NodeShutdown(active=False, pods=orders))
        self._replace_lock(await self._call("inhibit", manager.inhibit))

    async def _end_pods(self) -> None:
        """End the groups one after the other, then release the lock, so that the machine shuts down."""
        try:
            await self._record.began(self._clock.wall())
            for members in pods_by_group(self._lifecycles.get(), self._groups):
                await self._end_group(members)
        finally:
            try:
                await self._record.ended(self._clock.wall())
            finally:
                self._replace_lock(None)

    async def _end_group(self, members: PodsOfGroup) -> None:
        """Evict the pods of a group, and wait until they have finished or the group's grace period has passed."""
        log.info("pods end", priority=members.group.priority, grace_s=members.group.grace_s, pods=len(members.pods))
        now = self._state.get()
        self._state.publish(replace(now, pods={**now.pods, **members.pods}))
        try:
            async with asyncio.timeout(members.group.grace_s):
                async for lifecycles in self._lifecycles.changes():
                    if not any(is_there(lifecycles.pods.get(uid)) for uid in members.pods):
                        return
        except TimeoutError:
            left = [
                str(order.ref) for uid, order in members.pods.items() if is_there(self._lifecycles.get().pods.get(uid))
            ]
            log.warning("pods have not ended in time", priority=members.group.priority, pods=", ".join(left[:10]))

    def _ended_by_bug(self, _error: BaseException) -> None:
        """Do nothing: the supervisor has logged the error, and the lock is released, so the machine does not hang."""

    def _replace_lock(self, lock: Lock | None) -> None:
        before, self._lock = self._lock, lock
        if before is not None:
            before.release()

    async def _call(self, name: str, work: Callable[[], T]) -> T:
        """Run a blocking call in a thread. HostError also if it does not return in time."""
        outcome = await self._flight.run(f"shutdown:{name}", work, CALL_DEADLINE_S)
        match outcome:
            case Done(value=value):
                return value
            case Failed(error=error):
                raise error
        raise HostError(name, "logind", "", "no answer in time")
