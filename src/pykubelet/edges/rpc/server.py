"""A gRPC server for unary calls on a unix socket: what plugins and monitors on the machine ask the agent.

Owns: the server's side of a connection, bounded in the number of connections and of calls at once, in the size of headers
and requests, in time without a call, and in what brings no call: resets and control frames. A client that exceeds a limit
of its connection loses it, with GOAWAY; where there are too many connections, the one that had no call for longest is
closed. Does not compress, stream, or push. What a method does is up to its `Method`. Source: RFC 9113, "gRPC over HTTP2".
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

from msgspec import Struct

from pykubelet.base.kit.durations import format_seconds
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import field
from pykubelet.edges.rpc.hpack import HeaderReader, HeadersTooLarge, HpackError, indexed, literal
from pykubelet.edges.rpc.http2 import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    PADDED,
    PREFACE,
    PRIORITY,
    ConnectionFault,
    ErrorCode,
    Kind,
    frame,
)
from pykubelet.edges.rpc.status import Code, RpcError, framed

log = Log("rpc")
#: Takes the request message, gives the answer; raises RpcError for an end other than OK.
Method = Callable[[bytes], Awaitable[bytes]]
MAX_CONNECTIONS = 16
MAX_REQUEST_BYTES = 64 << 10
MAX_HEADER_BYTES = 8 << 10
MAX_CALLS = 16
#: Calls that the client has cancelled, more than those that were answered.
MAX_RESETS = 100
#: Frames in a row that bring no part of a request.
MAX_EMPTY_FRAMES = 10_000
START_WINDOW = 65535
#: So many are taken before other work of the event loop goes on.
FRAMES_AT_ONCE = 100
PREFACE_DEADLINE_S = 10.0
#: How long a connection stays without a call, or with an answer that the client does not take.
IDLE_S = 300.0
#: How long a closed connection may take to send what is left.
CLOSE_S = 1.0
_MAX_CONTINUATIONS = 64
_MAX_SETTINGS = 32
_MAX_STREAMS, _INITIAL_WINDOW, _MAX_HEADER_LIST = 3, 4, 6
_HEAD = struct.Struct(">BHBBL")
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")
_PAIR = struct.Struct(">LL")
_LENGTH = struct.Struct(">BL")
_ANSWER = indexed(":status", "200") + literal("content-type", "application/grpc")


class _Call(Struct):
    path: str = ""
    body: bytearray = field(default_factory=bytearray)
    room: int = START_WINDOW
    task: asyncio.Task[None] | None = None


class RpcServer:
    """`serve` talks to one client; give it to `asyncio.start_unix_server`. `methods`: by path, `/package.Service/Method`."""

    def __init__(self, methods: Mapping[str, Method], idle_s: float = IDLE_S) -> None:
        self._methods = methods
        self._idle_s = idle_s
        self._clients: set[_Client] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either side ends the connection."""
        try:
            async with Supervisor("rpc-client") as supervisor:
                client = _Client(self._methods, reader, writer, supervisor, self._idle_s)
                self._add(client)
                try:
                    await client.run()
                except TimeoutError:
                    client.send_goaway(
                        ConnectionFault(ErrorCode.NO_ERROR, f"no call within {format_seconds(self._idle_s)}")
                    )
                except ConnectionFault as fault:
                    log.debug("a client's connection is closed", error=fault)
                    client.send_goaway(fault)
                finally:
                    self._clients.discard(client)
        except (OSError, asyncio.IncompleteReadError):
            return  # the client is gone
        finally:
            writer.close()
            asyncio.get_running_loop().call_later(CLOSE_S, writer.transport.abort)

    def _add(self, client: _Client) -> None:
        if len(self._clients) >= MAX_CONNECTIONS:
            oldest = min(self._clients, key=lambda known: known.used_at)
            self._clients.discard(oldest)
            log.debug("a connection is closed to make place for a new one", limit=MAX_CONNECTIONS)
            oldest.abort()
        self._clients.add(client)


class _Client:
    """The state of one connection. `used_at`: when it was opened or had its last call, in the event loop's time."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        supervisor: Supervisor,
        idle_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        self._idle_s = idle_s
        self._methods = methods
        self._reader = reader
        self._writer = writer
        self._supervisor = supervisor
        self._headers = HeaderReader(MAX_HEADER_BYTES)
        self._calls: dict[int, _Call] = {}
        self._room = START_WINDOW
        self._start_room = START_WINDOW
        self._roomier = asyncio.Event()
        self._block: tuple[int, int, bytearray] | None = None
        self._continuations = 0
        self._last_id = 0
        self._resets = 0
        self._empty_frames = 0

    async def run(self) -> None:
        """Until the client ends it, or has nothing to ask (TimeoutError). Raises ConnectionFault for a breach."""
        async with asyncio.timeout(PREFACE_DEADLINE_S):
            if await self._reader.readexactly(len(PREFACE)) != PREFACE:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "not the preface of HTTP/2")
        settings = _SETTING.pack(_MAX_STREAMS, MAX_CALLS) + _SETTING.pack(_MAX_HEADER_LIST, MAX_HEADER_BYTES)
        self._send(Kind.SETTINGS, 0, 0, settings)
        async with asyncio.timeout(self._idle_s) as idle:
            for number in itertools.count(1):
                if number % FRAMES_AT_ONCE == 0:  # frames that are here already are read without a pause
                    await asyncio.sleep(0)
                high, low, kind, flags, id = _HEAD.unpack(await self._reader.readexactly(9))
                size = high << 16 | low
                if size > FRAME_BYTES:
                    raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
                self._take(kind, flags, id & 0x7FFFFFFF, await self._reader.readexactly(size))
                await self._writer.drain()
                idle.reschedule(self.used_at + self._idle_s)

    def abort(self) -> None:
        """Close at once; `run` ends by it."""
        self._writer.transport.abort()

    def send_goaway(self, fault: ConnectionFault) -> None:
        """Say why the connection ends."""
        self._send(Kind.GOAWAY, 0, 0, _PAIR.pack(self._last_id, fault.code) + fault.problem.encode())

    def _send(self, kind: int, flags: int, id: int, body: bytes = b"") -> None:
        self._writer.write(frame(kind, flags, id, body))

    def _take(self, kind: int, flags: int, id: int, body: bytes) -> None:
        if self._block is not None and kind != Kind.CONTINUATION:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "headers were not ended")
        self._empty_frames = 0 if body and kind in (Kind.HEADERS, Kind.DATA) else self._empty_frames + 1
        if self._empty_frames > MAX_EMPTY_FRAMES:
            problem = f"{self._empty_frames} frames in a row without a part of a request"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, problem)
        match kind:
            case Kind.HEADERS:
                self._take_headers(flags, id, body)
            case Kind.CONTINUATION:
                self._take_more_headers(flags, id, body)
            case Kind.DATA:
                self._take_data(flags, id, body)
            case Kind.SETTINGS if not flags & ACK:
                self._take_settings(body)
            case Kind.WINDOW_UPDATE:
                self._take_window(id, body)
            case Kind.PING if len(body) != 8:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a ping of {len(body)} bytes")
            case Kind.PING if not flags & ACK:
                self._send(Kind.PING, ACK, 0, body)
            case Kind.RST_STREAM:
                self._take_reset(id)
            case _:
                return  # what a server need not know is passed over

    def _take_headers(self, flags: int, id: int, body: bytes) -> None:
        if flags & PADDED:
            body = body[1 : len(body) - body[0]] if body and body[0] < len(body) else b""
        if flags & PRIORITY:
            body = body[5:]
        self._block = (id, flags, bytearray(body))
        self._continuations = 0
        if flags & END_HEADERS:
            self._end_headers()

    def _take_reset(self, id: int) -> None:
        """A client may cancel calls, but not only cancel them: each has cost a task and a header block."""
        call = self._calls.pop(id, None)
        if call is not None and call.task is not None:
            call.task.cancel()
        self._resets += 1
        if self._resets > MAX_RESETS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"{MAX_RESETS} more calls were cancelled than answered")

    def _take_more_headers(self, flags: int, id: int, body: bytes) -> None:
        if self._block is None or self._block[0] != id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a continuation of nothing")
        self._block[2].extend(body)
        self._continuations += 1
        if len(self._block[2]) > MAX_HEADER_BYTES or self._continuations > _MAX_CONTINUATIONS:
            raise _headers_too_large()
        if flags & END_HEADERS:
            self._end_headers()

    def _end_headers(self) -> None:
        assert self._block is not None
        id, flags, block = self._block
        self._block = None
        try:
            fields = dict(self._headers.read(bytes(block)))
        except HeadersTooLarge as error:
            raise _headers_too_large() from error
        except HpackError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        if id == 0 or id % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a stream of the number {id}")
        if id <= self._last_id:  # trailers of a request, of which none are known, or of one that has ended
            return
        self._last_id = id
        self.used_at = self._loop.time()
        if len(self._calls) >= MAX_CALLS:
            self._send(Kind.RST_STREAM, 0, id, _NUMBER.pack(ErrorCode.REFUSED_STREAM))
            return
        self._calls[id] = _Call(fields.get(":path", ""), room=self._start_room)
        if flags & END_STREAM:
            self._asked(id)

    def _take_data(self, flags: int, id: int, body: bytes) -> None:
        if body:
            more = _NUMBER.pack(len(body))
            self._send(Kind.WINDOW_UPDATE, 0, 0, more)
        call = self._calls.get(id)
        if call is None or call.task is not None:
            return
        if body and not flags & END_STREAM:
            self._send(Kind.WINDOW_UPDATE, 0, id, _NUMBER.pack(len(body)))
        if flags & PADDED:
            body = body[1 : len(body) - body[0]] if body and body[0] < len(body) else b""
        call.body += body
        if len(call.body) > MAX_REQUEST_BYTES:
            self._calls.pop(id)
            self._resets += 1
            self._send(Kind.RST_STREAM, 0, id, _NUMBER.pack(ErrorCode.ENHANCE_YOUR_CALM))
        elif flags & END_STREAM:
            self._asked(id)

    def _take_settings(self, body: bytes) -> None:
        if len(body) % _SETTING.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"settings of {len(body)} bytes")
        if len(body) > _MAX_SETTINGS * _SETTING.size:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"more than {_MAX_SETTINGS} settings in a frame")
        for name, value in _SETTING.iter_unpack(body):
            if name == _INITIAL_WINDOW:
                for call in self._calls.values():
                    call.room += value - self._start_room
                self._start_room = value
        self._send(Kind.SETTINGS, ACK, 0)
        self._roomier.set()

    def _take_window(self, id: int, body: bytes) -> None:
        more = _NUMBER.unpack(body)[0] & 0x7FFFFFFF if len(body) == 4 else 0
        if id == 0:
            self._room += more
        elif (call := self._calls.get(id)) is not None:
            call.room += more
        self._roomier.set()

    def _asked(self, id: int) -> None:
        call = self._calls[id]
        work = self._answer(id, call)
        call.task = self._supervisor.start_child(f"rpc-call-{id}", work, on_crash=lambda _: self._give_up(id))

    def _give_up(self, id: int) -> None:
        """A bug in a method is one call without an answer."""
        self._calls.pop(id, None)
        self._send(Kind.RST_STREAM, 0, id, _NUMBER.pack(ErrorCode.INTERNAL_ERROR))

    async def _answer(self, id: int, call: _Call) -> None:
        try:
            method = self._methods.get(call.path)
            if method is None:
                raise RpcError(Code.UNIMPLEMENTED, f"unknown method {call.path}")
            answer = await method(_message(call.body))
        except RpcError as error:
            trailers = literal("grpc-status", str(int(error.code))) + literal("grpc-message", quote(error.message))
            if self._end(id):
                self._send(Kind.HEADERS, END_HEADERS | END_STREAM, id, _ANSWER + trailers)
            return
        self._send(Kind.HEADERS, END_HEADERS, id, _ANSWER)
        await self._send_body(id, call, framed(answer))
        if self._end(id):
            self._send(Kind.HEADERS, END_HEADERS | END_STREAM, id, literal("grpc-status", "0"))

    def _end(self, id: int) -> bool:
        """Forget a call that is being answered; whether the client still waits for it."""
        self._resets = max(0, self._resets - 1)
        self.used_at = self._loop.time()
        return self._calls.pop(id, None) is not None

    async def _send_body(self, id: int, call: _Call, body: bytes) -> None:
        """As much at a time as the client takes."""
        at = 0
        while at < len(body) and id in self._calls:
            size = min(len(body) - at, self._room, call.room, FRAME_BYTES)
            if size <= 0:
                self._roomier.clear()
                await self._roomier.wait()
                continue
            self._send(Kind.DATA, 0, id, body[at : at + size])
            at += size
            self._room -= size
            call.room -= size
            await self._writer.drain()


def _headers_too_large() -> ConnectionFault:
    return ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"request headers larger than {MAX_HEADER_BYTES} bytes")


def _message(body: bytearray) -> bytes:
    """The one message of a request. Raises RpcError."""
    if len(body) < _LENGTH.size:
        raise RpcError(Code.INTERNAL, "the request has no message")
    packed, size = _LENGTH.unpack_from(body)
    if packed:
        raise RpcError(Code.UNIMPLEMENTED, "compressed messages are not taken")
    if size != len(body) - _LENGTH.size:
        raise RpcError(Code.INTERNAL, "the request has not one message")
    return bytes(body[_LENGTH.size :])
