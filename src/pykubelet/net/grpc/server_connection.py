"""One connection of the gRPC server, on the library `h2`.

Owns: the calls of one client, and all limits for it: the size of frames and headers, concurrent calls, resets, settings, and
frames that are not part of a call. If a client exceeds one, its connection is closed with GOAWAY and the reason. `h2`
implements the protocol. Frames are counted, and their sizes checked, before `h2` gets them, because it buffers frames of any
size and has no limits against floods. Source: RFC 9113, "gRPC over HTTP2".
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from urllib.parse import quote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from msgspec import Struct

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import field
from pykubelet.net.grpc.http2 import FRAME_BYTES, PREFACE, ConnectionFault, Kind
from pykubelet.net.grpc.services import RpcLimits, Services
from pykubelet.net.grpc.status import Code, RpcError

MAX_HEADER_BYTES = 8 << 10
#: Characters of an error's message.
MAX_ERROR_TEXT = 4096
#: The most calls that a client may cancel beyond the number of answered calls.
MAX_RESETS = 100
#: The most consecutive frames without a part of a request.
MAX_EMPTY_FRAMES = 10_000
#: The most settings in a frame, because `h2` stores all of them, even unknown ones.
MAX_SETTINGS = 32
#: After this many frames, other tasks of the event loop may run.
FRAMES_AT_ONCE = 100
PREFACE_DEADLINE_S = 10.0
_UNLIMITED = 2**31 - 1
_HEAD = struct.Struct(">BHBBL")
_LENGTH = struct.Struct(">BL")
_ANSWER = ((":status", "200"), ("content-type", "application/grpc"))
_OK = (("grpc-status", "0"),)


class _Http(H2Connection):
    """`h2` with other values for limits that are constants of its class."""

    DEFAULT_MAX_HEADER_LIST_SIZE = MAX_HEADER_BYTES
    MAX_CLOSED_STREAMS = 1000


class _ClientGone(Exception):
    """The client has closed the connection. An OSError of a method is none: it is a bug."""


class _Call(Struct):
    path: str
    body: bytearray = field(default_factory=bytearray)
    has_begun: bool = False
    task: asyncio.Task[None] | None = None


class ServerConnection:
    """One connection. `used_at`: the event loop time at which it was opened or had its last call."""

    def __init__(
        self,
        services: Services,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        supervisor: Supervisor,
        limits: RpcLimits,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        self._limits = limits
        self._services = services
        self._reader = reader
        self._writer = writer
        self._supervisor = supervisor
        # not validated, because gRPC clients omit or spell some headers differently
        config = H2Configuration(client_side=False, header_encoding=False, validate_inbound_headers=False)
        self._http = _Http(config)
        self._calls: dict[int, _Call] = {}
        self._window_opened = asyncio.Event()
        self._header_bytes = 0
        self._resets = 0
        self._empty_frames = 0
        self._idle: asyncio.Timeout | None = None
        self._at_work = 0

    async def run(self) -> None:
        """Serve the connection until the client closes it. Raises TimeoutError if it is idle for too long, and ConnectionFault
        for a violation."""
        async with asyncio.timeout(PREFACE_DEADLINE_S):
            preface = await self._reader.readexactly(len(PREFACE))
        if preface != PREFACE:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "not the preface of HTTP/2")
        self._http.receive_data(preface)
        self._greet()
        async with asyncio.timeout(self._limits.idle_s) as self._idle:
            try:
                await self._read_frames()
            finally:
                self._idle = None

    async def _read_frames(self) -> None:
        for number in itertools.count(1):
            if number % FRAMES_AT_ONCE == 0:  # reading frames that have arrived already never yields to other tasks
                await asyncio.sleep(0)
            head = await self._reader.readexactly(_HEAD.size)
            high, low, kind, _, _ = _HEAD.unpack(head)
            size = high << 16 | low
            self._check_frame(kind, size)
            self._take(kind, head + await self._reader.readexactly(size))
            await self._writer.drain()
            self._reschedule()

    def _reschedule(self) -> None:
        """Set the end of the connection: idle time after the last call, and not while a method is at work."""
        if self._idle is not None and not self._idle.expired():
            self._idle.reschedule(None if self._at_work else self.used_at + self._limits.idle_s)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """A method is at work. What it has answered is sent outside, so that a client has to read it in time."""
        self._at_work += 1
        self._reschedule()
        try:
            yield
        finally:
            self._at_work -= 1
            self.used_at = self._loop.time()
            self._reschedule()

    @property
    def is_at_work(self) -> bool:
        """Whether a method is at work, or a stream waits for its next message."""
        return self._at_work > 0

    def abort(self) -> None:
        """Close at once, which ends `run`."""
        self._writer.transport.abort()

    def send_goaway(self, fault: ConnectionFault) -> None:
        """Send GOAWAY with the reason why the connection ends."""
        self._http.clear_outbound_data_buffer()  # for a violation, `h2` has written a GOAWAY without the reason
        self._http.close_connection(int(fault.code), fault.problem.encode())
        self._flush()

    def _greet(self) -> None:
        """Announce the limits. For `h2`, calls beyond the announced number are no violation; each of them is refused."""
        limits = {SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES}
        announced = limits | {SettingCodes.MAX_CONCURRENT_STREAMS: self._limits.calls}
        self._http.local_settings = Settings(client=False, initial_values=announced)
        self._http.initiate_connection()
        unlimited = limits | {SettingCodes.MAX_CONCURRENT_STREAMS: _UNLIMITED}
        self._http.local_settings = Settings(client=False, initial_values=unlimited)
        self._flush()

    def _flush(self) -> None:
        self._writer.write(self._http.data_to_send())

    # Receiving

    def _check_frame(self, kind: int, size: int) -> None:
        """Check the limits of a frame before its payload is read. Raises ConnectionFault."""
        if size > FRAME_BYTES:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
        self._empty_frames = 0 if size and kind in (Kind.HEADERS, Kind.DATA) else self._empty_frames + 1
        if self._empty_frames > MAX_EMPTY_FRAMES:
            problem = f"{self._empty_frames} frames in a row without a part of a request"
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, problem)
        self._header_bytes = size + (self._header_bytes if kind == Kind.CONTINUATION else 0)
        if kind in (Kind.HEADERS, Kind.CONTINUATION) and self._header_bytes > MAX_HEADER_BYTES:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, f"request headers larger than {MAX_HEADER_BYTES} bytes")
        if kind == Kind.RST_STREAM:
            self._count_reset()

    def _count_reset(self) -> None:
        """Count a cancelled call. Too many are a violation, because each has cost a task and a header block."""
        self._resets += 1
        if self._resets > MAX_RESETS:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, f"{MAX_RESETS} more calls were cancelled than answered")

    def _take(self, kind: int, frame: bytes) -> None:
        if kind == Kind.GOAWAY:  # not passed to `h2`, which would not allow answering the calls in progress
            return
        try:
            events = self._http.receive_data(frame)
            for event in events:
                self._take_event(event)
        except ProtocolError as error:
            raise ConnectionFault(ErrorCodes(error.error_code), f"{type(error).__name__}: {error}") from error
        self._flush()

    def _take_event(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._begin(event.stream_id, dict(event.headers).get(b":path", b"").decode("latin-1"))
            case DataReceived():
                self._take_data(event)
            case StreamEnded() if event.stream_id in self._calls:
                self._start(event.stream_id)
            case StreamReset():
                call = self._calls.pop(event.stream_id, None)
                if call is not None and call.has_begun:
                    self._resets -= 1  # the usual end of a stream
                if call is not None and call.task is not None:
                    call.task.cancel()
            case WindowUpdated():
                self._window_opened.set()
            case RemoteSettingsChanged():
                if len(self._http.remote_settings) > MAX_SETTINGS:
                    raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, f"more than {MAX_SETTINGS} settings")
                self._window_opened.set()
            case _:
                return  # acknowledgments, pings (which `h2` has answered), priorities, trailers

    def _begin(self, id: int, path: str) -> None:
        self.used_at = self._loop.time()
        if len(self._calls) >= self._limits.calls:
            self._http.reset_stream(id, ErrorCodes.REFUSED_STREAM)
        else:
            self._calls[id] = _Call(path)

    def _take_data(self, event: DataReceived) -> None:
        self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        call = self._calls.get(event.stream_id)
        if call is None:
            return
        call.body += event.data
        if len(call.body) > self._limits.request:
            self._calls.pop(event.stream_id)
            self._count_reset()
            self._http.reset_stream(event.stream_id, ErrorCodes.ENHANCE_YOUR_CALM)

    # Answering

    def _start(self, id: int) -> None:
        call = self._calls[id]
        work = self._answer(id, call)
        call.task = self._supervisor.start_child(f"rpc-call-{id}", work, on_crash=lambda _: self._give_up(id))

    def _give_up(self, id: int) -> None:
        """Drop a call after a bug in its method. It gets no answer."""
        if self._calls.pop(id, None) is not None:
            self._http.reset_stream(id, ErrorCodes.INTERNAL_ERROR)
            self._flush()

    async def _answer(self, id: int, call: _Call) -> None:
        try:
            message = _message(call.body)
            if (stream := self._services.streams.get(call.path)) is not None:
                await self._answer_stream(id, stream(message))
            elif (method := self._services.methods.get(call.path)) is not None:
                with self._working():
                    answer = await method(message)
                self._http.send_headers(id, _ANSWER)
                await self._send_message(id, answer)
            else:
                raise RpcError(Code.UNIMPLEMENTED, self._services.refusal(call.path))
        except RpcError as error:
            head = () if call.has_begun else _ANSWER
            trailers = (("grpc-status", str(int(error.code))), ("grpc-message", quote(_as_text(error.message))))
            self._send_last(id, (*head, *trailers))
            return
        except _ClientGone:
            return  # `run` ends
        self._send_last(id, _OK)

    async def _answer_stream(self, id: int, stream: AsyncGenerator[bytes, None]) -> None:
        """Send messages as they come. The head of the answer is sent at once, so that the client learns that the stream is open."""
        self._calls[id].has_begun = True
        self._http.send_headers(id, _ANSWER)
        self._flush()
        async with aclosing(stream) as messages:
            while True:
                with self._working():
                    message = await anext(messages, None)
                if message is None:
                    return
                try:
                    async with asyncio.timeout(self._limits.stalled_s):
                        await self._send_message(id, message)
                        await self._send_now()
                except TimeoutError:
                    await self._end_stalled(id, messages)

    async def _end_stalled(self, id: int, stream: AsyncGenerator[bytes, None]) -> None:
        """End a stream whose client takes nothing. Raises the RpcError in the stream first, so that it learns why it ends."""
        if self._calls.pop(id, None) is not None:  # trailers could not follow a message of which a part is sent
            self._http.reset_stream(id, ErrorCodes.ENHANCE_YOUR_CALM)  # RESOURCE_EXHAUSTED to clients
            self._flush()
        await stream.athrow(RpcError(Code.RESOURCE_EXHAUSTED, "the client does not take messages"))

    def _send_last(self, id: int, headers: tuple[tuple[str, str], ...]) -> None:
        """Send the end of an answer, if the client still waits for it."""
        self._resets = max(0, self._resets - 1)
        self.used_at = self._loop.time()
        if self._calls.pop(id, None) is not None:
            self._http.send_headers(id, headers, end_stream=True)
            self._flush()

    async def _send_message(self, id: int, message: bytes) -> None:
        """Send a message in parts, as the client's window allows. It is not copied as a whole, because several clients may get the same."""
        head, rest = _LENGTH.pack(0, len(message)), memoryview(message)
        while (head or rest) and id in self._calls:
            size = min(len(head) + len(rest), self._http.local_flow_control_window(id), FRAME_BYTES)
            if size <= 0:
                self._flush()
                self._window_opened.clear()
                await self._window_opened.wait()
                continue
            self._http.send_data(id, head[:size] + rest[: max(0, size - len(head))])
            rest = rest[max(0, size - len(head)) :]
            head = head[size:]
            if rest:
                await self._send_now()

    async def _send_now(self) -> None:
        """Send what is ready, as fast as the client takes it. Raises _ClientGone."""
        self._flush()
        try:
            await self._writer.drain()
        except OSError as error:
            raise _ClientGone from error


def _as_text(message: str) -> str:
    """The message of an error without what cannot be sent: names of files may have bytes that are no UTF-8."""
    return message.encode("utf-8", "backslashreplace").decode()[:MAX_ERROR_TEXT]


def _message(body: bytearray) -> bytes:
    """The only message of a request. Raises RpcError."""
    if len(body) < _LENGTH.size:
        raise RpcError(Code.INTERNAL, "the request has no message")
    packed, size = _LENGTH.unpack_from(body)
    if packed:
        raise RpcError(Code.UNIMPLEMENTED, "compressed messages are not taken")
    if size != len(body) - _LENGTH.size:
        raise RpcError(Code.INTERNAL, "the request has not one message")
    return bytes(body[_LENGTH.size :])
