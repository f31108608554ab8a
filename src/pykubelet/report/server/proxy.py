"""Streams between a client and the container runtime: the upgrade is passed on, then bytes both ways.

Owns: the two connections of one stream from the answer's head on, and their ends. What is said over them (SPDY or
WebSocket) is between the client and the runtime. Each side is read only as fast as the other one takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.report.server.http import Answer, Connection, Request, Response, Takeover, text

CONNECT_DEADLINE_S = 10.0
HEAD_DEADLINE_S = 30.0
HEAD_BYTES = 64 * 1024
PIECE = 256 * 1024
ANSWER_BYTES = 64 * 1024
#: The client's own, or the connection's: never for the runtime.
_KEPT_BACK = frozenset({"host", "authorization", "cookie", "content-length", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class _Backend:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _ProxyError(Exception):
    """The runtime's streaming server does not do its part; the text is for the client."""


async def proxy_upgrade(request: Request, url: str, idle_s: float) -> Answer:
    """Pass the request on to the runtime's streaming server at `url` and hand the connection over to it.

    `idle_s`: a stream on which nothing moves that long is ended. The answer is 500 with the reason when the runtime's
    server is not to be had, and the server's own answer when it does not upgrade.
    """
    if not request.is_upgrade:
        return text(500, "Upgrade request required")
    try:
        backend, head = await _open(request, url)
    except (_ProxyError, OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        return text(500, f"error dialing backend: {error}")
    status = int(head.split(b" ", 2)[1])
    if status != 101:
        return await _plain_answer(backend, status)

    async def talk(client: Connection) -> None:
        client.writer.write(head)
        await _pump_both(client, backend, idle_s)

    return Takeover(talk)


async def _open(request: Request, url: str) -> tuple[_Backend, bytes]:
    """A connection on which the request was sent, and the head of the answer."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise _ProxyError(f"the runtime names an unusable streaming address: {url}")
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    async with asyncio.timeout(CONNECT_DEADLINE_S):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=1 << 20)
    backend = _Backend(reader, writer)
    try:
        writer.write(_head(request.method, target, parts.netloc, request.headers))
        async with asyncio.timeout(HEAD_DEADLINE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 ") or not head[9:12].isdigit():
            raise _ProxyError("the runtime's streaming server does not speak HTTP")
    except BaseException:
        writer.transport.abort()
        raise
    return backend, head


def _head(method: str, target: str, host: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items() if name not in _KEPT_BACK]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _plain_answer(backend: _Backend, status: int) -> Response:
    """The server's words where it does not upgrade."""
    body = b""
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(1.0):
            while len(body) < ANSWER_BYTES and (data := await backend.reader.read(ANSWER_BYTES)):
                body += data
    backend.writer.transport.abort()
    return Response(status, body)


async def _pump_both(client: Connection, backend: _Backend, idle_s: float) -> None:
    """Until the runtime has said all and the client has it, the client has gone, or nothing moves any more."""
    loop = asyncio.get_running_loop()
    try:
        async with Supervisor("stream") as supervisor, asyncio.timeout(idle_s or None) as idle:

            def moved() -> None:
                if idle_s:
                    idle.reschedule(loop.time() + idle_s)

            up = supervisor.start_child("stream-up", _pump(client.reader, backend.writer, moved))
            down = supervisor.start_child("stream-down", _pump(backend.reader, client.writer, moved))
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            # the client will say no more; over TLS it cannot say so and still listen
            if not down.done() and not _is_tls(client):
                with contextlib.suppress(OSError):
                    backend.writer.write_eof()
                    await down
    except TimeoutError:
        return
    finally:
        backend.writer.transport.abort()


def _is_tls(client: Connection) -> bool:
    return client.writer.get_extra_info("ssl_object") is not None


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, moved: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):  # the other side is gone: that is how streams end
        while data := await source.read(PIECE):
            target.write(data)
            await target.drain()
            moved()
