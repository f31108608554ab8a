"""Limits the requests per second: a token bucket with a queue, first come, first served.

A request that is cancelled leaves the queue. The queue can have a limit: a request that would wait longer fails at once, so
that no long queue remains after a burst.

Source: `kubeAPIQPS`, `kubeAPIBurst`, `eventRecordQPS`, `eventBurst` of KubeletConfiguration.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.bucket import TokenBucket

#: The resolution of the event loop's timers.
_TICK_S = 0.001


class QueueFull(Exception):
    """The request would wait longer than the limit."""


class Limiter:
    """Admits `qps` requests per second on average, and `burst` at once; `qps` <= 0: no limit.

    `longest_s`: the longest wait of a request.
    """

    def __init__(self, qps: float, burst: int, longest_s: float = float("inf")) -> None:
        self._bucket = TokenBucket(qps, burst)
        self._longest_s = longest_s
        # in the order of their arrival; a dictionary, because any of them may leave at any time
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> None:
        """Wait until a request may be sent. Raises QueueFull if that would take longer than `longest_s`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._waiting and self._bucket.take(now):
            return
        if self._bucket.wait_s(now, ahead=len(self._waiting)) > self._longest_s:
            raise QueueFull
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting[waiter] = None
        self._set_timer(loop)
        try:
            await waiter
        except asyncio.CancelledError:
            self._waiting.pop(waiter, None)
            if not waiter.cancelled():  # it has just been admitted
                self._bucket.give_back()
            self._let_through(loop)
            raise

    def _let_through(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the requests that may be sent now."""
        while self._waiting and not self._bucket.wait_s(loop.time()):
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            if not waiter.done():
                self._bucket.take(loop.time())
                waiter.set_result(None)
        self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and self._timer is None:
            self._timer = loop.call_later(max(_TICK_S, self._bucket.wait_s(loop.time())), self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._let_through(loop)
