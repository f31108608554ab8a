"""Parses HTTP/1.1 requests for a server: a whole head at a time, and chunked bodies line by line. Pure.

llhttp (via `httptools`) finds the parts. This module limits them and refuses what llhttp accepts: empty lines before the
request line, blanks in it, versions other than 1.0 and 1.1, two `Host` fields, codings other than `chunked`. Ambiguous requests
are refused, because guesses make request smuggling possible. The parser never gets a byte that belongs to the next request or
to an upgraded connection.

Source: RFC 9112; https://github.com/nodejs/llhttp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserInvalidMethodError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from pykubelet.base.kit.values import Value

#: FIELD_BYTES limits all fields except `Authorization`, because tokens can be long.
MAX_FIELDS, FIELD_BYTES = 200, 64 * 1024
#: A body of the allowed size has a few chunks. One-byte chunks would take a thousand times as long as their bytes alone.
MAX_CHUNKS, EXTENSION_BYTES, TRAILER_BYTES = 1000, 4 * 1024, 16 * 1024
_TARGET = re.compile(r"[\x21-\x7e]+")
_ONCE = frozenset({"host", "content-length", "authorization", "transfer-encoding"})
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SIZE_DIGITS = 8
_CHUNKED_HEAD = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class BadMessage(ValueError):
    """A request is refused: the status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class RequestHead(Value):
    """The head of a request. `target`: as it was sent. `headers`: by lower-case name; repeated ones are joined with commas.

    `body_length`: None for a chunked body. `keeps_alive`: another request may follow. `repeated`: the values of each repeated header.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body_length: int | None
    keeps_alive: bool
    repeated: Mapping[str, Sequence[str]]


def parse_head(head: bytes) -> RequestHead:
    """Parse a head, which ends with its only empty line. Raises BadMessage."""
    method, target, version = _split_line(head[: head.index(b"\r\n")])
    events = _HeadEvents()
    try:
        HttpRequestParser(events).feed_data(head)
    except HttpParserUpgrade:
        pass  # the head is complete
    except HttpParserError as error:
        raise events.refusal or _refusal_of(error) from error
    if not events.is_complete:
        raise BadMessage(400, "malformed header")
    headers = events.headers
    if version == "HTTP/1.1" and "host" not in headers:
        raise BadMessage(400, "missing required Host header")
    keeps_alive = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    return RequestHead(method, target, headers, _body_length(headers), keeps_alive, events.repeated)


def _split_line(line: bytes) -> tuple[str, str, str]:
    """Split into method, target and version. llhttp would accept several blanks, other versions, and no version."""
    parts = line.decode("latin-1").split(" ", 3)
    if len(parts) != 3 or not _METHOD.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise BadMessage(400, "malformed request line")
    if parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadMessage(505, "unsupported protocol version")
    return parts[0], parts[1], parts[2]


def _refusal_of(error: HttpParserError) -> Exception:
    if isinstance(error, HttpParserCallbackError):
        return error  # a bug in this module
    if isinstance(error, HttpParserInvalidMethodError) or str(error).startswith("Invalid method"):
        return BadMessage(501, "unsupported method")
    return BadMessage(400, f"malformed request: {error}")


class _HeadEvents:
    """Collects the parts of a head from llhttp. The limits are checked for each field, so that llhttp stops at once."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.repeated: dict[str, list[str]] = {}
        self.is_complete = False
        self.refusal: BadMessage | None = None
        self._fields = self._field_bytes = 0

    def on_header(self, raw_name: bytes, raw_value: bytes) -> None:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip(" \t")
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise self._refuse(431, "too many header fields")
        if name != "authorization":
            self._field_bytes += len(raw_name) + len(raw_value) + 2
            if self._field_bytes > FIELD_BYTES:
                raise self._refuse(431, f"header fields other than Authorization have more than {FIELD_BYTES} bytes")
        if name in self.headers:
            if name in _ONCE:
                raise self._refuse(400, f"header {name} is given twice")
            self.repeated.setdefault(name, [self.headers[name]]).append(value)
            value = f"{self.headers[name]},{value}"
        self.headers[name] = value

    def on_headers_complete(self) -> None:
        self.is_complete = True

    def _refuse(self, status: int, reason: str) -> BadMessage:
        self.refusal = BadMessage(status, reason)
        return self.refusal


def _body_length(headers: Mapping[str, str]) -> int | None:
    coding = headers.get("transfer-encoding")
    if coding is None:
        return int(headers.get("content-length", "0"))
    if coding.lower() != "chunked":
        raise BadMessage(400, "unsupported transfer encoding")
    return None


class ChunkedBody:
    """A chunked body of at most `limit` bytes. Pass it exactly what it wants, so that nothing after the body is read.

    `wanted`: the number of bytes to pass next; None: a line. `data`: the content of the chunks so far.
    """

    def __init__(self, limit: int) -> None:
        self.wanted: int | None = None
        self.data = bytearray()
        self._limit = limit
        self._events = _TrailerEvents()
        self._parser = HttpRequestParser(self._events)
        self._parser.feed_data(_CHUNKED_HEAD)
        self._chunks = self._extension_bytes = 0

    @property
    def is_complete(self) -> bool:
        """Whether the last chunk and the trailers were passed."""
        return self._events.is_complete

    def feed(self, piece: bytes) -> None:
        """Process a line with its end, or `wanted` bytes. Raises BadMessage."""
        events = self._events
        if events.in_trailers:
            events.trailer_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except HttpParserError as error:
            if not events.has_too_many:
                what = "trailer" if events.in_trailers else "chunk"
                raise BadMessage(400, f"malformed {what}") from error
        if events.has_too_many or events.trailer_bytes > TRAILER_BYTES:
            raise BadMessage(431, "too many trailers")
        if self.wanted is not None:
            self.data += piece[:-2]
            self.wanted = None
        elif not events.in_trailers:
            self._take_size(piece.removesuffix(b"\r\n"))

    def _take_size(self, line: bytes) -> None:
        digits, _, extensions = line.partition(b";")
        self._chunks += 1
        self._extension_bytes += len(extensions)
        if len(digits) > _SIZE_DIGITS:
            raise BadMessage(400, "malformed chunk")
        if self._chunks > MAX_CHUNKS:
            raise BadMessage(413, f"the body has more than {MAX_CHUNKS} chunks")
        if self._extension_bytes > EXTENSION_BYTES:
            raise BadMessage(413, f"chunk extensions have more than {EXTENSION_BYTES} bytes")
        size = int(digits, 16)
        if len(self.data) + size > self._limit:
            raise BadMessage(413, "the body is too large")
        self.wanted = size + 2 if size else None
        self._events.in_trailers = not size


class _TrailerEvents:
    """Checks the trailers that llhttp finds after the last chunk. Their content is ignored, but malformed ones are refused."""

    def __init__(self) -> None:
        self.in_trailers = False
        self.trailer_bytes = 0
        self.is_complete = False
        self.has_too_many = False
        self._fields = 0

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002
        self._fields += self.in_trailers
        self.has_too_many = self._fields > MAX_FIELDS

    def on_message_complete(self) -> None:
        self.is_complete = True
