"""A small HTTP/1.1 server: whole answers, streamed answers, and takeovers of connections.

Owns: connections with their limits of number, size and time, keep-alive, and the writing of answers. A `Handler` decides the
answer; `plain` makes a handler from a `Route`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.net.http import wire
from pykubelet.net.http.occupancy import OpenConnections
from pykubelet.net.http.wire import REASONS, BadRequest, Body, Head, Request, as_chunk, parse_head, render_head

__all__ = [
    "Handler",
    "HttpServer",
    "Request",
    "Response",
    "Route",
    "ServedConnection",
    "StreamedResponse",
    "Takeover",
    "text",
]

log = Log("server")
HEAD_BYTES, HEAD_END = 64 * 1024, b"\r\n\r\n"
WRITE_DEADLINE_S = 60.0
LINGER_S, LINGER_BYTES = 1.0, 1 << 20
TEXT, JSON = "text/plain; charset=utf-8", "application/json"


class ServerLimits(Value):
    """Limits of a server. `connections`: the most open at once. A further one closes the one that is idle for longest; if
    none is idle, the oldest one of the client's address that has the most, or it is refused if that is its own.

    Seconds of waiting: `head_s` for the first request and every body, `idle_s` for the next request, `stream_idle_s` for a
    stream that makes no progress (0: no limit). `body_bytes`: the most bytes of a request's body, which is read only when the
    handler asks for it.
    """

    connections: int = 256
    head_s: float = 30.0
    idle_s: float = 90.0
    stream_idle_s: float = 4 * 3600.0
    body_bytes: int = wire.BODY_BYTES


class Response(Value):
    """A whole answer. `is_chunked`: it looks like that of a `StreamedResponse`."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)
    is_chunked: bool = False


@runtime_checkable
class Closable(Protocol):
    """An object with resources to release, such as a generator."""

    async def aclose(self) -> None:
        """Release the resources."""


class StreamedResponse(Value):
    """An answer that is sent in chunks as they become available.

    `chunks` is always closed, even if no chunk was read. A generator that was never started does nothing when closed, so
    resources that exist before the first chunk need an `aclose` of their own.
    """

    status: int
    chunks: AsyncIterator[bytes]
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


class ServedConnection(Value):
    """Both directions of a connection, and the client's identity. `certificate`: as `ssl` returns it; None without one.

    `body`: the body of the current request, which is not read yet.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: str = ""
    certificate: Mapping[str, Any] | None = None
    body: Body | None = None

    @property
    def is_admitted(self) -> bool:
        """Whether `admit` was called, or the port admits every client."""
        return not isinstance(self.reader, LimitedReader) or self.reader.is_admitted

    async def admit(self) -> None:
        """Lift the limits for unauthenticated clients, because the client is authenticated and authorized. Does not wait."""
        if isinstance(self.reader, LimitedReader):
            await self.reader.admit()

    async def read_body(self) -> bytes:
        """Read the body of the current request, once. Raises BadRequest."""
        return await self.body.read() if self.body is not None else b""


class LimitedReader(ABC):  # no protocol: each request asks for it twice, and a protocol is compared by its attributes
    """The reader of a client that may be unauthenticated. Heads must be small until `admit` or `allow_large_head`."""

    @property
    @abstractmethod
    def is_admitted(self) -> bool:
        """Whether `admit` was called."""

    @abstractmethod
    async def admit(self) -> None:
        """Lift the limits for unauthenticated clients."""

    @abstractmethod
    async def allow_large_head(self) -> bool:
        """Whether the next head may be large."""


class Takeover(Value):
    """An answer that hands the connection over to another protocol: `talk` uses it until it ends, and does not close it."""

    talk: Callable[[ServedConnection], Awaitable[None]]


Answer = Response | StreamedResponse | Takeover
Route = Callable[[Request], Response]
Handler = Callable[[Request, ServedConnection], Awaitable[Answer]]
IsAllowed = Callable[[asyncio.StreamWriter], bool]


def text(status: int, body: str) -> Response:
    """A plain-text answer."""
    return Response(status, body.encode())


FORBIDDEN = text(403, "Forbidden")


class HttpServer:
    """Answers the requests of connections with a handler. Pass `serve` to `asyncio.start_server` or `start_unix_server`."""

    def __init__(
        self, handler: Handler, is_allowed: IsAllowed = lambda _: True, limits: ServerLimits | None = None
    ) -> None:
        self._handler = handler
        self._is_allowed = is_allowed
        self._limits = limits or ServerLimits()
        self._open = OpenConnections()
        #: Connections without a complete request since their last answer, the one that is idle for longest first.
        self._idle: dict[asyncio.StreamWriter, None] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it or it is idle for too long."""
        connection = _connection(reader, writer)
        if len(self._open) >= self._limits.connections and not self._make_place(connection.address):
            writer.transport.abort()
            return
        self._open.add(writer, connection.address)
        try:
            await self._converse(connection)
        except TimeoutError:
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # close() would wait forever for a client that does not read
        except (OSError, asyncio.IncompleteReadError):
            return  # the client has disconnected
        finally:
            self._open.discard(writer)
            writer.close()

    def _make_place(self, address: str) -> bool:
        """Close the connection that is idle for longest, or else one of the address that has the most. Returns False if none is closed."""
        chosen = next(iter(self._idle), None) or self._open.crowding(address)
        if chosen is None:
            return False
        self._idle.pop(chosen, None)
        self._open.discard(chosen)
        chosen.transport.abort()
        return True

    def close(self) -> None:
        """Close all open connections."""
        for writer in self._open.writers():
            writer.close()

    async def _converse(self, connection: ServedConnection) -> None:
        allowed = self._is_allowed(connection.writer)
        wait_s, heard = self._limits.head_s, b""
        while True:
            try:
                head = parse_head(heard or await self._next_head(connection, wait_s))
                body = _body_of(head, connection, self._limits)
                request = head.request
                answer = await self._answer(request, replace(connection, body=body)) if allowed else FORBIDDEN
            except asyncio.LimitOverrunError:
                await _last(connection, Request("GET", "/"), text(431, "431 " + REASONS[431]))
                return
            except BadRequest as error:
                await _last(connection, Request("GET", "/"), text(error.status, str(error)))
                return
            if isinstance(answer, Takeover):
                await answer.talk(connection)
                return
            is_read = body.is_read and allowed
            keep, heard = head.keep and is_read and not request.is_upgrade and connection.is_admitted, b""
            if isinstance(answer, StreamedResponse):
                has_all, heard = await _write_stream(connection, request, answer, self._limits.stream_idle_s, keep=keep)
                keep = keep and has_all
            elif request.is_upgrade or not is_read:
                await _last(connection, request, answer)
            else:
                await _write(connection.writer, request, answer, keep=keep)
            if not keep:
                return
            wait_s = self._limits.idle_s
            await asyncio.sleep(0)  # a client that sends many requests at once must not delay others

    async def _next_head(self, connection: ServedConnection, wait_s: float) -> bytes:
        """Wait for the next head. Raises LimitOverrunError and TimeoutError."""
        self._idle[connection.writer] = None
        try:
            async with asyncio.timeout(wait_s):
                return await _read_head(connection.reader)
        finally:
            self._idle.pop(connection.writer, None)

    async def _answer(self, request: Request, connection: ServedConnection) -> Answer:
        try:
            return await self._handler(request, connection)
        except BadRequest:
            raise
        except Exception as error:  # a failed request must not end the agent
            log.error("cannot answer", path=request.path, error=repr(error), exc_info=error)
            return text(500, "Internal Server Error")


def _connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ServedConnection:
    peer = writer.get_extra_info("peername")
    address = peer[0] if isinstance(peer, tuple) else ""
    if writer.get_extra_info("ssl_object") is None:
        return ServedConnection(reader, writer, address)
    # the client sends the last message of a handshake; a quick ACK spares a client that waits for it TCP's delayed-ACK timer
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return ServedConnection(reader, writer, address, writer.get_extra_info("peercert") or None)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Read a head. Raises LimitOverrunError."""
    try:
        return await reader.readuntil(HEAD_END)
    except asyncio.LimitOverrunError:
        if not isinstance(reader, LimitedReader) or not await reader.allow_large_head():
            raise
        return await reader.readuntil(HEAD_END)


def _body_of(head: Head, connection: ServedConnection, limits: ServerLimits) -> Body:
    """The body of a request. An upgrade request has none, because the bytes after it belong to the other protocol."""
    request = head.request
    expects = "100-continue" in request.headers.get("expect", "").lower()
    length = 0 if request.is_upgrade else head.body_length
    expecting = connection.writer if expects else None
    return Body(connection.reader, length, limits.head_s, expecting, limits.body_bytes)


async def _last(connection: ServedConnection, request: Request, response: Response) -> None:
    """Send the last answer to a client that may still be sending.

    Closing with unread bytes would reset the connection, and the answer would be lost.
    """
    reader, writer = connection.reader, connection.writer
    await _write(writer, request, response, keep=False)
    if writer.is_closing():
        return
    if writer.can_write_eof():  # TLS cannot
        writer.write_eof()
    left = LINGER_BYTES
    async with asyncio.timeout(LINGER_S):
        while left > 0 and (data := await reader.read(min(left, HEAD_BYTES))):
            left -= len(data)


def _headers(answer: Response | StreamedResponse) -> dict[str, str]:
    return {"Content-Type": answer.content_type, "X-Content-Type-Options": "nosniff", **answer.headers}


async def _write(writer: asyncio.StreamWriter, request: Request, response: Response, keep: bool) -> None:
    body = response.body
    framing = {"Transfer-Encoding": "chunked"} if response.is_chunked else {"Content-Length": str(len(body))}
    headers = _headers(response) | framing
    if not keep:
        headers["Connection"] = "close"
    content = as_chunk(body) if response.is_chunked and body else body
    writer.write(render_head(response.status, headers) + (b"" if request.method == "HEAD" else content))
    if response.is_chunked and request.method != "HEAD":
        writer.write(
            as_chunk(b"")
        )  # apart: API servers drop what comes with the end of a log that they send over WebSocket
    async with asyncio.timeout(WRITE_DEADLINE_S):
        await writer.drain()


async def _write_stream(
    connection: ServedConnection, request: Request, stream: StreamedResponse, idle_s: float, *, keep: bool
) -> tuple[bool, bytes]:
    """Send chunk by chunk, as fast as the client reads, until the client disconnects.

    Returns whether the client got everything, and the head of the request that it has sent in the meantime, if any.
    """
    headers = _headers(stream) | ({} if keep else {"Connection": "close"})
    if request.method != "HEAD" or "Content-Length" not in headers:
        headers["Transfer-Encoding"] = "chunked"
    try:
        connection.writer.write(render_head(stream.status, headers))
        return (True, b"") if request.method == "HEAD" else await _send_stream(connection, stream, idle_s)
    finally:
        if isinstance(stream.chunks, Closable):  # also if none was read, so that their resources are released
            await stream.chunks.aclose()


async def _send_stream(connection: ServedConnection, stream: StreamedResponse, idle_s: float) -> tuple[bool, bytes]:
    reader, heard = connection.reader, b""

    async def drain_body() -> None:
        nonlocal heard
        with contextlib.suppress(asyncio.LimitOverrunError):
            heard = await reader.readuntil(HEAD_END)  # consumes nothing until the head is complete
        # further requests are read later; a closed connection is noticed when something is sent
        await asyncio.get_running_loop().create_future()

    async with Supervisor("answer") as supervisor:
        sending = supervisor.start_child("answer-send", _send_chunks(connection.writer, stream.chunks, idle_s))
        leaving = supervisor.start_child("answer-left", drain_body())
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        is_sent = sending.done()
        await _cancelled(leaving)  # first: both may have failed
        await (sending if is_sent else _cancelled(sending))
        return is_sent, heard


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end. A cancellation of the caller is not taken for that of the task."""
    task.cancel()
    await asyncio.wait((task,))
    with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
        task.result()


async def _send_chunks(writer: asyncio.StreamWriter, chunks: AsyncIterator[bytes], idle_s: float) -> None:
    now = asyncio.get_running_loop().time
    async with asyncio.timeout(idle_s or None) as limit:
        async for chunk in chunks:
            if chunk:
                writer.writelines((b"%x\r\n" % len(chunk), chunk, b"\r\n"))
                await writer.drain()
                limit.reschedule(now() + idle_s if idle_s else None)
        writer.write(as_chunk(b""))  # the end
        await writer.drain()
