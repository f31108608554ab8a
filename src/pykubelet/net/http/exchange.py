"""`HttpConnection`: one exchange of an HTTP client after another, on a connection that detects a dead peer.

`dial.py` opens such connections. Raises OSError, ssl.SSLError and BadResponse (`FAILURES`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import cast

from pykubelet.net.http.response import BadResponse, ResponseParser

FAILURES = (OSError, ssl.SSLError, BadResponse)

#: A dead peer is noticed within about half a minute, because it does not acknowledge data or keep-alive probes.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
#: When this many bytes were not read yet, the connection stops receiving.
_BEHIND = 1 << 20


class HttpConnection(asyncio.Protocol):
    """One connection, for one `exchange` after another. After any error or cancellation it must be `abort`ed."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.tls: ssl.SSLContext | None = None
        self.idle_since = 0.0
        self.used = False
        self.closed = False
        #: Something followed the head of a response to CONNECT.
        self.is_early = False
        self.response = ResponseParser()
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's class does not derive from it
        connected = transport.get_extra_info("socket")
        for option in _KEEP_ALIVE if connected.family != socket.AF_UNIX else ():
            connected.setsockopt(*option)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. Stops reading from the peer while the reader is far behind."""
        try:
            if self.response.feed(data):
                self.is_early = True
        except BadResponse as error:
            self._fail(error)
            return
        if not self._paused and self.response.waiting_bytes > _BEHIND and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.closed = True
        try:
            self.response.end()
        except BadResponse as bad:
            self._failure = self._failure or error or bad.with_traceback(None)  # which refers to this object
        self._wake()

    def abort(self) -> None:
        """Close at once. An exchange in progress fails with ConnectionAbortedError."""
        self._fail(ConnectionAbortedError("Connection closed"))

    async def exchange(self, request: bytes, *, has_body: bool = True) -> ResponseParser:
        """Send a request. Returns the answer as soon as its head has arrived."""
        assert self.transport is not None
        self.response = ResponseParser(has_body=has_body)
        self.used = True
        self.transport.write(request)
        await self._wait(lambda: self.response.begun)
        return self.response

    async def body(self) -> bytes:
        """The whole body of the answer."""
        parts = []
        while (part := await self.part()) is not None:
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def part(self) -> bytes | None:
        """The next part of the body: everything that has arrived. None at its end."""
        response = self.response
        await self._wait(lambda: bool(response.parts) or response.complete)
        part = response.take()
        if self._paused and self.transport is not None and not self.closed:
            self._paused = False
            self.transport.resume_reading()
        return part or None

    async def _wait(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if self._failure is not None:
                raise self._failure
            if self.closed:
                raise ConnectionResetError("the connection was closed")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.closed = True
        if self.transport is not None:
            self.transport.abort()
        self._wake()
