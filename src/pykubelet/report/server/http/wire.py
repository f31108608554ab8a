"""The text of HTTP/1.1: heads of requests read strictly, heads of answers written. Pure but for the reading of bodies.

What is ambiguous is refused, never guessed: it is with guesses that requests are smuggled. Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from urllib.parse import parse_qs, unquote, urlsplit

from pykubelet.base.kit.values import Value, field

BODY_BYTES = 64 * 1024
MAX_FIELDS = 200
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


class Request(Value):
    """`path` is decoded, without the query; `query`: all values of each name, also of names without a value.

    `headers`: by lower-case name, repeated ones joined by commas. `target`: path and query as they were sent.
    """

    method: str
    path: str
    query: Mapping[str, list[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    body: bytes = b""

    @property
    def is_upgrade(self) -> bool:
        tokens = {token.strip() for token in self.headers.get("connection", "").lower().split(",")}
        return "upgrade" in tokens and "upgrade" in self.headers

    def first(self, name: str) -> str:
        """The first value of a query parameter, "" without one."""
        values = self.query.get(name)
        return values[0] if values else ""


class BadRequest(Exception):
    """What cannot be answered otherwise; `status` and the text of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {REASONS[status]}: {reason}")
        self.status = status


class Head(Value):
    """A request's head: the request without its body, how long that is (None: chunked), and whether to go on after it."""

    request: Request
    body_length: int | None
    keep: bool


def parse_head(head: bytes) -> Head:
    """The head that ends in an empty line. Raises BadRequest."""
    first, _, rest = head.decode("latin-1").removesuffix("\r\n\r\n").partition("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise BadRequest(400, "malformed request line")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(505, "unsupported protocol version")
    headers = _parse_fields(rest)
    try:
        url = urlsplit(target)
    except ValueError as error:
        raise BadRequest(400, "malformed target") from error
    path = unquote(url.path, errors="replace") or "/"
    if "\0" in path:
        raise BadRequest(400, "malformed target")
    keep = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    query = parse_qs(url.query, keep_blank_values=True)
    request = Request(method, path, query, headers, target)
    return Head(request, _body_length(headers), keep)


def _parse_fields(text: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    lines = text.split("\r\n") if text else []
    if len(lines) > MAX_FIELDS:
        raise BadRequest(431, "too many header fields")
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadRequest(400, "malformed header")
        name, value = name.lower(), value.strip()
        if name in headers:
            if name in ("host", "content-length", "authorization", "transfer-encoding"):
                raise BadRequest(400, f"header {name} is given twice")
            value = f"{headers[name]},{value}"
        headers[name] = value
    return headers


def _body_length(headers: Mapping[str, str]) -> int | None:
    coding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise BadRequest(400, "unsupported transfer encoding")
        return None
    if length is None:
        return 0
    if not length.isascii() or not length.isdigit():
        raise BadRequest(400, "malformed Content-Length")
    return int(length)


async def read_body(reader: asyncio.StreamReader, length: int | None) -> bytes:
    """The body of a request, at most BODY_BYTES of it. Raises BadRequest."""
    if length is None:
        return await _read_chunks(reader)
    if length > BODY_BYTES:
        raise BadRequest(413, "the body is too large")
    return await reader.readexactly(length) if length else b""


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        line = (await reader.readuntil(b"\r\n"))[:-2].split(b";", 1)[0].strip()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", line):
            raise BadRequest(400, "malformed chunk")
        size = int(line, 16)
        if len(body) + size > BODY_BYTES:
            raise BadRequest(413, "the body is too large")
        body += await reader.readexactly(size)
        if size and await reader.readexactly(2) != b"\r\n":
            raise BadRequest(400, "malformed chunk")
        if not size:
            for _ in range(MAX_FIELDS):
                if await reader.readuntil(b"\r\n") == b"\r\n":
                    return bytes(body)
            raise BadRequest(431, "too many trailers")


def render_head(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of an answer. Header values are our own or checked by the caller; line ends in them are dropped."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
    lines += [f"{name}: {value}".replace("\r", " ").replace("\n", " ") for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
