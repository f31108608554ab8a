"""Blocking work, single-flight per key, that cannot hold up anybody else.

A thread cannot be cancelled: a `mount` or `stat` on a dead file system stays where it is. So blocking work runs in
daemon threads of our own, at most one per key; the waiter gives up at its deadline with `Uncertain`, and until the
stuck thread comes back every further call for that key is `Uncertain` at once instead of overlapping it. Threads that
are stuck, or merely slow while others wait for a worker, do not count against the limit of workers: dead volumes never
starve the living, not even before their deadline. Being daemons they do not hold up the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from pykubelet.base.kit.values import Value

T = TypeVar("T")
IDLE_END_S = 30.0
AGAIN_S = 0.02
HOLD_S = 0.25
"""So long a piece of work may keep others waiting for its worker."""


class Done(Value, Generic[T]):
    """The work ended; this is its value."""

    value: T


class Failed(Value):
    """The work ended with an error."""

    error: Exception


class Uncertain(Value):
    """The work did not end in time and may still be running."""

    since: float


Outcome = Done[T] | Failed | Uncertain


class Flight:
    """Runs blocking callables in up to `workers` live threads, one at a time per key."""

    def __init__(self, name: str, workers: int = 8) -> None:
        self._name = name
        self._workers = workers
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._live = 0
        self._made = 0
        self._running: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._aside: set[str] = set()
        self._marked: set[str] = set()

    def stuck(self) -> dict[str, float]:
        """Keys whose work missed its deadline and has not come back, with their starts (loop time)."""
        with self._lock:
            return {key: self._running[key] for key in self._marked if key in self._running}

    async def run(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        """Run `work` in a thread; at most one per key, never longer awaited than `deadline_s`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome[T]] = loop.create_future()

        def job() -> None:
            outcome: Outcome[T]
            with self._lock:
                self._begun[key] = loop.time()
            try:
                outcome = Done(work())
            except Exception as error:  # noqa: BLE001 - handed to the caller as a value
                outcome = Failed(error)
            self._end(key)
            try:
                loop.call_soon_threadsafe(_settle, future, outcome)
            except RuntimeError:
                return  # the loop has ended; nobody waits

        since = loop.time()
        with self._lock:
            if key in self._running:
                return Uncertain(self._running[key])
            self._running[key] = since
            self._queue.put(job)
            is_served = len(self._running) <= self._live or self._grow()
        if not is_served:
            loop.call_later(HOLD_S, self._relieve, loop, key)
        timer = loop.call_later(deadline_s, self._expire, key, since, future)
        try:
            return await future
        finally:
            timer.cancel()

    async def run_next(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        """As `run`, but after work under the same key that somebody has begun and given up, which is just ending."""
        loop = asyncio.get_running_loop()
        while True:
            outcome = await self.run(key, work, deadline_s)
            if not isinstance(outcome, Uncertain) or loop.time() - outcome.since >= deadline_s:
                return outcome
            await asyncio.sleep(AGAIN_S)

    def _end(self, key: str) -> None:
        with self._lock:
            del self._running[key], self._begun[key]
            self._aside.discard(key)
            self._marked.discard(key)

    def _expire(self, key: str, since: float, future: asyncio.Future[Outcome[T]]) -> None:
        """The waiter gives up, unless the work has ended just now and its outcome is on its way."""
        with self._lock:
            if self._running.get(key) != since:
                return
            self._marked.add(key)
            self._aside.add(key)
            self._grow()
        _settle(future, Uncertain(since))

    def _relieve(self, loop: asyncio.AbstractEventLoop, key: str) -> None:
        """`key` still waits for a worker: those that have been busy for long are not counted any more."""
        with self._lock:
            if key not in self._running or key in self._begun:
                return
            now = loop.time()
            slow = [other for other, since in self._begun.items() if since <= now - HOLD_S and other not in self._aside]
            for other in slow:
                self._aside.add(other)
                self._grow()
        loop.call_later(HOLD_S, self._relieve, loop, key)

    def _grow(self) -> bool:
        """One more worker, if there is work for it and room."""
        if len(self._running) > self._live and self._live - len(self._aside) < self._workers:
            self._live += 1
            self._made += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._made}", daemon=True).start()
            return True
        return False

    def _work(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=IDLE_END_S)
            except Empty:
                with self._lock:
                    if self._queue.empty():
                        self._live -= 1
                        return
                continue
            job()
            del job  # else what it worked on stays in memory until there is more work


def _settle(future: asyncio.Future[Outcome[T]], outcome: Outcome[T]) -> None:
    if not future.done():
        future.set_result(outcome)
