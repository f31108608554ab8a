"""Streams between a client and the container runtime: forwards the upgrade request, then the bytes of both directions.

Owns: the two connections of one stream once the answer's head was sent, and how they end. The data on them (SPDY or
WebSocket) is not interpreted. Each side is read only as fast as the other one accepts data. A runtime that sends much is read
in large pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.net.http.response import BadResponse, ResponseParser
from pykubelet.net.http.server import Answer, Request, Response, ServedConnection, Takeover, text
from pykubelet.net.http.upgrade import read_head, read_refusal

CONNECT_DEADLINE_S = 10.0
HEAD_DEADLINE_S = 30.0
HEAD_BYTES = 64 * 1024
PIECE = 256 * 1024
#: The runtime sends a stream in pieces of 4 to 32 KiB. Waking up for each piece and sending it alone would be more work than
#: the runtime's own. So after more than MUCH bytes within about FLOW_S, further data collects in the kernel for GATHER_S.
#: Short messages and interactive output are never delayed.
MUCH, FLOW_S, GATHER_S = 64 * 1024, 0.005, 0.001
READ_AHEAD = 1 << 20
#: Headers for the agent or of the connection, which are not forwarded to the runtime.
_KEPT_BACK = frozenset({"host", "authorization", "cookie", "content-length", "transfer-encoding"})


class Backend:
    """A connection to the runtime's streaming server. `early`: what was read of it before."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, early: bytes = b"") -> None:
        self.reader = reader
        self.writer = writer
        self._early = early
        self._flow = 0.0
        self._read_at = 0.0

    async def read(self, most: int = PIECE) -> bytes:
        """Read up to `most` bytes; b"" at the end. Raises OSError."""
        if self._early:
            data, self._early = self._early[:most], self._early[most:]
            return data
        data = await self.reader.read(most)
        now = asyncio.get_running_loop().time()
        self._flow = self._flow * math.exp((self._read_at - now) / FLOW_S) + len(data)
        self._read_at = now
        if self._flow > MUCH and len(data) < most and not self.reader.at_eof():
            _rest(cast(asyncio.Transport, self.writer.transport))  # one transport serves both directions
        return data


def _rest(transport: asyncio.Transport) -> None:
    """Stop reading from the connection for a moment, so that more data collects."""

    def go_on() -> None:
        if not transport.is_closing():
            transport.resume_reading()

    if not transport.is_closing():
        transport.pause_reading()
        asyncio.get_running_loop().call_later(GATHER_S, go_on)


class _ProxyError(Exception):
    """The runtime's streaming server gave an unusable answer. The text is for the client."""


async def proxy_upgrade(request: Request, url: str, idle_s: float) -> Answer:
    """Forward the request to the runtime's streaming server at `url`, and connect the client to it.

    `idle_s`: a stream without data for this long is ended. The answer is 500 with the reason if the runtime's server cannot be
    reached, and the server's own answer if it does not upgrade.
    """
    if not request.is_upgrade:
        return text(500, "Upgrade request required")
    opened = await open_backend(request.method, url, request.headers)
    if isinstance(opened, Response):
        return opened
    backend, head = opened

    async def talk(client: ServedConnection) -> None:
        client.writer.write(head)
        await pump_both(client, backend, idle_s)

    return Takeover(talk)


async def open_backend(method: str, url: str, headers: Mapping[str, str]) -> tuple[Backend, bytes] | Response:
    """Open an upgraded connection to the server at `url`.

    Returns the connection and the head of its answer, or, on failure, the answer for the client.
    """
    try:
        return await _ask(method, url, headers)
    except (_ProxyError, OSError, TimeoutError, BadResponse) as error:
        return text(500, f"error dialing backend: {error}")


async def _ask(method: str, url: str, headers: Mapping[str, str]) -> tuple[Backend, bytes] | Response:
    """Ask the runtime's server. Raises _ProxyError if its address cannot be used, else as `ask_upgrade`."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise _ProxyError(f"the runtime names an unusable streaming address: {url}")
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    return await ask_upgrade(parts.hostname, parts.port or 80, _head(method, target, parts.netloc, headers))


async def ask_upgrade(
    host: str, port: int, head: bytes, tls: ssl.SSLContext | None = None
) -> tuple[Backend, bytes] | Response:
    """Connect, send the head of a request, and read that of the answer; if the server does not upgrade, the whole answer.

    Raises OSError, TimeoutError and BadResponse.
    """
    async with asyncio.timeout(CONNECT_DEADLINE_S):
        reader, writer = await _connect(host, port, tls)
    try:
        writer.write(head)
        async with asyncio.timeout(HEAD_DEADLINE_S):
            response, head, early = await read_head(reader)
    except BaseException:
        writer.transport.abort()
        raise
    if response.is_switched:
        return Backend(reader, writer, early), head
    return await _plain_answer(reader, writer, response)


class _Reader(asyncio.StreamReader):
    """A reader that also returns the data before a reset.

    A runtime that ends with unread input resets the connection, but it has sent all output before.
    """

    def set_exception(self, exc: BaseException) -> None:  # noqa: ARG002
        self.feed_eof()


async def _connect(
    host: str, port: int, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = _Reader(limit=READ_AHEAD, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=tls)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _head(method: str, target: str, host: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items() if name not in _KEPT_BACK]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _plain_answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: ResponseParser
) -> Response:
    """The server's answer if it does not upgrade."""
    body = await read_refusal(reader, response)
    writer.transport.abort()
    return Response(response.status, body)


async def pump_both(client: ServedConnection, backend: Backend, idle_s: float) -> None:
    """Copy data until the client has everything from the runtime, has disconnected, or no data was sent for `idle_s`."""
    loop = asyncio.get_running_loop()
    try:
        async with Supervisor("stream") as supervisor, asyncio.timeout(idle_s or None) as idle:

            def moved() -> None:
                if idle_s:
                    idle.reschedule(loop.time() + idle_s)

            async def listen() -> None:
                await _pump(client.reader.read, backend.writer, moved)
                if _is_tls(client) or not backend.writer.can_write_eof():  # TLS has no half-closed connections
                    backend.writer.transport.abort()
                    return
                with contextlib.suppress(OSError):
                    backend.writer.write_eof()

            supervisor.start_child("stream-up", listen())
            await _pump(backend.read, client.writer, moved)
    except TimeoutError:
        return
    finally:
        backend.writer.transport.abort()


def _is_tls(client: ServedConnection) -> bool:
    return client.writer.get_extra_info("ssl_object") is not None


async def _pump(
    read: Callable[[int], Awaitable[bytes]], target: asyncio.StreamWriter, moved: Callable[[], None]
) -> None:
    with contextlib.suppress(OSError):  # the other side has disconnected, which is how streams end
        while data := await read(PIECE):
            target.write(data)
            await target.drain()
            moved()
