"""A small HTTP/1.1 server: whole answers, streamed ones, and connections that are handed over.

Owns: connections with their limits in number, size and time, keep-alive, and the writing of answers. What is answered is
decided by a `Handler`; a plain `Route` becomes one by `plain`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.net.http.wire import REASONS, BadRequest, Body, Head, Request, parse_head, render_head

__all__ = ["Connection", "Handler", "HttpServer", "Request", "Response", "Route", "Stream", "Takeover", "plain", "text"]

log = Log("server")
HEAD_BYTES, HEAD_END = 64 * 1024, b"\r\n\r\n"
WRITE_DEADLINE_S = 60.0
LINGER_S, LINGER_BYTES = 1.0, 1 << 20
TEXT, JSON = "text/plain; charset=utf-8", "application/json"


class Limits(Value):
    """How many connections may be open at once (of more the one that has been idle for longest is closed, or the newest where
    none is), and for how long one may keep us waiting.

    `head_s`: for the first request and every body; `idle_s`: for the next request; `stream_idle_s`: a stream of which
    nothing is to be sent, or nothing is taken, is ended after that, 0: never.
    """

    connections: int = 256
    head_s: float = 30.0
    idle_s: float = 90.0
    stream_idle_s: float = 4 * 3600.0


class Response(Value):
    """A whole answer."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Closable(Protocol):
    """What holds something, as generators do."""

    async def aclose(self) -> None: ...


class Stream(Value):
    """An answer that is sent as it comes. It ends with `chunks`, which are closed in any case, also where none is asked for:
    a generator that did not begin does nothing then, what holds something from the start needs an `aclose` of its own.
    """

    status: int
    chunks: AsyncIterator[bytes]
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


class Connection(Value):
    """Both directions of a connection, and who is at the other end: `certificate` as `ssl` gives it, None without one.

    `body`: of the request that is being answered. It is not read yet.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: str = ""
    certificate: Mapping[str, Any] | None = None
    body: Body | None = None

    @property
    def is_let_in(self) -> bool:
        """Whether `let_in` was called, or need not be on this port."""
        return not isinstance(self.reader, Guest) or self.reader.is_let_in

    def let_in(self) -> None:
        """Whoever speaks is known and may ask: he has the room that is kept for such."""
        if isinstance(self.reader, Guest):
            self.reader.let_in()

    async def read_body(self) -> bytes:
        """The body of the request that is being answered, once. Raises BadRequest."""
        return await self.body.read() if self.body is not None else b""


@runtime_checkable
class Guest(Protocol):
    """The reader of a client that is not authorized yet, with a small head until `let_in`, or `may_say_more`."""

    @property
    def is_let_in(self) -> bool: ...

    def let_in(self) -> None: ...

    def may_say_more(self) -> bool: ...


class Takeover(Value):
    """The connection now speaks something else: `talk` has it until it ends, and closes nothing itself."""

    talk: Callable[[Connection], Awaitable[None]]


Answer = Response | Stream | Takeover
Route = Callable[[Request], Response]
Handler = Callable[[Request, Connection], Awaitable[Answer]]
IsAllowed = Callable[[asyncio.StreamWriter], bool]


def text(status: int, body: str) -> Response:
    return Response(status, body.encode())


FORBIDDEN = text(403, "Forbidden")


def plain(route: Route) -> Handler:
    """A route that needs to wait for nothing, as a handler."""

    async def handle(request: Request, _: Connection) -> Answer:
        return route(request)

    return handle


def allow_all(_: asyncio.StreamWriter) -> bool:
    return True


class HttpServer:
    """Answers connections with a handler. Give `serve` to `asyncio.start_server` or `start_unix_server`."""

    def __init__(self, handler: Handler, is_allowed: IsAllowed = allow_all, limits: Limits | None = None) -> None:
        self._handler = handler
        self._is_allowed = is_allowed
        self._limits = limits or Limits()
        self._open: set[asyncio.StreamWriter] = set()
        #: Those of which no whole request has come since their last answer, the longest first.
        self._idle: dict[asyncio.StreamWriter, None] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it or it is idle for too long."""
        if len(self._open) >= self._limits.connections and not self._close_idle():
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            await self._converse(_connection(reader, writer))
        except TimeoutError:
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # it would wait for ever for somebody who takes nothing
        except (OSError, asyncio.IncompleteReadError):
            return  # the other side is gone
        finally:
            self._open.discard(writer)
            writer.close()

    def _close_idle(self) -> bool:
        """Close the connection that has been idle for longest; False where none is."""
        longest = next(iter(self._idle), None)
        if longest is None:
            return False
        del self._idle[longest]
        self._open.discard(longest)
        longest.transport.abort()
        return True

    def close(self) -> None:
        """End the connections that are open."""
        for writer in tuple(self._open):
            writer.close()

    async def _converse(self, connection: Connection) -> None:
        allowed = self._is_allowed(connection.writer)
        wait_s, heard = self._limits.head_s, b""
        while True:
            try:
                head = parse_head(heard or await self._next_head(connection, wait_s))
                body = _body_of(head, connection, self._limits.head_s)
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
            keep, heard = head.keep and is_read and not request.is_upgrade and connection.is_let_in, b""
            if isinstance(answer, Stream):
                has_all, heard = await _write_stream(connection, request, answer, self._limits.stream_idle_s, keep=keep)
                keep = keep and has_all
            elif request.is_upgrade or not is_read:
                await _last(connection, request, answer)
            else:
                await _write(connection.writer, request, answer, keep=keep)
            if not keep:
                return
            wait_s = self._limits.idle_s
            await asyncio.sleep(0)  # a client that sends many requests at once is one of many clients

    async def _next_head(self, connection: Connection, wait_s: float) -> bytes:
        """Raises LimitOverrunError and TimeoutError."""
        self._idle[connection.writer] = None
        try:
            async with asyncio.timeout(wait_s):
                return await _read_head(connection.reader)
        finally:
            self._idle.pop(connection.writer, None)

    async def _answer(self, request: Request, connection: Connection) -> Answer:
        try:
            return await self._handler(request, connection)
        except BadRequest:
            raise
        except Exception as error:  # one question must not end the agent
            log.error("cannot answer", path=request.path, error=repr(error), exc_info=error)
            return text(500, "Internal Server Error")


def _connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Connection:
    peer = writer.get_extra_info("peername")
    address = peer[0] if isinstance(peer, tuple) else ""
    if writer.get_extra_info("ssl_object") is None:
        return Connection(reader, writer, address)
    # the client has the last word of a handshake: if it asks only when that is acknowledged, it need not wait for TCP's timer
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return Connection(reader, writer, address, writer.get_extra_info("peercert") or None)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Raises LimitOverrunError."""
    try:
        return await reader.readuntil(HEAD_END)
    except asyncio.LimitOverrunError:
        if not isinstance(reader, Guest) or not reader.may_say_more():
            raise
        return await reader.readuntil(HEAD_END)


def _body_of(head: Head, connection: Connection, limit_s: float) -> Body:
    """An upgraded connection has no body: what follows is of the other protocol."""
    request = head.request
    expects = "100-continue" in request.headers.get("expect", "").lower()
    length = 0 if request.is_upgrade else head.body_length
    return Body(connection.reader, length, limit_s, connection.writer if expects else None)


async def _last(connection: Connection, request: Request, response: Response) -> None:
    """The last answer to somebody who may still be sending: closing over unread bytes resets a connection and loses the answer."""
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


def _headers(answer: Response | Stream) -> dict[str, str]:
    return {"Content-Type": answer.content_type, "X-Content-Type-Options": "nosniff", **answer.headers}


async def _write(writer: asyncio.StreamWriter, request: Request, response: Response, keep: bool) -> None:
    headers = _headers(response) | {"Content-Length": str(len(response.body))}
    if not keep:
        headers["Connection"] = "close"
    writer.write(render_head(response.status, headers) + (b"" if request.method == "HEAD" else response.body))
    async with asyncio.timeout(WRITE_DEADLINE_S):
        await writer.drain()


async def _write_stream(
    connection: Connection, request: Request, stream: Stream, idle_s: float, *, keep: bool
) -> tuple[bool, bytes]:
    """Chunk by chunk, at the other side's pace, until the other side leaves. Whether it got all, and the head of the request
    that it made meanwhile, if it did.
    """
    headers = _headers(stream) | ({} if keep else {"Connection": "close"})
    if request.method != "HEAD" or "Content-Length" not in headers:
        headers["Transfer-Encoding"] = "chunked"
    try:
        connection.writer.write(render_head(stream.status, headers))
        return (True, b"") if request.method == "HEAD" else await _send_stream(connection, stream, idle_s)
    finally:
        await _closed(stream.chunks)


async def _send_stream(connection: Connection, stream: Stream, idle_s: float) -> tuple[bool, bytes]:
    reader, heard = connection.reader, b""

    async def hear_out() -> None:
        nonlocal heard
        with contextlib.suppress(asyncio.LimitOverrunError):
            heard = await reader.readuntil(HEAD_END)  # takes nothing away before it has all of it
        # what comes after that is read in its turn; that the client leaves shows when it is sent something
        await asyncio.get_running_loop().create_future()

    async with Supervisor("answer") as supervisor:
        sending = supervisor.start_child("answer-send", _send_chunks(connection.writer, stream.chunks, idle_s))
        leaving = supervisor.start_child("answer-left", hear_out())
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        if is_sent := sending.done():
            await sending
        await _cancelled(sending)
        await _cancelled(leaving)
        return is_sent, heard


async def _closed(chunks: AsyncIterator[bytes]) -> None:
    """Also when nothing was asked of it: what it holds is given back."""
    if isinstance(chunks, Closable):
        await chunks.aclose()


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
        await task


async def _send_chunks(writer: asyncio.StreamWriter, chunks: AsyncIterator[bytes], idle_s: float) -> None:
    now = asyncio.get_running_loop().time
    async with asyncio.timeout(idle_s or None) as limit:
        async for chunk in chunks:
            if chunk:
                writer.writelines((b"%x\r\n" % len(chunk), chunk, b"\r\n"))
                await writer.drain()
                limit.reschedule(now() + idle_s if idle_s else None)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
