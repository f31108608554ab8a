"""Streams between a client and the container runtime: the upgrade is passed on, then bytes both ways.

Owns: the two connections of one stream from the answer's head on, and their ends. What is said over them (SPDY or
WebSocket) is between the client and the runtime. Each side is read only as fast as the other one takes it, and a runtime
that says much in large pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.net.http.server import Answer, Connection, Request, Response, Takeover, text

CONNECT_DEADLINE_S = 10.0
HEAD_DEADLINE_S = 30.0
HEAD_BYTES = 64 * 1024
PIECE = 256 * 1024
#: The runtime sends a stream in bits of 4 to 32 KiB, each of which would wake us and be sent alone: more work than the
#: runtime's own. So while it flows, more than MUCH within about FLOW_S, what follows gathers in the kernel for GATHER_S.
#: Short questions and answers, and what people read, never wait.
MUCH, FLOW_S, GATHER_S = 64 * 1024, 0.005, 0.001
READ_AHEAD = 1 << 20
ANSWER_BYTES = 64 * 1024
#: The client's own, or the connection's: never for the runtime.
_KEPT_BACK = frozenset({"host", "authorization", "cookie", "content-length", "transfer-encoding"})


class Backend:
    """A connection to the runtime's streaming server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._flow = 0.0
        self._read_at = 0.0

    async def read(self, most: int = PIECE) -> bytes:
        """What came, at most that many bytes; b"" at the end. Raises OSError."""
        data = await self.reader.read(most)
        now = asyncio.get_running_loop().time()
        self._flow = self._flow * math.exp((self._read_at - now) / FLOW_S) + len(data)
        self._read_at = now
        if self._flow > MUCH and len(data) < most and not self.reader.at_eof():
            _rest(cast(asyncio.Transport, self.writer.transport))  # it is one for both directions
        return data


def _rest(transport: asyncio.Transport) -> None:
    """Let more gather: nothing is taken from the connection for a moment."""

    def go_on() -> None:
        if not transport.is_closing():
            transport.resume_reading()

    if not transport.is_closing():
        transport.pause_reading()
        asyncio.get_running_loop().call_later(GATHER_S, go_on)


class _ProxyError(Exception):
    """The runtime's streaming server does not do its part; the text is for the client."""


async def proxy_upgrade(request: Request, url: str, idle_s: float) -> Answer:
    """Pass the request on to the runtime's streaming server at `url` and hand the connection over to it.

    `idle_s`: a stream on which nothing moves that long is ended. The answer is 500 with the reason when the runtime's
    server is not to be had, and the server's own answer when it does not upgrade.
    """
    if not request.is_upgrade:
        return text(500, "Upgrade request required")
    opened = await open_backend(request.method, url, request.headers)
    if isinstance(opened, Response):
        return opened
    backend, head = opened

    async def talk(client: Connection) -> None:
        client.writer.write(head)
        await _pump_both(client, backend, idle_s)

    return Takeover(talk)


async def open_backend(method: str, url: str, headers: Mapping[str, str]) -> tuple[Backend, bytes] | Response:
    """An upgraded connection to the server at `url` and the head of its answer, or what to tell the client instead."""
    try:
        backend, head = await _ask(method, url, headers)
    except (_ProxyError, OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        return text(500, f"error dialing backend: {error}")
    status = int(head.split(b" ", 2)[1])
    return (backend, head) if status == 101 else await _plain_answer(backend, status)


async def _ask(method: str, url: str, headers: Mapping[str, str]) -> tuple[Backend, bytes]:
    """A connection on which the request was sent, and the head of the answer."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise _ProxyError(f"the runtime names an unusable streaming address: {url}")
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    async with asyncio.timeout(CONNECT_DEADLINE_S):
        backend = await _connect(parts.hostname, parts.port or 80)
    reader, writer = backend.reader, backend.writer
    try:
        writer.write(_head(method, target, parts.netloc, headers))
        async with asyncio.timeout(HEAD_DEADLINE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 ") or not head[9:12].isdigit():
            raise _ProxyError("the runtime's streaming server does not speak HTTP")
    except BaseException:
        writer.transport.abort()
        raise
    return backend, head


class _Reader(asyncio.StreamReader):
    """Gives what came before a reset, too: a runtime that ends over input it has not read resets, but has said all."""

    def set_exception(self, exc: BaseException) -> None:  # noqa: ARG002
        self.feed_eof()


async def _connect(host: str, port: int) -> Backend:
    loop = asyncio.get_running_loop()
    reader = _Reader(limit=READ_AHEAD, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, host, port)
    return Backend(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def _head(method: str, target: str, host: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items() if name not in _KEPT_BACK]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _plain_answer(backend: Backend, status: int) -> Response:
    """The server's words where it does not upgrade."""
    body = b""
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(1.0):
            while len(body) < ANSWER_BYTES and (data := await backend.reader.read(ANSWER_BYTES)):
                body += data
    backend.writer.transport.abort()
    return Response(status, body)


async def _pump_both(client: Connection, backend: Backend, idle_s: float) -> None:
    """Until the runtime has said all and the client has it, the client has gone, or nothing moves any more."""
    loop = asyncio.get_running_loop()
    try:
        async with Supervisor("stream") as supervisor, asyncio.timeout(idle_s or None) as idle:

            def moved() -> None:
                if idle_s:
                    idle.reschedule(loop.time() + idle_s)

            async def listen() -> None:
                await _pump(client.reader.read, backend.writer, moved)
                if _is_tls(client):  # over TLS nobody can say that he only listens from now on: the client has gone
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


def _is_tls(client: Connection) -> bool:
    return client.writer.get_extra_info("ssl_object") is not None


async def _pump(
    read: Callable[[int], Awaitable[bytes]], target: asyncio.StreamWriter, moved: Callable[[], None]
) -> None:
    with contextlib.suppress(OSError):  # the other side is gone: that is how streams end
        while data := await read(PIECE):
            target.write(data)
            await target.drain()
            moved()
