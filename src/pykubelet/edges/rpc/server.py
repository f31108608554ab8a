"""A gRPC server for unary calls on a unix socket: what plugins and monitors on the machine ask the agent.

Owns: the server's side of a connection, bounded in the size of requests and the number of calls at once. Does not compress,
stream, or push. What a method does is up to its `Method`. Source: RFC 9113, "gRPC over HTTP2".
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

from msgspec import Struct

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import field
from pykubelet.edges.rpc.hpack import HeaderReader, HpackError, indexed, literal
from pykubelet.edges.rpc.http2 import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    PADDED,
    PREFACE,
    PRIORITY,
    ErrorCode,
    Kind,
    frame,
)
from pykubelet.edges.rpc.status import Code, RpcError, framed

log = Log("rpc")
#: Takes the request message, gives the answer; raises RpcError for an end other than OK.
Method = Callable[[bytes], Awaitable[bytes]]
MAX_REQUEST_BYTES = 4 << 20
MAX_HEADER_BYTES = 64 << 10
MAX_CALLS = 100
START_WINDOW = 65535
PREFACE_DEADLINE_S = 10.0
_MAX_STREAMS, _INITIAL_WINDOW = 3, 4
_HEAD = struct.Struct(">BHBBL")
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")
_LENGTH = struct.Struct(">BL")
_ANSWER = indexed(":status", "200") + literal("content-type", "application/grpc")


class _Fault(Exception):
    """The client breaks the protocol: the connection ends."""


class _Call(Struct):
    path: str = ""
    body: bytearray = field(default_factory=bytearray)
    room: int = START_WINDOW
    is_asked: bool = False


class RpcServer:
    """`serve` talks to one client; give it to `asyncio.start_unix_server`. `methods`: by path, `/package.Service/Method`."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = methods

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either side ends the connection."""
        try:
            async with Supervisor("rpc-client") as supervisor:
                await _Client(self._methods, reader, writer, supervisor).run()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return  # the client is gone
        except (_Fault, HpackError) as error:
            log.debug("a client does not speak HTTP/2", error=error)
        finally:
            writer.close()


class _Client:
    """The state of one connection."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        supervisor: Supervisor,
    ) -> None:
        self._methods = methods
        self._reader = reader
        self._writer = writer
        self._supervisor = supervisor
        self._headers = HeaderReader()
        self._calls: dict[int, _Call] = {}
        self._room = START_WINDOW
        self._start_room = START_WINDOW
        self._roomier = asyncio.Event()
        self._block: tuple[int, int, bytearray] | None = None

    async def run(self) -> None:
        async with asyncio.timeout(PREFACE_DEADLINE_S):
            if await self._reader.readexactly(len(PREFACE)) != PREFACE:
                raise _Fault("not the preface of HTTP/2")
        settings = _SETTING.pack(_MAX_STREAMS, MAX_CALLS)
        self._send(Kind.SETTINGS, 0, 0, settings)
        while True:
            high, low, kind, flags, id = _HEAD.unpack(await self._reader.readexactly(9))
            size = high << 16 | low
            if size > FRAME_BYTES:
                raise _Fault(f"a frame of {size} bytes")
            self._take(kind, flags, id & 0x7FFFFFFF, await self._reader.readexactly(size))
            await self._writer.drain()

    def _send(self, kind: int, flags: int, id: int, body: bytes = b"") -> None:
        self._writer.write(frame(kind, flags, id, body))

    def _take(self, kind: int, flags: int, id: int, body: bytes) -> None:
        if self._block is not None and kind != Kind.CONTINUATION:
            raise _Fault("headers were not ended")
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
            case Kind.PING if not flags & ACK:
                self._send(Kind.PING, ACK, 0, body)
            case Kind.RST_STREAM:
                self._calls.pop(id, None)
            case _:
                return  # what a server need not know is passed over

    def _take_headers(self, flags: int, id: int, body: bytes) -> None:
        if flags & PADDED:
            body = body[1 : len(body) - body[0]] if body and body[0] < len(body) else b""
        if flags & PRIORITY:
            body = body[5:]
        self._block = (id, flags, bytearray(body))
        if flags & END_HEADERS:
            self._end_headers()

    def _take_more_headers(self, flags: int, id: int, body: bytes) -> None:
        if self._block is None or self._block[0] != id:
            raise _Fault("a continuation of nothing")
        self._block[2].extend(body)
        if len(self._block[2]) > MAX_HEADER_BYTES:
            raise _Fault("headers without end")
        if flags & END_HEADERS:
            self._end_headers()

    def _end_headers(self) -> None:
        assert self._block is not None
        id, flags, block = self._block
        self._block = None
        fields = dict(self._headers.read(bytes(block)))
        if id in self._calls:  # trailers of a request: none are known
            return
        if id == 0 or id % 2 == 0:
            raise _Fault(f"a stream of the number {id}")
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
        if call is None or call.is_asked:
            return
        if body and not flags & END_STREAM:
            self._send(Kind.WINDOW_UPDATE, 0, id, _NUMBER.pack(len(body)))
        if flags & PADDED:
            body = body[1 : len(body) - body[0]] if body and body[0] < len(body) else b""
        call.body += body
        if len(call.body) > MAX_REQUEST_BYTES:
            self._calls.pop(id)
            self._send(Kind.RST_STREAM, 0, id, _NUMBER.pack(ErrorCode.ENHANCE_YOUR_CALM))
        elif flags & END_STREAM:
            self._asked(id)

    def _take_settings(self, body: bytes) -> None:
        for name, value in _SETTING.iter_unpack(body[: len(body) // 6 * 6]):
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
        self._calls[id].is_asked = True
        self._supervisor.start_child(f"rpc-call-{id}", self._answer(id), on_crash=lambda _: self._give_up(id))

    def _give_up(self, id: int) -> None:
        """A bug in a method is one call without an answer."""
        self._calls.pop(id, None)
        self._send(Kind.RST_STREAM, 0, id, _NUMBER.pack(ErrorCode.INTERNAL_ERROR))

    async def _answer(self, id: int) -> None:
        call = self._calls[id]
        try:
            method = self._methods.get(call.path)
            if method is None:
                raise RpcError(Code.UNIMPLEMENTED, f"unknown method {call.path}")
            answer = await method(_message(call.body))
        except RpcError as error:
            trailers = literal("grpc-status", str(int(error.code))) + literal("grpc-message", quote(error.message))
            if self._calls.pop(id, None) is not None:
                self._send(Kind.HEADERS, END_HEADERS | END_STREAM, id, _ANSWER + trailers)
            return
        self._send(Kind.HEADERS, END_HEADERS, id, _ANSWER)
        await self._send_body(id, call, framed(answer))
        if self._calls.pop(id, None) is not None:
            self._send(Kind.HEADERS, END_HEADERS | END_STREAM, id, literal("grpc-status", "0"))

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
