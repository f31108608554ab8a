"""Lets each client begin a few requests in one round of the event loop, so that one with many connections does not make others wait.

The work of most requests is done at once, without a place where others could go on: a hundred connections of one client that have each
sent a request would hold the event loop for a hundred of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable

import msgspec

#: Requests of one client that begin in one round. A request takes a millisecond or a few.
MOST_AT_ONCE = 4


class _Client(msgspec.Struct):
    begun: int = 0
    waiting: deque[asyncio.Future[None]] = msgspec.field(default_factory=deque)


class RequestRounds:
    """The clients with requests in this round of the event loop, each with `at_once` at most."""

    def __init__(self, at_once: int = MOST_AT_ONCE) -> None:
        self._at_once = at_once
        self._clients: dict[Hashable, _Client] = {}

    async def begin(self, client: Hashable) -> None:
        """Wait until the client may begin a request: first come, first served."""
        loop = asyncio.get_running_loop()
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = _Client()
            loop.call_soon(self._next_round, loop, client)
        if found.begun < self._at_once and not found.waiting:
            found.begun += 1
            return
        slot: asyncio.Future[None] = loop.create_future()
        found.waiting.append(slot)
        await slot

    def _next_round(self, loop: asyncio.AbstractEventLoop, client: Hashable) -> None:
        found = self._clients[client]
        found.begun = 0
        while found.waiting and found.begun < self._at_once:
            slot = found.waiting.popleft()
            if not slot.done():  # its connection has ended
                slot.set_result(None)
                found.begun += 1
        if found.begun:
            loop.call_soon(self._next_round, loop, client)
        else:
            del self._clients[client]
