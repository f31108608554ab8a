"""Graceful node shutdown: the lock, the groups in their order, cancellations, and a shutdown manager that goes away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from report.samples import make_pod
from support.threads import refuse_threads
from support.virtual_time import VirtualClock, VirtualLoop

from pykubelet.base.kit.cells import Cell, CellWriter, Sink, make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.evictions import NodeShutdown
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.roster import pod_ref
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.observe.shutdown.decide import ShutdownGroup
from pykubelet.observe.shutdown.loop import RECONNECT_S, ShutdownLoop
from pykubelet.observe.shutdown.record import END_TIME, START_TIME, ShutdownRecord

WALL = 1_767_323_045.0
LOW, HIGH = ShutdownGroup(0, 20), ShutdownGroup(1000, 10)


class MemoryLock:
    """A lock that is held until it is released."""

    def __init__(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False


class MemoryShutdownManager:
    """A shutdown manager without a bus. `reads_changes`: after so many looks a raised delay is in force."""

    def __init__(self, delay_s: float = 60.0, reads_changes: int = 1) -> None:
        self.delay_s = delay_s
        self.raised: list[int] = []
        self.locks: list[MemoryLock] = []
        self.connections = 0
        self.announce: Callable[[bool], None] = lambda _: None
        self._left = reads_changes
        self._closed = threading.Event()
        self._watching = threading.Event()
        self._watchers: list[threading.Thread] = []
        self._error = ""

    def connect(self) -> MemoryShutdownManager:
        self.connections += 1
        self._closed.clear()
        return self

    def max_delay_s(self) -> float:
        if self.raised:
            self._left -= 1
            if self._left <= 0:
                self.delay_s = float(self.raised[-1])
        return self.delay_s

    def raise_max_delay(self, seconds: int) -> None:
        self.raised.append(seconds)

    def inhibit(self) -> MemoryLock:
        self.locks.append(MemoryLock())
        return self.locks[-1]

    def watch(self, announce: Callable[[bool], None]) -> None:
        self.announce = announce
        self._watchers.append(threading.current_thread())
        self._watching.set()
        self._closed.wait(60)
        if self._error:
            error, self._error = self._error, ""
            raise HostError("watch", "logind", "", error)

    def close(self) -> None:
        self._closed.set()

    async def fail(self, error: str) -> None:
        """End the connection. Virtual time passes again when the watching thread has reported it."""
        self._error = error
        self._closed.set()
        await asyncio.get_running_loop().run_in_executor(None, self._watchers[-1].join)

    async def wait_watched(self) -> None:
        """Wait for the watching thread. Each look takes real time too, so that a slow machine takes little virtual time."""
        while not await asyncio.get_running_loop().run_in_executor(None, self._watching.wait, 0.01):  # noqa: ASYNC110 - a thread
            await asyncio.sleep(0.01)
        self._watching.clear()

    def held(self) -> int:
        return sum(1 for lock in self.locks if lock.is_held)


class Stand:
    """The loop, with pods that the test ends."""

    def __init__(self, folder: Path, loop: VirtualLoop, groups: tuple[ShutdownGroup, ...]) -> None:
        self.manager = MemoryShutdownManager()
        self.lifecycles: Cell[Lifecycles]
        self._lives: CellWriter[Lifecycles]
        self.lifecycles, self._lives = make_cell("lifecycles", Lifecycles())
        self.state, writer = make_cell("shutdown", NodeShutdown())
        self.recorder: Sink[KubeEvent] = Sink()
        self.flight = SingleFlight("test")
        self.record = folder / "graceful_node_shutdown_state"
        self.loop = ShutdownLoop(
            groups,
            self.manager.connect,
            self.lifecycles,
            writer,
            self.recorder,
            ShutdownRecord(str(self.record), self.flight),
            VirtualClock(loop, WALL),
            self.flight,
        )

    def add(self, name: str, priority: int | None = None, grace_s: int | None = 30) -> PodUID:
        pod = make_pod(name=name, uid=f"uid-{name}", priority=priority, terminationGracePeriodSeconds=grace_s)
        life = PodLifecycle(pod_ref(pod), pod, Stage.SYNCING, WALL, WALL)
        self._lives.publish(Lifecycles({**self.lifecycles.get().pods, life.ref.uid: life}))
        return life.ref.uid

    def end(self, uid: PodUID) -> None:
        self._lives.publish(Lifecycles({key: life for key, life in self.lifecycles.get().pods.items() if key != uid}))

    def events(self) -> list[str]:
        return [f"{event.type} {event.reason} {event.message}" for event in self.recorder.events]

    async def wait(self, condition: Callable[[], bool], within_s: float = 600.0) -> float:
        """Virtual seconds until it is so."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            assert loop.time() < began + within_s, "never so"
            await asyncio.sleep(0.01)
        return loop.time() - began


Work = Callable[[Stand], Coroutine[Any, Any, None]]


@contextmanager
def running(loop: VirtualLoop) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        yield runner


def play(folder: Path, work: Work, *groups: ShutdownGroup) -> None:
    loop = VirtualLoop()
    with running(loop) as runner:
        stand = Stand(folder, loop, groups or (LOW, HIGH))

        async def main() -> None:
            task = asyncio.create_task(stand.loop.run())
            try:
                await work(stand)
            finally:
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.exception() is None

        runner.run(main())


def test_the_groups_end_one_after_the_other_and_then_the_machine_may_go_down(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        late, early, own = stand.add("late", 1500), stand.add("early", 10), stand.add("own", None, 5)
        await stand.manager.wait_watched()
        assert stand.manager.held() == 1 and not stand.state.get().active
        stand.manager.announce(True)
        await stand.wait(lambda: len(stand.state.get().pods) == 2)
        now = stand.state.get()
        assert now.active and set(now.pods) == {early, own}
        assert [now.pods[uid].grace_s for uid in (early, own)] == [20, 5], (
            "the shorter of the group's and the pod's own"
        )
        assert now.pods[early].reason == "Terminated"
        assert now.pods[early].message == "Pod was terminated in response to imminent node shutdown."
        stand.end(early)
        await asyncio.sleep(3)
        assert set(stand.state.get().pods) == {early, own}, "the next group waits for all of this one"
        stand.end(own)
        await stand.wait(lambda: late in stand.state.get().pods)
        assert stand.manager.held() == 1
        stand.end(late)
        await stand.wait(lambda: stand.manager.held() == 0)
        assert stand.events() == ["Normal Shutdown Shutdown manager detected shutdown event"]
        assert stand.state.get().active
        assert '"startTime":"2026-01-02T03:04:05Z"' in stand.record.read_text()
        assert START_TIME.value() >= WALL and END_TIME.value() >= START_TIME.value() + 3

    play(tmp_path, work)


def test_a_pod_that_does_not_end_delays_the_next_group_by_its_groups_time_only(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add("stuck", 0)
        late = stand.add("late", 1000)
        await stand.manager.wait_watched()
        stand.manager.announce(True)
        assert 19 <= await stand.wait(lambda: late in stand.state.get().pods) <= 21
        assert 9 <= await stand.wait(lambda: stand.manager.held() == 0) <= 11

    play(tmp_path, work)


def test_a_disk_that_hangs_delays_a_shutdown_by_seconds(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        loop, release = asyncio.get_running_loop(), threading.Event()
        assert isinstance(loop, VirtualLoop)
        late = stand.add("late", 0)
        await stand.manager.wait_watched()
        loop.hung.add("shutdown:record")
        hanging = loop.create_task(stand.flight.run("shutdown:record", release.wait, 1e4))
        await asyncio.sleep(0)
        stand.manager.announce(True)
        assert await stand.wait(lambda: late in stand.state.get().pods) < 3
        stand.end(late)
        assert await stand.wait(lambda: stand.manager.held() == 0) < 3
        release.set()
        await hanging

    play(tmp_path, work)


def test_a_group_without_pods_takes_no_time(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        late = stand.add("late", 5000)
        await stand.manager.wait_watched()
        stand.manager.announce(True)
        assert await stand.wait(lambda: late in stand.state.get().pods) < 1

    play(tmp_path, work)


def test_a_cancelled_shutdown_ends_no_further_group_and_is_delayed_again(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        early, late = stand.add("early", 0), stand.add("late", 1000)
        await stand.manager.wait_watched()
        stand.manager.announce(True)
        await stand.wait(lambda: early in stand.state.get().pods)
        stand.manager.announce(False)
        await stand.wait(lambda: not stand.state.get().active)
        await stand.wait(lambda: stand.manager.held() == 1)
        await asyncio.sleep(60)
        assert set(stand.state.get().pods) == {early}, "its end had begun"
        assert stand.events()[1] == "Normal Shutdown Shutdown manager detected shutdown cancellation"
        stand.manager.announce(True)
        await stand.wait(lambda: late in stand.state.get().pods)

    play(tmp_path, work)


def test_a_delay_that_is_too_short_is_raised_before_the_lock_is_taken(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.manager.delay_s = 5.0
        await stand.manager.wait_watched()
        assert stand.manager.raised == [30]
        assert stand.manager.held() == 1

    play(tmp_path, work)


def test_a_delay_that_stays_short_is_reported_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(stand: Stand) -> None:
        stand.manager = MemoryShutdownManager(delay_s=5.0, reads_changes=1000)
        stand.loop._connect = stand.manager.connect
        await stand.wait(lambda: stand.manager.connections == 2)
        assert stand.manager.held() == 0

    play(tmp_path, work)
    expected = (
        "node shutdown manager was timed out after 5 attempts waiting for logind InhibitDelayMaxSec to update to 30s"
    )
    assert len([record for record in caplog.records if expected in str(vars(record))]) == 1


def test_a_connection_that_ends_is_made_again_with_a_new_lock(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        await stand.manager.wait_watched()
        await stand.manager.fail("the bus has ended")
        await stand.manager.wait_watched()
        assert stand.manager.connections == 2
        assert [lock.is_held for lock in stand.manager.locks] == [False, True]

    play(tmp_path, work)
    assert RECONNECT_S == 1.0


def test_a_system_without_a_thread_for_the_watch_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = refuse_threads(monkeypatch, "logind")

    async def work(stand: Stand) -> None:
        await stand.manager.wait_watched()
        assert refused and stand.manager.connections == 2
        assert [lock.is_held for lock in stand.manager.locks] == [False, True]

    play(tmp_path, work)
    assert "resource temporarily unavailable" in str(vars(caplog.records[0]))


def test_the_bus_may_end_while_the_pods_do(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        early = stand.add("early", 0)
        await stand.manager.wait_watched()
        stand.manager.announce(True)
        await stand.wait(lambda: early in stand.state.get().pods)
        await stand.manager.fail("the bus has ended")
        await stand.manager.wait_watched()
        assert stand.manager.held() == 1 and len(stand.manager.locks) == 1, "the lock of this shutdown stays"
        stand.end(early)
        await stand.wait(lambda: stand.manager.held() == 0)

    play(tmp_path, work)
