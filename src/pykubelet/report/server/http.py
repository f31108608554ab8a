"""A small HTTP/1.1 server for plain GETs: no bodies are read, every answer is whole.

Owns: the reading of request heads, with limits on size and time, keep-alive, and the writing of answers. What is
answered is decided by a `Route`. Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from pykubelet.base.kit.log import Log

log = Log("server")
HEAD_BYTES = 64 * 1024
HEAD_DEADLINE_S = 30.0
IDLE_S = 90.0
WRITE_DEADLINE_S = 60.0
CONNECTIONS = 256
LINGER_S, LINGER_BYTES = 1.0, 1 << 20
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


@dataclass(frozen=True, slots=True)
class Request:
    """`path` is decoded, without the query; `query`: all values of each name, also of names without a value."""

    method: str
    path: str
    query: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    content_type: str = TEXT


Route = Callable[[Request], Response]
IsAllowed = Callable[[asyncio.StreamWriter], bool]


def text(status: int, body: str) -> Response:
    return Response(status, body.encode())


class _BadRequest(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.response = text(status, f"{status} {_REASONS[status]}: {reason}")


def allow_all(_: asyncio.StreamWriter) -> bool:
    return True


class HttpServer:
    """Answers connections with a route. Give `serve` to `asyncio.start_server` or `start_unix_server`."""

    def __init__(self, route: Route, is_allowed: IsAllowed = allow_all) -> None:
        self._route = route
        self._is_allowed = is_allowed
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it or it is idle for too long."""
        if len(self._open) >= CONNECTIONS:
            writer.close()
            return
        self._open.add(writer)
        try:
            await self._converse(reader, writer)
        except (OSError, TimeoutError):
            return  # the other side is gone or asleep
        finally:
            self._open.discard(writer)
            writer.close()

    def close(self) -> None:
        """End the connections that are open."""
        for writer in tuple(self._open):
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        allowed = self._is_allowed(writer)
        wait_s = HEAD_DEADLINE_S
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                request, keep = parse_head(head)
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                error = _BadRequest(431, "the head of the request is too large")
                await _last(reader, writer, Request("GET", "/"), error.response)
                return
            except _BadRequest as error:
                await _last(reader, writer, Request("GET", "/"), error.response)
                return
            if not allowed:
                await _last(reader, writer, request, text(403, "Forbidden"))
                return
            if not keep:
                await _last(reader, writer, request, self._answer(request))
                return
            await _write(writer, request, self._answer(request), keep=True)
            wait_s = IDLE_S

    def _answer(self, request: Request) -> Response:
        try:
            return self._route(request)
        except Exception as error:  # one question must not end the agent
            log.error("cannot answer", path=request.path, error=repr(error), exc_info=error)
            return text(500, "Internal Server Error")


def parse_head(head: bytes) -> tuple[Request, bool]:
    """The request, and whether the connection stays open. A request with a body is answered and then closed."""
    first, _, rest = head.decode("latin-1").partition("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[0] or not parts[1]:
        raise _BadRequest(400, "malformed request line")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise _BadRequest(505, "unsupported protocol version")
    headers = {}
    for line in rest.split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip().lower()
        elif line:
            raise _BadRequest(400, "malformed header")
    try:
        url = urlsplit(target)
    except ValueError as error:
        raise _BadRequest(400, "malformed target") from error
    keep = version == "HTTP/1.1" and headers.get("connection") != "close"
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        keep = False
    query = parse_qs(url.query, keep_blank_values=True)
    return Request(method, unquote(url.path) or "/", query), keep


async def _last(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request, response: Response
) -> None:
    """The last answer of a connection. Closing over bytes that were not read would reset it, and lose the answer."""
    await _write(writer, request, response, keep=False)
    if writer.is_closing():
        return
    writer.write_eof()
    left = LINGER_BYTES
    async with asyncio.timeout(LINGER_S):
        while left > 0 and (data := await reader.read(min(left, HEAD_BYTES))):
            left -= len(data)


async def _write(writer: asyncio.StreamWriter, request: Request, response: Response, keep: bool) -> None:
    head = (
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"{'' if keep else 'Connection: close' + chr(13) + chr(10)}\r\n"
    )
    writer.write(head.encode() + (b"" if request.method == "HEAD" else response.body))
    async with asyncio.timeout(WRITE_DEADLINE_S):
        await writer.drain()
