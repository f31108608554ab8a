"""The token bucket behind every rate limit. Pure: the caller passes the time.

Source: the flow control of client-go (`flowcontrol.RateLimiter`), whose parameters are the `*QPS` and `*Burst` fields of
KubeletConfiguration.
"""

from __future__ import annotations

#: A shorter wait counts as none. Float sums are not more exact, and a timer that fires on time must not start another one.
_TICK_S = 1e-6


class TokenBucket:
    """A bucket that gets `rate` tokens a second and keeps at most `burst` (at least 1). It starts full.

    A rate of 0 or less means no limit.

    Mutable. `now` is monotonic seconds and never goes back.
    """

    __slots__ = ("_free_at", "_saved_s", "_step_s")

    def __init__(self, rate: float, burst: int) -> None:
        self._step_s = 1.0 / rate if rate > 0 else 0.0
        self._saved_s = (max(1, burst) - 1) * self._step_s
        # when the next token becomes available; for a full bucket, at least `_saved_s` ago
        self._free_at = float("-inf")

    def wait_s(self, now: float, ahead: int = 0) -> float:
        """Seconds until a caller behind `ahead` others can take a token; 0 if it can take one now."""
        wait_s = max(self._free_at, now - self._saved_s) + ahead * self._step_s - now
        return wait_s if self._step_s and wait_s >= _TICK_S else 0.0

    def take(self, now: float) -> bool:
        """Take a token if one is available. Returns whether one was."""
        if self.wait_s(now):
            return False
        self._free_at = max(self._free_at, now - self._saved_s) + self._step_s
        return True

    def charge(self, seconds: float, now: float) -> None:
        """Take what comes in so many seconds; fewer than 0 give as much back."""
        self._free_at = max(self._free_at, now - self._saved_s) + seconds

    def give_back(self) -> None:
        """Put a taken token back; a full bucket stays full."""
        self._free_at -= self._step_s
