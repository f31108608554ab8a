"""The way to one server: connects on the first call, again after a loss, and carries calls.

Owns: `Channel`, its one connection, deadlines, and cancellation. Failures are `RpcError` and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from pykubelet.net.grpc.http2 import Connection, ConnectionFault, ErrorCode, Stream
from pykubelet.net.grpc.limits import RUNTIME, Limits
from pykubelet.net.grpc.status import Code, MessageReader, RpcError, framed, header_block, status_of, timeout_field

CLOSED = "grpc: the client connection is closing"
LATE = "context deadline exceeded"
LOST = "error reading from server: EOF"
HUNG = 'connection error: desc = "keepalive ping failed to receive ACK within timeout"'
UNREAD = "connection error: the server does not read the answers to its SETTINGS and PING frames"
_KEPT_TIMEOUTS = 64
#: How long a closed connection may take to send what is left. A server that does not read would keep it open.
CLOSE_S = 1.0
#: How long pings may wait for an answer. A server in Go pings at every request to learn the connection's bandwidth, but only
#: once its last ping was answered: answers at once would wake both sides for each call, and nobody needs that bandwidth.
#: One that pings to see whether we live waits for seconds.
PING_S = 0.5


class _Call(Protocol):
    """What waits for a stream."""

    stream: Stream

    def look(self) -> None:
        """Something new has come."""

    def fail(self, code: Code, message: str) -> None:
        """Nothing more comes."""


class Session(asyncio.Protocol):
    """One connection and the calls on it. Once it `is_over` it takes no more; `lost` is set then.

    A server that hangs keeps its connection open. Calls have deadlines, streams have none: a PING finds it out.
    """

    def __init__(self, lost: asyncio.Event, limits: Limits = RUNTIME) -> None:
        self.limits = limits
        self._http = Connection(limits)
        self._aborting: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Call] = {}
        self._bell = asyncio.Event()
        self._lost = lost
        self._answering: asyncio.TimerHandle | None = None
        self._keep_alive: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._pinged_at: float | None = None
        self.is_over = False

    @property
    def is_usable(self) -> bool:
        """Whether it takes calls, now or later."""
        return not self.is_over and self._http.is_usable

    @property
    def is_ready(self) -> bool:
        """Whether it takes a call now."""
        return self._http.has_room and not self.is_over and self._http.is_usable

    @property
    def is_greeted(self) -> bool:
        """Whether the server has shown that it speaks HTTP/2."""
        return self._http.is_greeted

    async def wait_room(self) -> None:
        """Until the server takes one more stream, or never will."""
        while self.is_usable and not self._http.has_room:
            self._bell.clear()
            await self._bell.wait()

    def request(self, headers: bytes, body: bytes) -> Stream:
        """Send a request. Say who waits for it, with `attach`, before anything else happens."""
        stream = self._http.request(headers, body)
        self._send()
        return stream

    def attach(self, call: _Call) -> None:
        self._calls[call.stream.id] = call

    def cancel(self, stream: Stream) -> None:
        """Nobody waits for a stream any more."""
        if self._calls.pop(stream.id, None) is not None:
            self._http.cancel(stream)
            self._send()
            self._bell.set()

    def reopen(self, stream: Stream) -> None:
        """Everything that has come on a long stream was read."""
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
        self._bell.set()
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
        """Ping a server that is silent while calls wait for it; give it up when the last ping was followed by nothing."""
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
        """Whether the server reads the answers that it makes us send; they would pile up."""
        if self._transport is None or not self._transport.get_write_buffer_size():
            self._http.answers = 0
        return self._http.answers <= self.limits.answers

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        self._keep_alive = loop.call_later(self.limits.silence_s, self._check_alive)
        self._send()

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return
        self._heard_at = asyncio.get_running_loop().time()
        try:
            news = self._http.receive(data)
        except ConnectionFault as fault:
            self._send()
            is_limit = fault.code is ErrorCode.ENHANCE_YOUR_CALM
            self.end(Code.RESOURCE_EXHAUSTED if is_limit else Code.UNAVAILABLE, f"connection error: {fault}")
            return
        self._send()
        if self._http.answers and not self._is_read():
            self.end(Code.RESOURCE_EXHAUSTED, UNREAD)
            return
        if self._http.pings and self._answering is None:
            self._answering = asyncio.get_running_loop().call_later(PING_S, self._answer_pings)
        for stream in news:
            call = self._calls.pop(stream.id, None) if stream.is_ended else self._calls.get(stream.id)
            if call is not None:
                call.look()
        self._bell.set()
        if not self._calls and not self._http.is_usable:
            self.end(Code.UNAVAILABLE, LOST)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._aborting is not None:
            self._aborting.cancel()
        self.end(Code.UNAVAILABLE, LOST if exc is None else f"error reading from server: {exc}")


class _UnaryCall:
    """One answer, as a future."""

    __slots__ = ("_messages", "_reader", "answer", "stream")

    def __init__(self, stream: Stream, answer: asyncio.Future[bytes], limit: int) -> None:
        self.stream = stream
        self.answer = answer
        self._reader = MessageReader(limit)
        self._messages: list[bytes] = []

    def look(self) -> None:
        try:
            self._messages += self._reader.take(self.stream)
        except RpcError as error:
            self.fail(error.code, error.message)
            return
        if not self.stream.is_ended or self.answer.done():
            return
        code, message = status_of(self.stream)
        if code is not Code.OK:
            self.answer.set_exception(RpcError(code, message, self.stream.reset == ErrorCode.REFUSED_STREAM))
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
    """Answers until somebody ends it; one reader. What has come is kept until it is read."""

    def __init__(self, session: Session, stream: Stream) -> None:
        self.stream = stream
        self._session = session
        self._reader = MessageReader(session.limits.message)
        self._messages: deque[bytes] = deque()
        self._bell = asyncio.Event()
        self._end: tuple[Code, str] | None = None

    @property
    def end(self) -> RpcError | None:
        """How the stream has ended (code OK: the server was done); None while it goes on."""
        return RpcError(*self._end) if self._end is not None else None

    async def read(self) -> bytes | None:
        """The next answer; None when the server was done. Raises RpcError when it broke or was closed."""
        while not self._messages:
            if self._end is not None:
                if self._end[0] is Code.OK:
                    return None
                raise RpcError(*self._end)
            self._session.reopen(self.stream)
            self._bell.clear()
            await self._bell.wait()
        return self._messages.popleft()

    def close(self) -> None:
        """End the stream; harmless when it has ended."""
        self._session.cancel(self.stream)
        self.fail(Code.CANCELED, "the stream was closed")

    def look(self) -> None:
        try:
            self._messages += self._reader.take(self.stream)
        except RpcError as error:
            self._session.cancel(self.stream)
            self.fail(error.code, error.message)
            return
        if self.stream.is_ended:
            self.fail(*status_of(self.stream))
        self._bell.set()

    def fail(self, code: Code, message: str) -> None:
        if self._end is None:
            self._end = (code, message)
        self._bell.set()


Dial = Callable[[Callable[[], Session]], Awaitable[tuple[asyncio.BaseTransport, Session]]]


def unix_dial(path: str) -> Dial:
    """The server that listens at a socket in the file system."""

    async def dial(make: Callable[[], Session]) -> tuple[asyncio.BaseTransport, Session]:
        try:
            return await asyncio.get_running_loop().create_unix_connection(make, path)
        except OSError as error:
            raise _not_dialled("unix", path, error) from error

    return dial


def tcp_dial(host: str, port: int) -> Dial:
    """The server at an address."""

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
    """Calls to one server, within `limits`. Make it inside the running event loop."""

    def __init__(
        self, dial: Dial, authority: str = "localhost", user_agent: str = "pykubelet", limits: Limits = RUNTIME
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
    def is_greeted(self) -> bool:
        """Whether the last connection got as far as a server that speaks HTTP/2."""
        return self._session is not None and self._session.is_greeted

    async def wait_lost(self) -> None:
        """Until a connection is lost, if none was since the last time. For one task, again and again."""
        await self._lost.wait()
        self._lost.clear()

    def method(self, path: str, metadata: tuple[tuple[str, str], ...] = ()) -> bytes:
        """What to call a method by: `path` is `/package.Service/Method`."""
        return header_block(path, self._authority, self._user_agent, metadata)

    async def unary(self, method: bytes, message: bytes, timeout_s: float | None) -> bytes:
        """One request, one answer. Cancelling the caller cancels the call; the server may finish it all the same.

        A request that the server has refused untouched, because it goes away or has too much to do, is sent once more.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        headers = method if timeout_s is None else method + self._timeout(timeout_s)
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
                if is_last or not error.is_untouched:
                    raise
            finally:
                if timer is not None:
                    timer.cancel()
                if not call.stream.is_ended:
                    session.cancel(call.stream)
        raise AssertionError("the last try returns or raises")

    async def stream(self, method: bytes, message: bytes) -> ServerStream:
        """Send the one request of a stream of answers, without a deadline. Close the result."""
        session = await self._ready(None)
        opened = ServerStream(session, session.request(method, framed(message)))
        session.attach(opened)
        return opened

    def close(self) -> None:
        """Close the connection; calls in flight and later ones fail with code CANCELED."""
        self._is_closed = True
        for session in self._sessions:
            session.end(Code.CANCELED, CLOSED)

    async def _ready(self, deadline: float | None) -> Session:
        """A connection that takes a call now: whoever needs one first dials for all."""
        try:
            async with asyncio.timeout_at(deadline), self._dialling:
                while True:
                    if self._is_closed:
                        self.close()  # also what was dialled meanwhile
                        raise RpcError(Code.CANCELED, CLOSED)
                    session = self._session
                    if session is not None and session.is_ready:
                        return session
                    if session is not None and session.is_usable:
                        await session.wait_room()
                        continue
                    _, session = await self._dial(lambda: Session(self._lost, self._limits))
                    self._session = session
                    self._sessions = [*(old for old in self._sessions if not old.is_over), session]
        except TimeoutError as error:
            raise RpcError(Code.DEADLINE_EXCEEDED, LATE) from error

    def _timeout(self, seconds: float) -> bytes:
        """The field for a deadline; most calls have one of a few."""
        field = self._timeouts.get(seconds)
        if field is None:
            if len(self._timeouts) >= _KEPT_TIMEOUTS:
                self._timeouts.clear()
            field = self._timeouts[seconds] = timeout_field(seconds)
        return field
