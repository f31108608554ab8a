"""A stream reader with a limit that can change while its connection is open.

asyncio fixes the limit of a `StreamReader` when it is made: it bounds both what is kept unread and what `readuntil` takes. Here,
each limit is a stage with a `StreamReader` of its own, and what an earlier stage has not read goes to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import SupportsIndex


class StagedReader(asyncio.StreamReader):
    """A `StreamReader` with the `limit` of its current stage."""

    def __init__(self, limit: int) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(limit, loop)
        self._stage = asyncio.StreamReader(limit, loop)
        self._peer: asyncio.BaseTransport | None = None
        self._has_ended = False
        self._failure: Exception | None = None

    async def change_limit(self, limit: int) -> None:
        """Begin another stage. No other task may be reading. Does not wait."""
        before, self._stage = self._stage, asyncio.StreamReader(limit, asyncio.get_running_loop())
        if self._peer is not None:
            self._stage.set_transport(self._peer)
        before.feed_eof()  # so that all of it can be read at once
        with contextlib.suppress(OSError):  # the failure of the connection, which the next stage gets, too
            if unread := await before.read():
                self._stage.feed_data(unread)
        if self._failure is not None:
            self._stage.set_exception(self._failure)
        elif self._has_ended:
            self._stage.feed_eof()

    # Called by the protocol

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.StreamReader`."""
        self._peer = transport
        self._stage.set_transport(transport)

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """See `asyncio.StreamReader`."""
        self._stage.feed_data(data)

    def feed_eof(self) -> None:
        """See `asyncio.StreamReader`."""
        self._has_ended = True
        self._stage.feed_eof()

    def set_exception(self, exc: Exception) -> None:
        """See `asyncio.StreamReader`."""
        self._failure = exc
        self._stage.set_exception(exc)

    # Called by readers

    def at_eof(self) -> bool:
        """See `asyncio.StreamReader`."""
        return self._stage.at_eof()

    def exception(self) -> Exception | None:
        """See `asyncio.StreamReader`."""
        return self._failure

    async def read(self, n: int = -1) -> bytes:
        """See `asyncio.StreamReader`."""
        return await self._stage.read(n)

    async def readuntil(self, separator: bytes = b"\n") -> bytes:  # type: ignore[override]  # its type has no name
        """See `asyncio.StreamReader`."""
        return await self._stage.readuntil(separator)

    async def readexactly(self, n: int) -> bytes:
        """See `asyncio.StreamReader`."""
        return await self._stage.readexactly(n)
