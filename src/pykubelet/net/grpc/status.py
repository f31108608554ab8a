"""The status of calls, and the header fields of gRPC. Pure.

Source: "gRPC over HTTP2" (status codes, and their replacement by HTTP statuses), and the gRPC status code page.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from urllib.parse import unquote

from h2.errors import ErrorCodes

from pykubelet.base.kit.text import parse_decimal
from pykubelet.net.grpc.hpack import Headers, indexed, literal
from pykubelet.net.grpc.http2 import Http2Stream

#: The most characters of the server's message about a failed call, in encoded form; the rest is cut off, because messages are
#: kept in statuses, Events and logs.
MAX_STATUS_MESSAGE = 8 << 10
_SHOWN_STATUS = 32
_MAX_TIMEOUT = 99_999_999
_LENGTH = struct.Struct(">BL")
_PREFIX = _LENGTH.size


class Code(IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @property
    def words(self) -> str:
        """The code as Go prints it, such as `DeadlineExceeded`."""
        return "OK" if self is Code.OK else self.name.title().replace("_", "")


_SUCCESS = Code.OK, ""


class RpcError(Exception):
    """A call failed, with the server's status, or one of the client if there was none. As text, it is that of gRPC in Go:
    `rpc error: code = Unavailable desc = ...`.

    `is_unprocessed`: the server has not processed the request.
    """

    def __init__(self, code: Code, message: str, is_unprocessed: bool = False) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.is_unprocessed = is_unprocessed

    def __str__(self) -> str:
        return f"rpc error: code = {self.code.words} desc = {self.message}"


_OF_RESET = {
    ErrorCodes.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCodes.CANCEL: Code.CANCELED,
    ErrorCodes.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    ErrorCodes.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}
_OF_HTTP = {
    "400": Code.INTERNAL,
    "401": Code.UNAUTHENTICATED,
    "403": Code.PERMISSION_DENIED,
    "404": Code.UNIMPLEMENTED,
    "429": Code.UNAVAILABLE,
    "502": Code.UNAVAILABLE,
    "503": Code.UNAVAILABLE,
    "504": Code.UNAVAILABLE,
}


def header_block(path: str, authority: str, user_agent: str, metadata: tuple[tuple[str, str], ...] = ()) -> bytes:
    """The header fields with which every request of a method begins."""
    block = indexed(":method", "POST") + indexed(":scheme", "http")
    fields = ((":path", path), (":authority", authority), ("te", "trailers"), ("content-type", "application/grpc"))
    return block + b"".join(literal(*field) for field in (*fields, ("user-agent", user_agent), *metadata))


def trace_field(traceparent: str) -> bytes:
    """The header field with the span of the caller (W3C Trace Context)."""
    return literal("traceparent", traceparent)


def timeout_field(seconds: float) -> bytes:
    """The header field with the deadline for the server, rounded up so that the client's deadline passes first."""
    milliseconds = int(seconds * 1000) + 1
    if milliseconds <= _MAX_TIMEOUT:
        return literal("grpc-timeout", f"{milliseconds}m")
    return literal("grpc-timeout", f"{min(_MAX_TIMEOUT, milliseconds // 1000 + 1)}S")


def status_of(stream: Http2Stream) -> tuple[Code, str]:
    """The code and message of an ended stream."""
    if stream.reset is not None:
        name = next((code.name for code in ErrorCodes if code == stream.reset), str(stream.reset))
        code = next((code for reset, code in _OF_RESET.items() if reset == stream.reset), Code.INTERNAL)
        return code, f"stream terminated by RST_STREAM with error code: {name}"
    status = _server_status(stream.trailers)
    if status is not None:
        return status
    http = dict(stream.headers or stream.trailers).get(":status", "")[:_SHOWN_STATUS]
    if http != "200":
        text = f"unexpected HTTP status code received from server: {http or 'none'}"
        return _OF_HTTP.get(http, Code.UNKNOWN), text
    return Code.INTERNAL, "server closed the stream without sending trailers"


def _server_status(trailers: Headers) -> tuple[Code, str] | None:
    fields = dict(trailers)
    number = fields.get("grpc-status")
    if number is None:
        return None
    message = fields.get("grpc-message", "")
    if number == "0" and not message:
        return _SUCCESS  # the usual case
    value = parse_decimal(number, Code.UNAUTHENTICATED)
    return Code(value) if value is not None else Code.UNKNOWN, unquote(message[:MAX_STATUS_MESSAGE])


def framed(message: bytes) -> bytes:
    """Encode a message with its length prefix."""
    return _LENGTH.pack(0, len(message)) + message


class MessageReader:
    """Splits the body of a stream into messages of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._held = 0
        self._needed = _PREFIX

    @property
    def is_empty(self) -> bool:
        """Whether there is no incomplete message."""
        return not self._held

    def take(self, stream: Http2Stream) -> list[bytes]:
        """Take the complete messages. Raises RpcError for a message that is too large or compressed."""
        if not stream.body:
            return []
        self._held += sum(map(len, stream.body))
        self._chunks += stream.body
        stream.body.clear()
        if self._held < self._needed:
            return []
        data = b"".join(self._chunks) if len(self._chunks) > 1 else self._chunks[0]
        messages, position = [], 0
        self._needed = _PREFIX
        while len(data) - position >= _PREFIX:
            after = position + _PREFIX + self._message_size(data, position)
            if after > len(data):
                self._needed = after - position
                break
            messages.append(data[position + _PREFIX : after])
            position = after
        self._held = len(data) - position
        self._chunks = [data[position:]] if self._held else []
        return messages

    def _message_size(self, data: bytes, position: int) -> int:
        packed, size = _LENGTH.unpack_from(data, position)
        if packed:
            raise RpcError(Code.INTERNAL, "grpc: a compressed message, which was not asked for")
        if size > self._limit:
            problem = f"grpc: received message larger than max ({size} vs. {self._limit})"
            raise RpcError(Code.RESOURCE_EXHAUSTED, problem)
        return int(size)
