"""How many requests a second may be sent: a token bucket, first come first served.

Source: `kubeAPIQPS`, `kubeAPIBurst`, `eventRecordQPS`, `eventBurst` of KubeletConfiguration.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.clock import Clock


class Limiter:
    """`qps` requests a second on average, `burst` at once. `qps` <= 0: no limit."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        self._qps = qps
        self._burst = max(1, burst)
        self._clock = clock
        self._free_at = float("-inf")

    def delay_s(self) -> float:
        """Take the next place in the line; how long it is until its turn comes."""
        if self._qps <= 0:
            return 0.0
        now, step = self._clock.monotonic(), 1.0 / self._qps
        # the bucket as a time: full when `_free_at` lies a whole burst in the past
        self._free_at = max(self._free_at, now - (self._burst - 1) * step)
        wait = max(0.0, self._free_at - now)
        self._free_at += step
        return wait

    async def take(self) -> None:
        delay = self.delay_s()
        if delay > 0:
            await asyncio.sleep(delay)
