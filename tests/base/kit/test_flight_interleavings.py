"""Random interleavings of the event loop and the threads of `SingleFlight`: each queued piece of work is taken, or a timer looks at it.

The threads are real ones of which one runs at a time, chosen by the test: each stops before it takes the lock, when it waits for
work, and in its work. The loop is a double whose time the test moves on.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

from pykubelet.base.kit import flight as flight_module
from pykubelet.base.kit.flight import SingleFlight

#: Interleavings, and the steps of each; the part of the steps in which no work ends; and how soon all work must begin, in seconds.
SEEDS, STEPS, HUNG, WITHIN_S = 60, 120, 0.8, 5.0


class Ended(BaseException):
    """Ends a thread with its test."""


class Answer:
    """A future."""

    def __init__(self) -> None:
        self.result: Any = None

    def done(self) -> bool:
        return self.result is not None

    def set_result(self, result: Any) -> None:
        self.result = result

    def __await__(self) -> Generator[Any, None, Any]:
        while self.result is None:
            yield
        return self.result


class Timer:
    """A timer of the loop."""

    def __init__(self, at: float, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.at, self.call, self.args = at, call, args

    def cancel(self) -> None:
        self.at = float("inf")


class Loop:
    """The event loop."""

    threads: Threads

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def create_future(self) -> Answer:
        return Answer()

    def call_later(self, delay: float, call: Callable[..., object], *args: Any) -> Timer:
        self.timers.append(Timer(self.now + delay, call, args))
        return self.timers[-1]

    def call_soon_threadsafe(self, call: Callable[..., object], *args: Any) -> None:
        assert self.threads.current is not None
        self.threads.current.has_job = False
        call(*args)

    def advance(self) -> None:
        """Run the timer that is due next."""
        timer = min(self.timers, key=lambda timer: timer.at, default=None)
        if timer is not None and timer.at < float("inf"):
            self.timers.remove(timer)
            self.now = timer.at
            timer.call(*timer.args)
        self.timers = [timer for timer in self.timers if timer.at < float("inf")]


class Worker:
    """A thread that goes on when the test lets it. `at`: where it waits. `has_job`: it has taken work that has not ended."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._step, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.at, self.has_job, self.is_over, self._ends = "start", False, False, False
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        with suppress(Ended):
            self._await_step()
            work()
        self.is_over = True
        self._back.release()

    def _await_step(self) -> None:
        self._step.acquire()
        if self._ends:
            raise Ended

    def stop_at(self, place: str) -> None:
        self.at = place
        self._back.release()
        self._await_step()

    def go_on(self) -> None:
        self._step.release()
        self._back.acquire()

    def end(self) -> None:
        self._ends = True
        if not self.is_over:
            self.go_on()


class Threads:
    """All threads, in place of the module `threading` as `flight` sees it."""

    def __init__(self, chance: random.Random, loop: Loop) -> None:
        self._chance = chance
        loop.threads = self
        self.workers: list[Worker] = []
        self.current: Worker | None = None
        self.queue: deque[Any] = deque()
        self.may_fail = True

    def Lock(self) -> Threads:
        return self

    def get_native_id(self) -> int:
        return 1

    def Thread(self, *, target: Callable[[], None], name: str, daemon: bool) -> SimpleNamespace:
        def start() -> None:
            if self.may_fail and self._chance.random() < 0.2:
                raise RuntimeError("can't start new thread")
            self.workers.append(Worker(target))

        return SimpleNamespace(start=start)

    def __enter__(self) -> None:
        if self.current is not None:
            self.current.stop_at("lock")

    def __exit__(self, *_: object) -> None:
        return None

    def put(self, job: Any) -> None:
        self.queue.append(job)

    def empty(self) -> bool:
        return not self.queue

    def get(self, timeout: float) -> Any:
        assert self.current is not None
        self.current.stop_at("queue")
        if not self.queue:
            raise Empty
        self.current.has_job = True
        return self.queue.popleft()

    def work(self) -> None:
        assert self.current is not None
        self.current.stop_at("work")

    def step(self, worker: Worker) -> None:
        self.current = worker
        worker.go_on()
        self.current = None
        if worker.is_over:
            self.workers.remove(worker)


def is_looked_after(flight: SingleFlight, threads: Threads, loop: Loop) -> bool:
    """Whether the last piece of work in the queue, and so all before it, is taken although no work ends, or a timer looks at it."""
    if not threads.queue:
        return True
    key = threads.queue[-1].args[1]
    looks = any(timer.call == flight._relieve and timer.args[1] == key for timer in loop.timers)
    return looks or sum(not worker.has_job for worker in threads.workers) >= len(threads.queue)


def interleave(chance: random.Random, flight: SingleFlight, threads: Threads, loop: Loop) -> None:
    """Check after each of some random steps, and then that all work begins in a few seconds although none ends any more."""
    calls = []
    for number in range(STEPS):
        match chance.choices(("run", "step", "advance"), (2, 8, 1))[0]:
            case "run":
                calls.append(flight.run(f"work {number}", threads.work, 60.0))
                calls[-1].send(None)
            case "step" if threads.workers:
                hung = chance.random() < HUNG
                waiting = [worker for worker in threads.workers if not hung or worker.at != "work"]
                if waiting:
                    threads.step(chance.choice(waiting))
            case "advance":
                loop.advance()
        assert is_looked_after(flight, threads, loop), f"step {number}"
    threads.may_fail, until = False, loop.now + WITHIN_S
    while threads.queue and loop.now < until:
        while threads.queue and (free := [worker for worker in threads.workers if worker.at != "work"]):
            threads.step(chance.choice(free))
        loop.advance()
    assert not threads.queue
    for worker in [*threads.workers]:
        worker.end()
    for call in calls:
        call.close()


def test_each_queued_piece_of_work_is_taken_or_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        chance, loop = random.Random(seed), Loop()
        threads = Threads(chance, loop)
        monkeypatch.setattr(flight_module, "threading", threads)
        monkeypatch.setattr(flight_module, "SimpleQueue", lambda threads=threads: threads)
        monkeypatch.setattr(flight_module, "asyncio", SimpleNamespace(get_running_loop=lambda loop=loop: loop))
        try:
            interleave(chance, SingleFlight("test", workers=chance.randint(1, 3)), threads, loop)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
