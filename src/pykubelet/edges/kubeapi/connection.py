"""HTTP/1.1 to one API server: requests, streams, and reused connections.

Owns: the pool of idle connections, and the translation of every failure and every error status to ApiError. Of the Kubernetes
objects it knows only `Status`. Why not a library: docs/decisions/0043-the-http-client-stays-for-memory.md and
0027-httptools-parses-http.md.

Source: the Kubernetes documentation "Kubernetes API Concepts"; RFC 9112.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urlencode

from pykubelet.base.api.codec import DecodeError, decode
from pykubelet.base.api.core import Status
from pykubelet.base.kit.text import parse_decimal
from pykubelet.edges.kubeapi.credentials import RequestCredentials
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess
from pykubelet.net.http.dial import destination_of, dial
from pykubelet.net.http.exchange import FAILURES, HttpConnection

#: Less than the API server's own limit for idle connections (90 s), so that no request is sent while the server closes one.
IDLE_S = 60.0
#: After a burst, idle connections are closed after so many seconds, but for so many: each takes about 60 KiB here and in the server.
SPARE_S, KEPT_IDLE = 10.0, 2
_SHOWN = 400
#: The longest Retry-After that is respected. An API server asks for half a minute at most; a proxy must not delay the node more.
_LONGEST_PAUSE_S = 60.0


class ApiConnection:
    """Requests to one server. Create it inside a running loop. `close` ends all requests. `accept`: the header Accept."""

    def __init__(self, access: ClusterAccess, user_agent: str, accept: str = "application/json") -> None:
        self._server = access.server
        self._destination = destination_of(access.server, access.proxy, access.server_name)
        self._fixed = f"Host: {self._destination.netloc}\r\nUser-Agent: {user_agent}\r\n"
        self.accept = accept
        self._last_credentials: RequestCredentials | None = None
        self._headers = ""
        self._idle: list[HttpConnection] = []
        self._busy: set[HttpConnection] = set()
        self._closed = False
        self._closing_spare: asyncio.TimerHandle | None = None

    async def request(
        self,
        method: str,
        path: str,
        credentials: RequestCredentials,
        body: bytes | None = None,
        content_type: str = "",
        traceparent: str = "",
    ) -> bytes:
        """Send a request and return the body of a successful answer. `traceparent`: the span of it. Raises ApiError."""
        trace = f"Traceparent: {traceparent}\r\n" if traceparent else ""
        request = self._rendered(method, path, credentials, body, content_type, trace)
        connection = await self._sent(request, credentials)
        try:
            data = await connection.body()
        except FAILURES as error:
            self._discard(connection)
            raise unreached(error, self._server) from error
        except BaseException:
            self._discard(connection)
            raise
        response = connection.response
        self._release(connection)
        if response.status >= 300:
            raise answer_error(response.status, data, response.headers)
        return data

    async def open(self, path: str, credentials: RequestCredentials) -> ApiStream:
        """Send a GET with a streamed body. Returns when the head of the answer has arrived. Raises ApiError."""
        connection = await self._sent(self._rendered("GET", path, credentials, None, ""), credentials)
        stream = ApiStream(connection, self._server, self._busy)
        response = connection.response
        if response.status < 300:
            return stream
        try:
            data = b"".join([part async for part in stream.chunks()])
        finally:
            stream.close()
        raise answer_error(response.status, data, response.headers)

    async def close(self) -> None:
        """Close all connections. Requests in progress raise ApiError (the connection was closed)."""
        self._closed = True
        if self._closing_spare is not None:
            self._closing_spare.cancel()
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        self._busy.clear()
        await asyncio.sleep(0)  # the transports close in the next iteration of the event loop

    async def _sent(self, request: bytes, credentials: RequestCredentials) -> HttpConnection:
        """Send a request. Returns the connection once the head of the answer has arrived."""
        while True:
            try:
                connection = self._take_idle(credentials) or await dial(self._destination, credentials.tls)
            except FAILURES as error:
                raise unreached(error, self._server) from error
            reused = connection.used
            self._busy.add(connection)
            try:
                await connection.exchange(request)
                return connection
            except FAILURES as error:
                self._discard(connection)
                if not reused or connection.response.heard or self._closed:
                    raise unreached(error, self._server) from error
                # try again: the server closed the idle connection during the write and has not read the request
            except BaseException:
                self._discard(connection)
                raise

    def _take_idle(self, credentials: RequestCredentials) -> HttpConnection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            is_usable = not connection.closed and connection.response.keeps_alive
            if is_usable and connection.tls is credentials.tls and now - connection.idle_since < IDLE_S:
                return connection
            connection.abort()
        return None

    def _release(self, connection: HttpConnection) -> None:
        self._busy.discard(connection)
        response = connection.response
        if self._closed or connection.closed or not response.keeps_alive or not response.complete:
            connection.abort()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
        if len(self._idle) > KEPT_IDLE and self._closing_spare is None:
            self._closing_spare = asyncio.get_running_loop().call_later(SPARE_S, self._close_spare)

    def _close_spare(self) -> None:
        """Close the connections that are idle for longest. The newest ones are reused first, so these were not needed."""
        loop = asyncio.get_running_loop()
        self._closing_spare = None
        while len(self._idle) > KEPT_IDLE and loop.time() - self._idle[0].idle_since >= SPARE_S:
            self._idle.pop(0).abort()
        if len(self._idle) > KEPT_IDLE:
            self._closing_spare = loop.call_later(SPARE_S, self._close_spare)

    def _discard(self, connection: HttpConnection) -> None:
        self._busy.discard(connection)
        connection.abort()

    def _rendered(
        self,
        method: str,
        path: str,
        credentials: RequestCredentials,
        body: bytes | None,
        content_type: str,
        more: str = "",
    ) -> bytes:
        """The bytes of a request. `more`: further header lines."""
        if credentials is not self._last_credentials:
            self._headers = self._fixed + _header_lines(credentials)
            self._last_credentials = credentials
        destination = self._destination
        target = destination.prefix + path
        login = ""
        if destination.is_passed_on:
            target = f"http://{destination.netloc}{target}"
            login = f"Proxy-Authorization: {destination.proxy_login}\r\n" if destination.proxy_login else ""
        head = f"{method} {target} HTTP/1.1\r\n{login}{more}{self._headers}Accept: {self.accept}\r\n"
        if body is None:
            length = "" if method == "GET" else "Content-Length: 0\r\n"
            return f"{head}{length}\r\n".encode()
        return f"{head}Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class ApiStream:
    """The streamed body of one answer. The caller must close it."""

    def __init__(self, connection: HttpConnection, server: str, busy: set[HttpConnection]) -> None:
        self._connection = connection
        self._server = server
        self._busy = busy

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives, until the server ends the answer. Raises ApiError."""
        try:
            while (part := await self._connection.part()) is not None:
                yield part
        except FAILURES as error:
            raise unreached(error, self._server) from error

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        self._busy.discard(self._connection)
        self._connection.abort()


def with_query(path: str, query: Mapping[str, str] | None) -> str:
    """The path with the query, if there is one."""
    return f"{path}?{urlencode(query)}" if query else path


def answer_error(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The ApiError of an answer with an error status. `headers`: by lower-case name."""
    text, reason, retry_after = "", "", _seconds(headers.get("retry-after", ""))
    try:
        answer = decode(Status, body)
        if answer.kind == "Status":
            text, reason = answer.message, answer.reason
            if retry_after is None and answer.details is not None and answer.details.retryAfterSeconds:
                retry_after = min(max(0.0, float(answer.details.retryAfterSeconds)), _LONGEST_PAUSE_S)
    except DecodeError:
        text = ""
    if not text:
        text = body[:_SHOWN].decode("utf-8", "replace").strip() or f"the server answered with status {status}"
    return ApiError(status, reason, text, retry_after)


def timed_out(seconds: float, server: str) -> ApiError:
    """The ApiError of a request without an answer within `seconds`."""
    return ApiError(0, "Timeout", f"{server}: no answer within {seconds:g} s")


def unreached(error: Exception, server: str) -> ApiError:
    """The ApiError of a request without a complete answer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ApiError(0, "Certificate", f"{server}: {error.verify_message or error}")
    text = str(error) or type(error).__name__
    return ApiError(0, "Unreachable", f"{server}: {text}")


def _header_lines(credentials: RequestCredentials) -> str:
    for name, value in credentials.headers:
        if not value.isprintable():
            raise ApiError(0, "Credentials", f"the value of the header {name} has characters that cannot be sent")
    return "".join(f"{name}: {value}\r\n" for name, value in credentials.headers)


def _seconds(text: str) -> float | None:
    """Parse a Retry-After header. The API server sends whole seconds, never a date."""
    seconds = parse_decimal(text)
    return None if seconds is None else min(float(seconds), _LONGEST_PAUSE_S)
