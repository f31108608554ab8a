"""Waiting for sockets that live for a millisecond: one epoll of our own for all of them, and one timer.

Owns: the epoll, one per event loop. An event loop's own way to wait for a socket (`sock_recv` and its like) makes and
throws away a watcher, a future and five system calls each time, which costs more than the exchange waited for. The timer
is for the first deadline of those who wait; nearly all are done by then, and the next one is set for who is not.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from weakref import WeakKeyDictionary

READABLE, WRITABLE = select.EPOLLIN, select.EPOLLOUT
EARLY_S = 0.002
"""Timers may ring this much too early."""


class Overdue(Exception):
    """The deadline has passed. Not a TimeoutError: that is what a connection can fail with, too."""


class _Lookout:
    """Futures by descriptor. A closed descriptor leaves the epoll by itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._epoll = select.epoll()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._deadlines: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        loop.add_reader(self._epoll.fileno(), self._look)

    async def wait(self, descriptor: int, events: int, deadline: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting[descriptor] = future
        if deadline < inf:
            heapq.heappush(self._deadlines, (deadline, next(self._numbers), future))
            self._set_timer()
        try:
            self._epoll.register(descriptor, events | select.EPOLLONESHOT)
        except FileExistsError:
            self._epoll.modify(descriptor, events | select.EPOLLONESHOT)
        try:
            await future
        finally:
            del self._waiting[descriptor]

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            future = self._waiting.get(descriptor)
            if future is not None and not future.done():
                future.set_result(None)

    def _set_timer(self) -> None:
        first = self._deadlines[0][0]
        if self._timer is not None:
            if self._timer_at <= first:
                return
            self._timer.cancel()
        self._timer_at = first
        self._timer = asyncio.get_running_loop().call_at(first, self._rang)

    def _rang(self) -> None:
        self._timer = None
        late = asyncio.get_running_loop().time() + EARLY_S
        waiting = [entry for entry in self._deadlines if not entry[2].done()]
        for deadline, _, future in waiting:
            if deadline <= late:
                future.set_exception(Overdue())
        self._deadlines = [entry for entry in waiting if not entry[2].done()]
        heapq.heapify(self._deadlines)
        if self._deadlines:
            self._set_timer()


_lookouts: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lookout] = WeakKeyDictionary()


@asynccontextmanager
async def until(deadline: float) -> AsyncIterator[None]:
    """Bounds what waits by the event loop's own means; Overdue when the deadline passes or has passed."""
    _check(deadline)
    try:
        async with asyncio.timeout_at(deadline if deadline < inf else None) as limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise Overdue from None
        raise


async def wait_for(connection: socket.socket, events: int, deadline: float = inf) -> None:
    """Until a non-blocking socket is READABLE or WRITABLE, or broken. One waits for a socket at a time.

    `deadline`: of the event loop's time; Overdue when it passes or has passed, also for a socket that is always ready.
    """
    _check(deadline)
    loop = asyncio.get_running_loop()
    lookout = _lookouts.get(loop)
    if lookout is None:
        lookout = _lookouts[loop] = _Lookout(loop)
    await lookout.wait(connection.fileno(), events, deadline)


def _check(deadline: float) -> None:
    if deadline < inf and asyncio.get_running_loop().time() >= deadline:
        raise Overdue
