"""Requests as handlers get them, the reading of their bodies, and the heads of answers. Pure except for bodies.

`net/http/request.py` parses HTTP. The cost of all work before a request is authorized is limited; the query is parsed only
when it is used.
Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from urllib.parse import parse_qs, unquote

from pykubelet.base.kit.values import Value, field
from pykubelet.net.http import request
from pykubelet.net.http.request import BadMessage, ChunkedBody

#: The most bytes of a request's body, if the server has no limit of its own (`ServerLimits.body_bytes`).
BODY_BYTES = 64 * 1024
PATH_BYTES = 64 * 1024
#: Far more than the arguments of a long command.
MAX_QUERY_FIELDS = 10_000
REASONS = {
    101: "Switching Protocols",
    200: "OK",
    201: "Created",
    202: "Accepted",
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
    409: "Conflict",
    410: "Gone",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    416: "Range Not Satisfiable",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}
_ABSOLUTE = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-f:.]+\])(?::[0-9]*)?(?=[/?]|$)", re.ASCII | re.IGNORECASE)


class BadRequest(Exception):
    """A request cannot be processed. `status` and the text are those of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {REASONS[status]}: {reason}")
        self.status = status


class Request(Value, dict=True):
    """A request. `path`: decoded, without the query. `raw_query`: not decoded.

    `headers`: by lower-case name; repeated ones are joined with commas. `target`: path and query as they were sent.
    `repeated`: the values of each repeated header.
    """

    method: str
    path: str
    raw_query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    body: bytes = b""
    repeated: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def query(self) -> Mapping[str, list[str]]:
        """All values of each query parameter, including parameters without a value. Raises BadRequest.

        Use it only for authorized requests, because the time for parsing grows with the number of parameters.
        """
        try:
            return parse_qs(self.raw_query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
        except ValueError as error:
            raise BadRequest(414, f"the query has more than {MAX_QUERY_FIELDS} fields") from error

    @cached_property
    def is_upgrade(self) -> bool:
        """Whether the client asks for another protocol on this connection."""
        wanted = self.headers.get("connection", "").split(",")
        return "upgrade" in self.headers and any(word.strip(" \t").lower() == "upgrade" for word in wanted)

    def first(self, name: str) -> str:
        """The first value of a query parameter; "" if it is missing. Raises BadRequest."""
        values = self.query.get(name)
        return values[0] if values else ""


class Head(Value):
    """A request's head: the request without its body, the length of the body (None: chunked), and whether to keep alive."""

    request: Request
    body_length: int | None
    keep: bool


def parse_head(head: bytes) -> Head:
    """Parse a head, which ends with an empty line. Raises BadRequest."""
    try:
        found = request.parse_head(head)
    except BadMessage as error:
        raise BadRequest(error.status, error.reason) from error
    path, query = _split_target(found.target)
    made = Request(found.method, path, query, found.headers, found.target, repeated=found.repeated)
    return Head(made, found.body_length, found.keeps_alive)


def _split_target(target: str) -> tuple[str, str]:
    """The decoded path and the query of a request target in origin form or absolute form (RFC 9112, section 3.2)."""
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


class Body:
    """The body of one request. It is read when a handler asks for it, after the request was authorized.

    `length` None: chunked. `limit_s`: the most seconds for reading it. `expecting`: the connection on which `100 Continue` is
    sent, if the client waits for that before it sends its body. `limit_bytes`: a longer body is refused with 413.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        length: int | None,
        limit_s: float,
        expecting: asyncio.StreamWriter | None = None,
        limit_bytes: int = BODY_BYTES,
    ) -> None:
        self._reader = reader
        self._length = length
        self._limit_s = limit_s
        self._limit_bytes = limit_bytes
        self._expecting = expecting
        self.is_read = length == 0

    async def read(self) -> bytes:
        """Read the whole body, at most `limit_bytes`. Later calls return b"". Raises BadRequest."""
        if self.is_read:
            return b""
        if self._expecting is not None:
            self._expecting.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self._limit_s):
                body = await read_body(self._reader, self._length, self._limit_bytes)
        except TimeoutError as error:
            raise BadRequest(408, "the body did not come in time") from error
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError, OSError) as error:
            raise BadRequest(400, "malformed or incomplete body") from error
        self.is_read = True
        return body


async def read_body(reader: asyncio.StreamReader, length: int | None, limit_bytes: int) -> bytes:
    """Read the body of a request, at most `limit_bytes`. Raises BadRequest."""
    if length is None:
        return await _read_chunks(reader, limit_bytes)
    if length > limit_bytes:
        raise BadRequest(413, "the body is too large")
    return await reader.readexactly(length) if length else b""


async def _read_chunks(reader: asyncio.StreamReader, limit_bytes: int) -> bytes:
    chunks = ChunkedBody(limit_bytes)
    while not chunks.is_complete:
        wanted = chunks.wanted
        piece = await (reader.readuntil(b"\r\n") if wanted is None else reader.readexactly(wanted))
        try:
            chunks.feed(piece)
        except BadMessage as error:
            raise BadRequest(error.status, error.reason) from error
    return bytes(chunks.data)


def render_head(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of an answer. Header values must be constants or checked by the caller; line ends in them are dropped."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
    lines += [f"{name}: {value}".replace("\r", " ").replace("\n", " ") for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def as_chunk(data: bytes) -> bytes:
    """Data in the coding `chunked`. No data are the end of the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
