"""The queue of image pulls: decides which pulls may run now. Mutable, but without clock and tasks.

Owns: the order (by arrival of the request for the image), the number of parallel pulls, and the token bucket of
`registryPullQPS` and `registryBurst`. A pull beyond the limits waits here and does not fail. Callers pass `now`
(monotonic seconds).
"""

from __future__ import annotations

import bisect

from pykubelet.base.kit.bucket import TokenBucket


class PullQueue:
    """Queues pulls, identified by tickets, in order of arrival. `limit`: parallel pulls; None: no limit."""

    def __init__(self, limit: int | None, bucket: TokenBucket) -> None:
        self._limit = limit
        self._bucket = bucket
        self._waiting: list[tuple[int, int]] = []
        self._running: set[int] = set()

    def join(self, ticket: int, arrival: int) -> None:
        """Put a pull into the queue, before all that arrived later."""
        bisect.insort(self._waiting, (arrival, ticket))

    def leave(self, ticket: int) -> None:
        """Remove a pull that has ended or was cancelled."""
        self._waiting = [place for place in self._waiting if place[1] != ticket]
        self._running.discard(ticket)

    def position(self, ticket: int) -> int:
        """The place of a pull in the queue, from 1; 0 if it is running."""
        return next((n for n, (_, waiting) in enumerate(self._waiting, 1) if waiting == ticket), 0)

    def admit(self, now: float) -> tuple[list[int], float | None]:
        """The tickets that start now, and the seconds after which to call this again (None: when a pull leaves)."""
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
