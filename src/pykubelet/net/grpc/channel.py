"""A gRPC channel to one server: connects on the first call, reconnects after a loss, and carries calls.

Owns: `Channel`, its connection, deadlines, and cancellation. All failures are `RpcError`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, cast

from h2.errors import ErrorCodes

from pykubelet.net.grpc.http2 import FRAME_BYTES, ConnectionFault, Http2Connection, Http2Stream
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import Code, MessageReader, RpcError, framed, header_block, status_of, timeout_field

CLOSED = "grpc: the client connection is closing"
LATE = "context deadline exceeded"
LOST = "error reading from server: EOF"
HUNG = 'connection error: desc = "keepalive ping failed to receive ACK within timeout"'
UNREAD = "connection error: the server does not read the answers to its SETTINGS and PING frames"
_KEPT_TIMEOUTS = 64
#: The most seconds that a closed connection may take to send the rest. A server that does not read would keep it open.
CLOSE_S = 1.0
#: Seconds after which pings are answered. A server in Go pings at every request to estimate the bandwidth, but only once its
#: last ping was answered. Immediate answers would wake both sides for each call, and the estimate has no use here. A server that
#: pings to check whether the client is alive waits for seconds.
PING_S = 0.5
#: Bytes of a unix socket's path that the kernel accepts.
MAX_SOCKET_PATH = 107


class _Call(Protocol):
    """A call that waits for its stream."""

    stream: Http2Stream

    def update(self) -> None:
        """Process what has arrived on the stream."""

    def fail(self, code: Code, message: str) -> None:
        """End the call, because nothing more will arrive."""


class Session(asyncio.Protocol):
    """One connection and its calls. Once it `is_over`, it accepts no more calls, and `lost` is set.

    A server that hangs keeps its connection open. Calls have deadlines but streams do not, so a PING detects such a server.
    """

    def __init__(self, lost: asyncio.Event, limits: Http2Limits) -> None:
        self.limits = limits
        self._http = Http2Connection(limits)
        self._aborting: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Call] = {}
        self._wakeup = asyncio.Event()
        self._lost = lost
        self._answering: asyncio.TimerHandle | None = None
        self._keep_alive: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._pinged_at: float | None = None
        self.is_over = False

    @property
    def is_usable(self) -> bool:
        """Whether the connection accepts calls, now or later."""
        return not self.is_over and self._http.is_usable

    @property
    def is_ready(self) -> bool:
        """Whether the connection accepts a call now."""
        return self._http.has_free_stream and not self.is_over and self._http.is_usable

    @property
    def has_settings(self) -> bool:
        """Whether the server has sent its HTTP/2 SETTINGS."""
        return self._http.has_settings

    async def wait_free_stream(self) -> None:
        """Wait until the server accepts one more stream, or never will."""
        while self.is_usable and not self._http.has_free_stream:
            self._wakeup.clear()
            await self._wakeup.wait()

    def request(self, headers: bytes, body: bytes) -> Http2Stream:
        """Send a request. Call `attach` with its call before the next await."""
        stream = self._http.request(headers, body)
        self._send()
        return stream

    def attach(self, call: _Call) -> None:
        """Notify `call` of everything that arrives on its stream."""
        self._calls[call.stream.id] = call

    def cancel(self, stream: Http2Stream) -> None:
        """Cancel a stream and drop its call."""
        if self._calls.pop(stream.id, None) is not None:
            self._http.cancel(stream)
            self._send()
            self._wakeup.set()

    def reopen(self, stream: Http2Stream) -> None:
        """Record that everything that has arrived on a long stream was read, so that the server may send more."""
        self._http.reopen(stream)
        self._send()

    def end(self, code: Code, message: str) -> None:
        """Fail all calls and close."""
        if not self.is_over:
            self.is_over = True
            self._lost.set()
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.fail(code, message)
        self._wakeup.set()
        for timer in (self._answering, self._keep_alive):
            if timer is not None:
                timer.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._aborting = asyncio.get_running_loop().call_later(CLOSE_S, self._transport.abort)

    def _send(self) -> None:
        out = self._http.take_output()
        if out and self._transport is not None:
            self._transport.write(out)

    def _answer_pings(self) -> None:
        self._answering = None
        self._http.answer_pings()
        self._send()

    def _check_alive(self) -> None:
        """Ping a server that sends nothing while calls wait for it. End the session if nothing followed the last ping."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._pinged_at is not None and self._heard_at <= self._pinged_at:
            self.end(Code.UNAVAILABLE, HUNG)
            return
        self._pinged_at = None
        silent_at = self._heard_at + self.limits.silence_s
        if not self._calls:
            next_at = now + self.limits.silence_s
        elif now < silent_at:
            next_at = silent_at
        else:
            self._pinged_at = now
            self._http.ping()
            self._send()
            next_at = now + self.limits.ping_s
        self._keep_alive = loop.call_at(next_at, self._check_alive)

    def _is_read(self) -> bool:
        """Whether the server reads the answers that it causes. Otherwise they would pile up."""
        if self._transport is None or not self._transport.get_write_buffer_size():
            self._http.answers = 0
        return self._http.answers <= self.limits.answers

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`. Sends the preface."""
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        self._keep_alive = loop.call_later(self.limits.silence_s, self._check_alive)
        self._send()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. A violation of the protocol or of a limit ends the session."""
        if self.is_over:
            return
        self._heard_at = asyncio.get_running_loop().time()
        try:
            changed = self._http.receive(data)
        except ConnectionFault as fault:
            self._send()
            is_limit = fault.code is ErrorCodes.ENHANCE_YOUR_CALM
            self.end(Code.RESOURCE_EXHAUSTED if is_limit else Code.UNAVAILABLE, f"connection error: {fault}")
            return
        self._send()
        if self._http.answers and not self._is_read():
            self.end(Code.RESOURCE_EXHAUSTED, UNREAD)
            return
        if self._http.pings and self._answering is None:
            self._answering = asyncio.get_running_loop().call_later(PING_S, self._answer_pings)
        for stream in changed:
            call = self._calls.pop(stream.id, None) if stream.is_ended else self._calls.get(stream.id)
            if call is not None:
                call.update()
        self._wakeup.set()
        if not self._calls and not self._http.is_usable:
            self.end(Code.UNAVAILABLE, LOST)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`. Ends the session."""
        transport, self._transport = self._transport, None
        if self._aborting is not None:
            self._aborting.cancel()
        if exc is not None and transport is not None and not self.has_settings:
            self._read_rest(transport)
        self.end(Code.UNAVAILABLE, LOST if exc is None else f"error reading from server: {exc}")

    def _read_rest(self, transport: asyncio.Transport) -> None:
        """Read why the server has closed the connection at once. asyncio drops it when a write fails before it was read."""
        connected = transport.get_extra_info("socket")
        if connected is not None and not self.is_over:
            with suppress(OSError):
                self.data_received(os.read(connected.fileno(), FRAME_BYTES))


class _UnaryCall:
    """A call with one answer, which is a future."""

    __slots__ = ("_messages", "_reader", "answer", "stream")

    def __init__(self, stream: Http2Stream, answer: asyncio.Future[bytes], limit: int) -> None:
        self.stream = stream
        self.answer = answer
        self._reader = MessageReader(limit)
        self._messages: list[bytes] = []

    def update(self) -> None:
        try:
            self._messages += self._reader.take(self.stream)
        except RpcError as error:
            self.fail(error.code, error.message)
            return
        if not self.stream.is_ended or self.answer.done():
            return
        code, message = status_of(self.stream)
        if code is not Code.OK:
            self.answer.set_exception(RpcError(code, message, self.stream.reset == ErrorCodes.REFUSED_STREAM))
        elif len(self._messages) == 1 and self._reader.is_empty:
            self.answer.set_result(self._messages[0])
        else:
            self.fail(Code.INTERNAL, f"a call was answered with {len(self._messages)} messages")

    def fail(self, code: Code, message: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(RpcError(code, message))

    def expire(self) -> None:
        self.fail(Code.DEADLINE_EXCEEDED, LATE)


class ServerStream:
    """A stream of answers with one reader, until either side ends it. Messages are kept until they are read."""

    def __init__(self, session: Session, stream: Http2Stream) -> None:
        self.stream = stream
        self._session = session
        self._reader = MessageReader(session.limits.message)
        self._messages: deque[bytes] = deque()
        self._wakeup = asyncio.Event()
        self._end: tuple[Code, str] | None = None

    @property
    def end(self) -> RpcError | None:
        """How the stream has ended (code OK: the server completed it); None while it is open."""
        return RpcError(*self._end) if self._end is not None else None

    async def read(self) -> bytes | None:
        """The next answer; None if the server completed the stream. Raises RpcError if it failed or was closed."""
        while not self._messages:
            if self._end is not None:
                if self._end[0] is Code.OK:
                    return None
                raise RpcError(*self._end)
            self._session.reopen(self.stream)
            self._wakeup.clear()
            await self._wakeup.wait()
        return self._messages.popleft()

    async def read_newest(self) -> tuple[bytes, int] | None:
        """As `read`, but of several answers that have arrived, only the last one is returned, with how many were skipped."""
        newest = await self.read()
        if newest is None:
            return None
        skipped = len(self._messages)
        if skipped:
            newest = self._messages[-1]
            self._messages.clear()
        return newest, skipped

    def close(self) -> None:
        """End the stream. Does nothing if it has ended already."""
        self._session.cancel(self.stream)
        self.fail(Code.CANCELED, "the stream was closed")

    def update(self) -> None:
        """Process what has arrived on the stream."""
        try:
            self._messages += self._reader.take(self.stream)
        except RpcError as error:
            self._session.cancel(self.stream)
            self.fail(error.code, error.message)
            return
        if self.stream.is_ended:
            self.fail(*status_of(self.stream))
        self._wakeup.set()

    def fail(self, code: Code, message: str) -> None:
        """End the stream, unless it has ended already, and wake the reader."""
        if self._end is None:
            self._end = (code, message)
        self._wakeup.set()


Dial = Callable[[Callable[[], Session]], Awaitable[tuple[asyncio.BaseTransport, Session]]]


def unix_dial(path: str) -> Dial:
    """A dialer for the server that listens on a unix socket."""

    async def dial(make: Callable[[], Session]) -> tuple[asyncio.BaseTransport, Session]:
        try:
            return await asyncio.get_running_loop().create_unix_connection(make, path)
        except OSError as error:
            raise _not_dialled("unix", path, error) from error

    return dial


def tcp_dial(host: str, port: int) -> Dial:
    """A dialer for the server at a TCP address."""

    async def dial(make: Callable[[], Session]) -> tuple[asyncio.BaseTransport, Session]:
        try:
            return await asyncio.get_running_loop().create_connection(make, host, port)
        except OSError as error:
            raise _not_dialled("tcp", f"[{host}]:{port}" if ":" in host else f"{host}:{port}", error) from error

    return dial


def _not_dialled(network: str, address: str, error: OSError) -> RpcError:
    why = os.strerror(error.errno).lower() if error.errno else str(error)
    text = f'connection error: desc = "transport: Error while dialing: dial {network} {address}: connect: {why}"'
    return RpcError(Code.UNAVAILABLE, text)


class Channel:
    """Calls to one server, within `limits`. Create it inside the running event loop."""

    def __init__(
        self, dial: Dial, limits: Http2Limits, authority: str = "localhost", user_agent: str = "pykubelet"
    ) -> None:
        self._dial = dial
        self._limits = limits
        self._authority = authority
        self._user_agent = user_agent
        self._session: Session | None = None
        self._sessions: list[Session] = []
        self._lost = asyncio.Event()
        self._dialling = asyncio.Lock()
        self._is_closed = False
        self._timeouts: dict[float, bytes] = {}

    @property
    def has_settings(self) -> bool:
        """Whether the server of the last connection has sent its HTTP/2 SETTINGS."""
        return self._session is not None and self._session.has_settings

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that takes calls."""
        return self._session is not None and self._session.is_usable

    async def connect(self, timeout_s: float) -> None:
        """Connect, unless there is a connection. Raises RpcError."""
        await self._ready(asyncio.get_running_loop().time() + timeout_s)

    async def wait_lost(self) -> None:
        """Wait until a connection is lost; return at once if one was lost since the last call. For one task only."""
        await self._lost.wait()
        self._lost.clear()

    def method(self, path: str, metadata: tuple[tuple[str, str], ...] = ()) -> bytes:
        """The header block that identifies a method in calls. `path`: `/package.Service/Method`."""
        return header_block(path, self._authority, self._user_agent, metadata)

    async def unary(self, method: bytes, message: bytes, timeout_s: float | None, fields: bytes = b"") -> bytes:
        """Make a call with one request and one answer. Cancelling the caller cancels the call; the server may still finish it.

        `fields`: further header fields, encoded.

        A request that the server has refused without processing it, because it is shutting down or overloaded, is sent once
        more.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        headers = (method if timeout_s is None else method + self._timeout(timeout_s)) + fields
        body = framed(message)
        for is_last in (False, True):
            session = self._session
            if session is None or not session.is_ready:
                session = await self._ready(deadline)
            call = _UnaryCall(session.request(headers, body), loop.create_future(), self._limits.message)
            session.attach(call)
            timer = None if deadline is None else loop.call_at(deadline, call.expire)
            try:
                return await call.answer
            except RpcError as error:
                if error.code is Code.CANCELED and deadline is not None and loop.time() >= deadline:
                    raise RpcError(Code.DEADLINE_EXCEEDED, LATE) from error  # the server's deadline was seen first
                if is_last or not error.is_unprocessed:
                    raise
            finally:
                if timer is not None:
                    timer.cancel()
                if not call.stream.is_ended:
                    session.cancel(call.stream)
                del call  # its answer may be the error that is raised, which refers to this frame
        raise AssertionError("the last try returns or raises")

    async def stream(self, method: bytes, message: bytes) -> ServerStream:
        """Send a request that gets a stream of answers, without a deadline. The caller must close the result."""
        session = await self._ready(None)
        opened = ServerStream(session, session.request(method, framed(message)))
        session.attach(opened)
        return opened

    def close(self) -> None:
        """Close the connection. Calls in flight and later ones fail with code CANCELED."""
        self._is_closed = True
        for session in self._sessions:
            session.end(Code.CANCELED, CLOSED)

    async def _ready(self, deadline: float | None) -> Session:
        """Wait for a connection that accepts a call now. The first caller dials for all."""
        try:
            async with asyncio.timeout_at(deadline), self._dialling:
                while True:
                    if self._is_closed:
                        self.close()  # also closes a connection that was dialed in the meantime
                        raise RpcError(Code.CANCELED, CLOSED)
                    session = self._session
                    if session is not None and session.is_ready:
                        return session
                    if session is not None and session.is_usable:
                        await session.wait_free_stream()
                        continue
                    _, session = await self._dial(lambda: Session(self._lost, self._limits))
                    self._session = session
                    self._sessions = [*(old for old in self._sessions if not old.is_over), session]
        except TimeoutError as error:
            raise RpcError(Code.DEADLINE_EXCEEDED, LATE) from error

    def _timeout(self, seconds: float) -> bytes:
        """The header field for a deadline. It is cached, because most calls use one of a few deadlines."""
        field = self._timeouts.get(seconds)
        if field is None:
            if len(self._timeouts) >= _KEPT_TIMEOUTS:
                self._timeouts.clear()
            field = self._timeouts[seconds] = timeout_field(seconds)
        return field
