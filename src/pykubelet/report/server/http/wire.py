"""The text of HTTP/1.1: heads of requests read strictly, heads of answers written. Pure but for the reading of bodies.

What is ambiguous is refused, never guessed: it is with guesses that requests are smuggled. Everything here that is done
before a request is authorized has a cost that its limits bound; the query is parsed only when it is asked for.
Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import cached_property
from urllib.parse import parse_qs, unquote

from pykubelet.base.kit.digits import parse_decimal
from pykubelet.base.kit.values import Value, field

BODY_BYTES = 64 * 1024
#: A body of that size has a few chunks; one-byte chunks would cost a thousand times their bytes in time.
MAX_CHUNKS, EXTENSION_BYTES, TRAILER_BYTES = 1000, 4 * 1024, 16 * 1024
#: `Authorization` may be longer than all other fields together: tokens can be long.
MAX_FIELDS, FIELD_BYTES = 200, 64 * 1024
PATH_BYTES = 64 * 1024
#: Far more than a long command has arguments.
MAX_QUERY_FIELDS = 10_000
REASONS = {
    101: "Switching Protocols",
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    301: "Moved Permanently",
    303: "See Other",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    408: "Request Timeout",
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(r"[\x21-\x7e]+")
_ABSOLUTE = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-f:.]+\])(?::[0-9]*)?(?=[/?]|$)", re.ASCII | re.IGNORECASE)
_UPGRADE = re.compile(r"(?:^|,)[ \t]*upgrade[ \t]*(?:,|$)", re.IGNORECASE)
#: The size is followed by extensions, which mean nothing here.
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})((?:;[\t\x20-\x7e\x80-\xff]*)?)\r\n")
_ONCE = frozenset({"host", "content-length", "authorization", "transfer-encoding"})


class BadRequest(Exception):
    """A request that cannot be answered otherwise; `status` and the text of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {REASONS[status]}: {reason}")
        self.status = status


class Request(Value, dict=True):
    """`path` is decoded, without the query; `raw_query` is not decoded.

    `headers`: by lower-case name, repeated ones joined by commas. `target`: path and query as they were sent.
    """

    method: str
    path: str
    raw_query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    body: bytes = b""

    @cached_property
    def query(self) -> Mapping[str, list[str]]:
        """All values of each name, also of names without a value. Raises BadRequest.

        Parsing takes time in proportion to the fields, so it is for requests that have been authorized.
        """
        try:
            return parse_qs(self.raw_query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
        except ValueError as error:
            raise BadRequest(414, f"the query has more than {MAX_QUERY_FIELDS} fields") from error

    @cached_property
    def is_upgrade(self) -> bool:
        return "upgrade" in self.headers and bool(_UPGRADE.search(self.headers.get("connection", "")))

    def first(self, name: str) -> str:
        """The first value of a query parameter, "" without one. Raises BadRequest."""
        values = self.query.get(name)
        return values[0] if values else ""


class Head(Value):
    """A request's head: the request without its body, how long that is (None: chunked), and whether to go on after it."""

    request: Request
    body_length: int | None
    keep: bool


def parse_head(head: bytes) -> Head:
    """The head that ends in an empty line. Raises BadRequest."""
    first, _, rest = head.decode("latin-1").removesuffix("\r\n\r\n").partition("\r\n")
    parts = first.split(" ", 3)
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise BadRequest(400, "malformed request line")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(505, "unsupported protocol version")
    headers = _parse_fields(rest)
    if version == "HTTP/1.1" and "host" not in headers:
        raise BadRequest(400, "missing required Host header")
    path, query = _split_target(target)
    keep = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    return Head(Request(method, path, query, headers, target), _body_length(headers), keep)


def _split_target(target: str) -> tuple[str, str]:
    """Path, decoded, and query of a request target in origin form or absolute form (RFC 9112, section 3.2)."""
    if not target.startswith("/") and target != "*":
        absolute = _ABSOLUTE.match(target)
        if absolute is None:
            raise BadRequest(400, "malformed target")
        target = target[absolute.end() :]
    raw_path, _, query = target.partition("?")
    if len(raw_path) > PATH_BYTES:
        raise BadRequest(414, f"the path has more than {PATH_BYTES} bytes")
    path = unquote(raw_path, errors="replace") or "/"
    if "\0" in path:
        raise BadRequest(400, "malformed target")
    return path, query


def _parse_fields(text: str) -> dict[str, str]:
    lines = text.split("\r\n", MAX_FIELDS) if text else []
    if len(lines) > MAX_FIELDS:
        raise BadRequest(431, "too many header fields")
    found: dict[str, list[str]] = {}
    size = 0
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadRequest(400, "malformed header")
        name = name.lower()
        if name in _ONCE and name in found:
            raise BadRequest(400, f"header {name} is given twice")
        if name != "authorization":
            size += len(line)
            if size > FIELD_BYTES:
                raise BadRequest(431, f"header fields other than Authorization have more than {FIELD_BYTES} bytes")
        found.setdefault(name, []).append(value.strip(" \t"))
    return {name: ",".join(values) for name, values in found.items()}


def _body_length(headers: Mapping[str, str]) -> int | None:
    coding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise BadRequest(400, "unsupported transfer encoding")
        return None
    if length is None:
        return 0
    number = parse_decimal(length)
    if number is None:
        raise BadRequest(400, "malformed Content-Length")
    return number


class Body:
    """The body of one request. It is read when a handler asks for it, which is after the request has been authorized.

    `length` None: in chunks. `limit_s`: for all of it. `expecting`: where the client waits to be told that its body is
    wanted, the connection to tell it on.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        length: int | None,
        limit_s: float,
        expecting: asyncio.StreamWriter | None = None,
    ) -> None:
        self._reader = reader
        self._length = length
        self._limit_s = limit_s
        self._expecting = expecting
        self.is_read = length == 0

    async def read(self) -> bytes:
        """All of it, at most BODY_BYTES; b"" the next time. Raises BadRequest."""
        if self.is_read:
            return b""
        if self._expecting is not None:
            self._expecting.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self._limit_s):
                body = await read_body(self._reader, self._length)
        except TimeoutError as error:
            raise BadRequest(408, "the body did not come in time") from error
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError, OSError) as error:
            raise BadRequest(400, "malformed or incomplete body") from error
        self.is_read = True
        return body


async def read_body(reader: asyncio.StreamReader, length: int | None) -> bytes:
    """The body of a request, at most BODY_BYTES of it. Raises BadRequest."""
    if length is None:
        return await _read_chunks(reader)
    if length > BODY_BYTES:
        raise BadRequest(413, "the body is too large")
    return await reader.readexactly(length) if length else b""


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body, extensions = bytearray(), 0
    for _ in range(MAX_CHUNKS):
        line = _CHUNK.fullmatch(await reader.readuntil(b"\r\n"))
        if line is None:
            raise BadRequest(400, "malformed chunk")
        size, extensions = int(line[1], 16), extensions + len(line[2])
        if extensions > EXTENSION_BYTES:
            raise BadRequest(413, f"chunk extensions have more than {EXTENSION_BYTES} bytes")
        if len(body) + size > BODY_BYTES:
            raise BadRequest(413, "the body is too large")
        if not size:
            await _read_trailers(reader)
            return bytes(body)
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise BadRequest(400, "malformed chunk")
    raise BadRequest(413, f"the body has more than {MAX_CHUNKS} chunks")


async def _read_trailers(reader: asyncio.StreamReader) -> None:
    """Trailer fields mean nothing here, but malformed ones are refused."""
    size = 0
    for _ in range(MAX_FIELDS + 1):
        line = await reader.readuntil(b"\r\n")
        if line == b"\r\n":
            return
        size += len(line)
        name, colon, value = line[:-2].decode("latin-1").partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadRequest(400, "malformed trailer")
        if size > TRAILER_BYTES:
            break
    raise BadRequest(431, "too many trailers")


def render_head(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of an answer. Header values are our own or checked by the caller; line ends in them are dropped."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
    lines += [f"{name}: {value}".replace("\r", " ").replace("\n", " ") for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
