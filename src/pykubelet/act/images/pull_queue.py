"""The line in front of the registry: which pulls may run now. Mutable, but without time or tasks of its own.

Owns: the order (who asked first goes first, whatever was looked up on the way here), the number of pulls at once, and the
token bucket of `registryPullQPS` and `registryBurst`.
A pull that finds no room waits here; it never fails for that. Callers give `now` (monotonic seconds).
"""

from __future__ import annotations

import bisect

from pykubelet.base.kit.bucket import TokenBucket


class Line:
    """Tickets by arrival. `limit` None: as many at once as come."""

    def __init__(self, limit: int | None, bucket: TokenBucket) -> None:
        self._limit = limit
        self._bucket = bucket
        self._waiting: list[tuple[int, int]] = []
        self._running: set[int] = set()

    def join(self, ticket: int, arrival: int) -> None:
        """Stand in line before all that arrived later."""
        bisect.insort(self._waiting, (arrival, ticket))

    def leave(self, ticket: int) -> None:
        """The pull has ended, or nobody wants it any more."""
        self._waiting = [place for place in self._waiting if place[1] != ticket]
        self._running.discard(ticket)

    def position(self, ticket: int) -> int:
        """0 while running, else the place in the queue, from 1."""
        return next((n for n, (_, waiting) in enumerate(self._waiting, 1) if waiting == ticket), 0)

    def admit(self, now: float) -> tuple[list[int], float | None]:
        """The tickets that start now, and the seconds after which to ask again (None: when one leaves)."""
        admitted: list[int] = []
        while self._waiting:
            if self._limit is not None and len(self._running) >= self._limit:
                return admitted, None
            if not self._bucket.take(now):
                return admitted, self._bucket.wait_s(now)
            _, ticket = self._waiting.pop(0)
            self._running.add(ticket)
            admitted.append(ticket)
        return admitted, None
