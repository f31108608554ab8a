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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
IDLE_END_S = 30.0
HOLD_S = 0.25
"""So long a piece of work may keep others waiting for its worker."""


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The work ended; this is its value."""

    value: T


@dataclass(frozen=True, slots=True)
class Failed:
    """The work ended with an error."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The work did not end in time and may still be running."""

    since: float


Outcome = Done[T] | Failed | Uncertain


class Flight:
    """Runs blocking callables in up to `workers` live threads, one at a time per key."""

    def __init__(self, name: str, workers: int = 8) -> None:
        self._name = name
        self._workers = workers
        self._lock = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._idle = 0
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
        with self._lock:
            if key in self._running:
                return Uncertain(self._running[key])
            self._running[key] = loop.time()
        future: asyncio.Future[Outcome[T]] = loop.create_future()

        def job() -> None:
            outcome: Outcome[T]
            with self._lock:
                self._begun[key] = loop.time()
            try:
                outcome = Done(work())
            except Exception as error:  # noqa: BLE001 - handed to the caller as a value
                outcome = Failed(error)
            with self._lock:
                self._running.pop(key, None)
                self._begun.pop(key, None)
                self._aside.discard(key)
                self._marked.discard(key)
            try:
                loop.call_soon_threadsafe(_settle, future, outcome)
            except RuntimeError:
                return  # the loop has ended; nobody waits

        if self._submit(job):
            loop.call_later(HOLD_S, self._relieve, loop, key)
        try:
            # not `asyncio.wait_for`: in Python 3.11 it swallows a cancellation that meets the end of the work
            async with asyncio.timeout(deadline_s):
                return await asyncio.shield(future)
        except TimeoutError:
            since = self._mark_stuck(key)
            return Uncertain(since) if since is not None else await future

    def _mark_stuck(self, key: str) -> float | None:
        """Since when the work has been running; None when it has ended just now."""
        with self._lock:
            since = self._running.get(key)
            if since is not None:
                self._marked.add(key)
                self._aside.add(key)
                self._grow()
            return since

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

    def _submit(self, job: Callable[[], None]) -> bool:
        """Whether it has to wait for a worker."""
        with self._lock:
            self._queue.append(job)
            if self._idle >= len(self._queue):
                self._lock.notify()
                return False
            return not self._grow()

    def _grow(self) -> bool:
        """One more worker, if there is work for it and room."""
        if self._queue and self._live - len(self._aside) < self._workers:
            self._live += 1
            self._made += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._made}", daemon=True).start()
            return True
        return False

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._queue:
                    self._idle += 1
                    woken = self._lock.wait(IDLE_END_S)
                    self._idle -= 1
                    if not woken and not self._queue:
                        self._live -= 1
                        return
                job = self._queue.popleft()
            job()


def _settle(future: asyncio.Future[Outcome[T]], outcome: Outcome[T]) -> None:
    if not future.done():
        future.set_result(outcome)
