"""Deadlines in event loop time, and waiting for a file descriptor.

`wait_ready` is for descriptors that asyncio has no protocol for: listening sockets, sockets that are peeked at without
reading, inotify, `/dev/kmsg`, and the short-lived sockets of probes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf


class Overdue(Exception):
    """The deadline has passed. Not a TimeoutError, because a connection can fail with that too."""


async def wait_ready(descriptor: int, *, writable: bool = False, deadline: float = inf) -> None:
    """Wait until a non-blocking descriptor is readable (or `writable`), or broken. Only one wait per direction at a time.

    `deadline`: event loop time. Raises Overdue when it passes or has passed, also if the descriptor is always ready.
    """
    _check(deadline)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writable else (loop.add_reader, loop.remove_reader)
    add(descriptor, _end, ready, None)
    timer = loop.call_at(deadline, _end, ready, Overdue()) if deadline < inf else None
    try:
        await ready
    finally:
        remove(descriptor)
        if timer is not None:
            timer.cancel()


@asynccontextmanager
async def until(deadline: float) -> AsyncIterator[None]:
    """Limit the time of the block. Raises Overdue when the `deadline` (event loop time) passes or has passed."""
    _check(deadline)
    try:
        async with asyncio.timeout_at(deadline if deadline < inf else None) as limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise Overdue from None
        raise


def _check(deadline: float) -> None:
    if asyncio.get_running_loop().time() >= deadline:
        raise Overdue


def _end(ready: asyncio.Future[None], error: Exception | None) -> None:
    if ready.done():
        return
    if error is None:
        ready.set_result(None)
    else:
        ready.set_exception(error)
