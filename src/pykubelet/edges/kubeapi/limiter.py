"""How many requests a second may be sent: a token bucket with a queue, first come first served.

Who gives up while it waits leaves its place to those behind. The queue can have a bound: then who would wait longer is
refused at once, so that a flood is over as soon as it ends.

Source: `kubeAPIQPS`, `kubeAPIBurst`, `eventRecordQPS`, `eventBurst` of KubeletConfiguration.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.bucket import TokenBucket

#: Timers of event loops are not finer.
_TICK_S = 0.001


class QueueFull(Exception):
    """The wait would be longer than it may be."""


class Limiter:
    """`qps` requests a second on average, `burst` at once; `qps` <= 0: no limit. `longest_s`: nobody waits longer."""

    def __init__(self, qps: float, burst: int, longest_s: float = float("inf")) -> None:
        self._bucket = TokenBucket(qps, burst)
        self._longest_s = longest_s
        # in the order in which they came; a dictionary, since any of them may leave at any time
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> None:
        """Return when one may send. Raises QueueFull."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._waiting and self._bucket.take(now):
            return
        if self._bucket.wait_s(now, ahead=len(self._waiting)) > self._longest_s:
            raise QueueFull
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting[turn] = None
        self._set_timer(loop)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if not turn.cancelled():  # its turn had come just now
                self._bucket.give_back()
            self._let_through(loop)
            raise

    def _let_through(self, loop: asyncio.AbstractEventLoop) -> None:
        """Whoever's turn has come."""
        while self._waiting and not self._bucket.wait_s(loop.time()):
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            if not turn.done():
                self._bucket.take(loop.time())
                turn.set_result(None)
        self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and self._timer is None:
            self._timer = loop.call_later(max(_TICK_S, self._bucket.wait_s(loop.time())), self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._let_through(loop)
