"""The line in front of the registry: which pulls may run now. Mutable, but without time or tasks of its own.

Owns: the order (who asked first goes first, whatever was looked up on the way here), the number of pulls at once, and the
token bucket of `registryPullQPS` and `registryBurst`.
A pull that finds no room waits here; it never fails for that. Callers give `now` (monotonic seconds).
"""

from __future__ import annotations

import bisect


class TokenBucket:
    """`rate` tokens a second, at most `burst` saved up; rate 0 is no limit."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = float(max(1, burst))
        self._tokens = self._burst
        self._at = now

    def wait_s(self, now: float) -> float:
        """Seconds until a token is there; 0 when one can be taken."""
        if self._rate <= 0:
            return 0.0
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        missing = 1.0 - self._tokens
        return missing / self._rate if missing > 1e-9 else 0.0

    def take(self, now: float) -> None:
        """Take a token; only after `wait_s` has said 0."""
        if self._rate > 0 and self.wait_s(now) == 0:
            self._tokens -= 1.0


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
            wait_s = self._bucket.wait_s(now)
            if wait_s > 0:
                return admitted, wait_s
            self._bucket.take(now)
            _, ticket = self._waiting.pop(0)
            self._running.add(ticket)
            admitted.append(ticket)
        return admitted, None
