"""The token bucket of every rate limit. Pure: the caller brings the time.

Source: the flow control of client-go (`flowcontrol.RateLimiter`), whose parameters are the `*QPS` and `*Burst` fields of
KubeletConfiguration.
"""

from __future__ import annotations

#: Sums of floats are not finer; a wait below it is none, so that a timer that fires at its time never sets another.
_TICK_S = 1e-6


class TokenBucket:
    """`rate` tokens a second, at most `burst` saved up (at least 1); full at first. A rate of 0 or less is no limit.

    Mutable. `now` is monotonic seconds and never goes back.
    """

    __slots__ = ("_free_at", "_saved_s", "_step_s")

    def __init__(self, rate: float, burst: int) -> None:
        self._step_s = 1.0 / rate if rate > 0 else 0.0
        self._saved_s = (max(1, burst) - 1) * self._step_s
        # when the next token is there; a full bucket has it at least `_saved_s` in the past
        self._free_at = float("-inf")

    def wait_s(self, now: float, ahead: int = 0) -> float:
        """Seconds until a token is there for a caller behind `ahead` others; 0 when it can be taken now."""
        wait_s = max(self._free_at, now - self._saved_s) + ahead * self._step_s - now
        return wait_s if self._step_s and wait_s >= _TICK_S else 0.0

    def take(self, now: float) -> bool:
        """Take a token if one is there. Returns whether one was."""
        if self.wait_s(now):
            return False
        self._free_at = max(self._free_at, now - self._saved_s) + self._step_s
        return True

    def give_back(self) -> None:
        """Put a taken token back; a full bucket stays full."""
        self._free_at -= self._step_s
