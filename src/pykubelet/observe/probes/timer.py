"""One timer for many times: it fires at the earliest one, then `take` returns the keys that are due."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")


class DueTimes(Generic[K]):
    """Times with keys. `due` is set when the earliest has come. Times are monotonic seconds. A key may have several times."""

    def __init__(self, due: asyncio.Event) -> None:
        self._due = due
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def add(self, at: float, key: K) -> None:
        """Add a time for `key`. `arm` must be called afterwards."""
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))

    def take(self, until: float) -> Iterator[K]:
        """The keys that are due by `until`, earliest first, including those that are added meanwhile."""
        while self._heap and self._heap[0][0] <= until:
            yield heapq.heappop(self._heap)[2]

    def arm(self, now: float) -> None:
        """Set the timer for the earliest time, unless it fires early enough."""
        if not self._heap:
            return
        at = self._heap[0][0]
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._due.set()
