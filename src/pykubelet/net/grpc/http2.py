"""The client side of an HTTP/2 connection: takes bytes from the peer, returns changed streams, and collects bytes to send.

Owns: frames, streams, flow control in both directions, and the detection of protocol violations. Does no I/O and is not
specific to gRPC: `channel.py` adds both. Not implemented, because gRPC calls do not need them: pushed streams, priorities,
CONNECT, trailers of requests.

Source: RFC 9113.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from h2.errors import ErrorCodes

from pykubelet.net.grpc.hpack import HeaderReader, Headers, HeadersTooLarge, HpackError
from pykubelet.net.grpc.limits import Http2Limits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_BYTES = 16384
#: The most pings that wait for a later answer.
MOST_PINGS = 16
_START_WINDOW = 65535
_MAX_WINDOW = 2**31 - 1
_MAX_CONTINUATIONS = 64
_MAX_SETTINGS = 32
_LAST_STREAM = 2**31 - 1

_HEAD = struct.Struct(">BHBBL")
_PAIR = struct.Struct(">LL")
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20


class Kind(IntEnum):
    """Frame types."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


# Plain numbers, because looking up an enumeration's member would take longer than the rest of the work for most frames.
_DATA, _HEADERS, _WINDOW_UPDATE, _PING = (
    int(kind) for kind in (Kind.DATA, Kind.HEADERS, Kind.WINDOW_UPDATE, Kind.PING)
)
_ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME, _MAX_HEADER_LIST = 2, 3, 4, 5, 6

#: The problem of a connection to a server that does not speak HTTP/2.
HTTP_1 = "the server speaks HTTP/1.1"


class ConnectionFault(Exception):
    """The peer violated the protocol, and the connection must end. The output contains a GOAWAY with the reason."""

    def __init__(self, code: ErrorCodes, problem: str) -> None:
        super().__init__(code, problem)
        self.code = code
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.code.name}: {self.problem}"


class Http2Stream:
    """One request and the part of its answer that has arrived.

    `headers`, `trailers`: empty until they arrive; an answer may have trailers alone. `body`: the chunks that were not read
    yet. `is_ended`: nothing more arrives. `reset`: the code with which the stream was ended early.
    """

    __slots__ = ("body", "headers", "id", "is_ended", "reset", "trailers", "unread", "unsent", "window")

    def __init__(self, id: int, unsent: memoryview, window: int) -> None:
        self.id = id
        self.headers: Headers = ()
        self.trailers: Headers = ()
        self.body: list[bytes] = []
        self.is_ended = False
        self.reset: int | None = None
        self.unsent = unsent
        self.window = window
        self.unread = 0


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """Encode one frame."""
    return _HEAD.pack(len(body) >> 16, len(body) & 0xFFFF, kind, flags, stream) + body


class Http2Connection:
    """The state of a connection. After each call of a method, send `take_output()`.

    `has_settings`: the peer has sent its SETTINGS. `pings`: pings of the peer that wait for `answer_pings`. `answers`: the number
    of answered SETTINGS and PING frames; the caller sets it to 0 when the peer has read the answers.
    """

    def __init__(self, limits: Http2Limits) -> None:
        given = ((_ENABLE_PUSH, 0), (_INITIAL_WINDOW, limits.stream_window), (_MAX_HEADER_LIST, limits.header_list))
        settings = b"".join(_SETTING.pack(*setting) for setting in given)
        self._out = [PREFACE, frame(Kind.SETTINGS, 0, 0, settings)]
        if (more := limits.connection_window - _START_WINDOW) > 0:
            self._out.append(frame(Kind.WINDOW_UPDATE, 0, 0, _NUMBER.pack(more)))
        self._limits = limits
        self._max_empty_frames = limits.empty_frames
        self._stream_window = limits.stream_window
        self._more_at = limits.connection_window // 2
        self._steps_left = limits.steps
        self._headers_left = limits.all_headers
        self._empty_frames = 0
        self._continuations = 0
        self._streams: dict[int, Http2Stream] = {}
        self._blocked: dict[int, Http2Stream] = {}
        self._next_id = 1
        self._send_window = _START_WINDOW
        self._stream_send_window = _START_WINDOW
        self._frame_bytes = FRAME_BYTES
        self._max_streams = _LAST_STREAM
        self._unread = 0
        self._rest = b""
        self._reader = HeaderReader(limits.header_list)
        self._headers: tuple[int, int, bytearray] | None = None
        self._changed_streams: dict[int, Http2Stream] = {}
        self._is_closing = False
        self.has_settings = False
        self.pings: list[bytes] = []
        self.answers = 0

    @property
    def is_usable(self) -> bool:
        """Whether new requests may be sent, now or once `has_free_stream`."""
        return not self._is_closing and self._next_id < _LAST_STREAM

    @property
    def has_free_stream(self) -> bool:
        """Whether the peer accepts one more stream now."""
        return len(self._streams) < self._max_streams

    def take_output(self) -> bytes:
        """Return the bytes to send, and clear them."""
        out = self._out
        self._out = []
        return b"".join(out)

    # Sending

    def answer_pings(self) -> None:
        """Answer all pings that wait."""
        self._out.extend(frame(Kind.PING, ACK, 0, body) for body in self.pings)
        self.pings.clear()

    def ping(self) -> None:
        """Send a ping. Anything that the peer sends afterwards shows that it is alive."""
        self._out.append(frame(Kind.PING, 0, 0, bytes(8)))

    def request(self, headers: bytes, body: bytes) -> Http2Stream:
        """Send a whole request. `headers` is a header block of at most one frame."""
        id = self._next_id
        self._next_id += 2
        stream = self._streams[id] = Http2Stream(id, memoryview(body), self._stream_send_window)
        self._out.append(frame(_HEADERS, END_HEADERS, id, headers))
        self._send_body(stream)
        return stream

    def cancel(self, stream: Http2Stream) -> None:
        """Reset a stream. It is not reported as changed any more."""
        if self._streams.pop(stream.id, None) is not None:
            self._reset(stream.id, ErrorCodes.CANCEL)
        self._blocked.pop(stream.id, None)

    def reopen(self, stream: Http2Stream) -> None:
        """Enlarge the window of a long stream whose whole body was read, so that the peer may send more."""
        if stream.unread > self._stream_window // 2 and not stream.is_ended:
            self._out.append(frame(Kind.WINDOW_UPDATE, 0, stream.id, _NUMBER.pack(stream.unread)))
            stream.unread = 0

    def _send_body(self, stream: Http2Stream) -> None:
        while True:
            left = len(stream.unsent)
            size = min(left, self._send_window, stream.window, self._frame_bytes)
            if left and size <= 0:
                self._blocked[stream.id] = stream
                return
            self._send_window -= size
            stream.window -= size
            part, stream.unsent = stream.unsent[:size], stream.unsent[size:]
            flags = 0 if size < left else END_STREAM
            self._out.append(_HEAD.pack(size >> 16, size & 0xFFFF, _DATA, flags, stream.id))
            self._out.append(bytes(part))
            if flags:
                self._blocked.pop(stream.id, None)
                return

    def _send_blocked(self) -> None:
        for stream in list(self._blocked.values()):
            self._send_body(stream)

    def _reset(self, id: int, code: ErrorCodes) -> None:
        self._out.append(frame(Kind.RST_STREAM, 0, id, _NUMBER.pack(code)))

    # Receiving

    def receive(self, data: bytes) -> list[Http2Stream]:
        """Process bytes from the peer, and return the changed streams. Raises ConnectionFault."""
        try:
            self._steps_left -= 1
            self._take_frames(self._rest + data if self._rest else data)
        except ConnectionFault as fault:
            self._is_closing = True
            last_words = _PAIR.pack(0, fault.code) + fault.problem.encode()
            self._out.append(frame(Kind.GOAWAY, 0, 0, last_words))
            raise
        if not self._changed_streams:
            return []
        changed = list(self._changed_streams.values())
        self._changed_streams.clear()
        return changed

    def _take_frames(self, data: bytes) -> None:
        position, end = 0, len(data)
        while end - position >= 9:
            high, low, kind, flags, id = _HEAD.unpack_from(data, position)
            size = high << 16 | low
            if size > FRAME_BYTES:
                if not self.has_settings and data.startswith(b"HTTP/"):
                    raise ConnectionFault(ErrorCodes.HTTP_1_1_REQUIRED, HTTP_1)
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            start, after = position + 9, position + 9 + size
            if after > end:
                break
            position = after
            self._steps_left -= 1
            if size and kind <= _HEADERS:
                self._empty_frames = 0
            else:
                self._empty_frames += 1
            if self._empty_frames > self._max_empty_frames or self._steps_left < 0:
                raise self._too_many()
            self._take(kind, flags, id & _LAST_STREAM, data[start:after])
        self._rest = data[position:]
        if self._steps_left < 0:
            raise self._too_many()

    def _too_many(self) -> ConnectionFault:
        problem = f"{self._empty_frames} frames in a row without headers or data"
        if self._steps_left < 0:
            problem = f"the server has sent more than {self._limits.steps} frames or pieces of frames"
        return ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, problem)

    def _take(self, kind: int, flags: int, id: int, body: bytes) -> None:
        if self._headers is not None and kind != Kind.CONTINUATION:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "headers were not ended")
        if kind == _DATA:
            self._take_data(flags, id, body)
        elif kind == _HEADERS:
            self._take_headers(flags, id, body)
        elif kind == _WINDOW_UPDATE:
            self._take_window(id, body)
        elif kind == _PING:
            _check_size(len(body) == 8, kind)
            if not flags & ACK:
                self.answers += 1
                self.pings.append(body)
                if len(self.pings) > MOST_PINGS:
                    self.answer_pings()
        elif kind == Kind.CONTINUATION:
            self._take_more_headers(flags, id, body)
        elif kind == Kind.SETTINGS:
            self._take_settings(flags, body)
        elif kind == Kind.RST_STREAM:
            _check_size(len(body) == 4, kind)
            self._end(id, reset=_NUMBER.unpack(body)[0])
        elif kind == Kind.GOAWAY:
            self._take_goaway(body)
        elif kind == Kind.PUSH_PROMISE:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "a pushed stream, which was refused")

    def _take_data(self, flags: int, id: int, body: bytes) -> None:
        size = len(body)
        self._unread += size
        if self._unread > self._more_at:
            self._out.append(frame(Kind.WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._unread)))
            self._unread = 0
        stream = self._streams.get(id)
        if stream is None:
            self._check_known(id)
            return
        if not stream.headers:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "data before headers")
        stream.unread += size
        if stream.unread > self._stream_window:
            raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, "more data on a stream than was allowed")
        if flags & PADDED:
            body = _unpadded(body)
        if body:
            stream.body.append(body)
            self._changed_streams[id] = stream
        if flags & END_STREAM:
            self._end(id)

    def _take_headers(self, flags: int, id: int, body: bytes) -> None:
        if flags & PADDED:
            body = _unpadded(body)
        if flags & PRIORITY:
            body = body[5:]
        self._check_known(id)
        self._count_headers(len(body), len(body))
        if flags & END_HEADERS:
            self._end_headers(id, flags, body)
        else:
            self._headers = (id, flags, bytearray(body))
            self._continuations = 0

    def _take_more_headers(self, flags: int, id: int, body: bytes) -> None:
        if self._headers is None or self._headers[0] != id:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "a continuation of nothing")
        _, first_flags, block = self._headers
        self._continuations += 1
        if self._continuations > _MAX_CONTINUATIONS:
            raise _too_large(self._limits.header_list)
        self._count_headers(len(block) + len(body), len(body))
        block += body
        if flags & END_HEADERS:
            self._headers = None
            self._end_headers(id, first_flags, bytes(block))

    def _count_headers(self, block: int, part: int) -> None:
        """Check the limits of headers. `block`: bytes of the header block so far; `part`: those that have just arrived."""
        if block > self._limits.header_list:
            raise _too_large(self._limits.header_list)
        self._headers_left -= part
        if self._headers_left < 0:
            raise _too_large(self._limits.all_headers)

    def _end_headers(self, id: int, flags: int, block: bytes) -> None:
        try:
            headers = self._reader.read(block)
        except HeadersTooLarge as error:
            raise _too_large(self._limits.header_list) from error
        except HpackError as error:
            raise ConnectionFault(ErrorCodes.COMPRESSION_ERROR, str(error)) from error
        stream = self._streams.get(id)
        if stream is None:
            return
        if flags & END_STREAM:
            stream.trailers = headers
            self._end(id)
        elif not stream.headers or stream.headers[0][1].startswith("1"):  # the status of an interim answer
            stream.headers = headers
        else:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "headers in the middle of a stream")

    def _take_window(self, id: int, body: bytes) -> None:
        _check_size(len(body) == 4, _WINDOW_UPDATE)
        more = _NUMBER.unpack(body)[0] & _MAX_WINDOW
        stream = self._streams.get(id)
        if id == 0:
            self._send_window += more
        elif stream is not None:
            stream.window += more
        window = self._send_window if id == 0 else stream.window if stream is not None else 0
        if more == 0 or window > _MAX_WINDOW:
            raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, "a window of an impossible size")
        if self._blocked:
            self._send_blocked()

    def _take_settings(self, flags: int, body: bytes) -> None:
        if flags & ACK:
            return
        self.answers += 1
        _check_size(len(body) % 6 == 0, Kind.SETTINGS)
        if len(body) > _MAX_SETTINGS * _SETTING.size:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, f"more than {_MAX_SETTINGS} settings in a frame")
        self.has_settings = True
        for name, value in _SETTING.iter_unpack(body):
            if name == _MAX_STREAMS:
                self._max_streams = value
            elif name == _INITIAL_WINDOW:
                if value > _MAX_WINDOW:
                    raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, "a window of an impossible size")
                for stream in self._streams.values():
                    stream.window += value - self._stream_send_window
                self._stream_send_window = value
            elif name == _MAX_FRAME:
                self._frame_bytes = max(FRAME_BYTES, value)
        self._out.append(frame(Kind.SETTINGS, ACK, 0))
        self._send_blocked()

    def _take_goaway(self, body: bytes) -> None:
        _check_size(len(body) >= 8, Kind.GOAWAY)
        last, _ = _PAIR.unpack_from(body)
        self._is_closing = True
        for id in [id for id in self._streams if id > last & _LAST_STREAM]:
            self._end(id, reset=ErrorCodes.REFUSED_STREAM)

    def _end(self, id: int, reset: int | None = None) -> None:
        """End a stream that the peer has ended. It does not need the rest of the request either."""
        stream = self._streams.pop(id, None)
        if stream is None:
            self._check_known(id)
            return
        stream.is_ended, stream.reset = True, reset
        if self._blocked.pop(id, None) is not None and reset is None:
            self._reset(id, ErrorCodes.CANCEL)
        self._changed_streams[id] = stream

    def _check_known(self, id: int) -> None:
        """Raise ConnectionFault for a stream that never existed. Late frames for an ended stream are ignored."""
        if id == 0 or id % 2 == 0 or id >= self._next_id:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"a frame of stream {id}, which was never opened")


def _too_large(limit: int) -> ConnectionFault:
    return ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, f"response headers larger than {limit} bytes")


def _check_size(is_right: bool, kind: int) -> None:
    if not is_right:
        raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, f"a frame of kind {Kind(kind).name} has a wrong size")


def _unpadded(body: bytes) -> bytes:
    if not body or body[0] >= len(body):
        raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "a frame that is all padding")
    return body[1 : len(body) - body[0]]
