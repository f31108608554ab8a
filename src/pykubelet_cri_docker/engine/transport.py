"""HTTP on the unix socket of Docker Engine: exchanges, streamed answers, and connections that become raw streams.

Owns: the connections, of which a few stay open between exchanges. A failure is an `EngineError`. Source: the Docker Engine API
reference, "Attach to a container" for raw streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import msgspec

from pykubelet.net.http.exchange import FAILURES, HttpConnection
from pykubelet.net.http.response import BadResponse, ResponseParser
from pykubelet.net.http.upgrade import read_head, read_refusal

CONNECT_S = 10.0
#: Connections that stay open between exchanges.
MAX_IDLE = 8
#: Bytes of a raw stream that wait for their reader; beyond, the peer is slowed down.
STREAM_BYTES = 256 << 10
#: Bytes of an answer that is read whole.
MAX_ANSWER = 16 << 20
PIECE_BYTES = 64 << 10
#: Characters of an error's message, and bytes of its answer that are read.
MAX_MESSAGE, MAX_REFUSAL = 4096, 1 << 20
UNREACHABLE, NOT_FOUND, NO_SUCH_CALL = 0, 404, 501


class EngineError(Exception):
    """Docker Engine refused a call, or could not be asked. `status`: of HTTP, or 0 (`UNREACHABLE`) without an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @property
    def is_not_found(self) -> bool:
        """Whether there is no such object."""
        return self.status == NOT_FOUND

    @property
    def is_conflict(self) -> bool:
        """Whether the object is not in a state for the call, or its name is taken."""
        return self.status == 409

    @property
    def is_in_progress(self) -> bool:
        """Whether another call removes the container now. Docker has no status of its own for it."""
        return self.is_conflict and "is already in progress" in self.message


class AnswerTooLong(EngineError):
    """An answer is longer than this program reads."""

    def __init__(self, method: str, target: str, most: int) -> None:
        super().__init__(
            UNREACHABLE, f"the answer of Docker Engine to {method} {target} has more than {most >> 20} MiB"
        )


class _Refusal(msgspec.Struct):
    message: str = ""


class RawStream:
    """A connection after its upgrade: bytes of a process in both directions. `early`: what came with the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, early: bytes) -> None:
        self._reader = reader
        self._early = early
        self.writer = writer

    async def read(self) -> bytes:
        """What has arrived, at most 64 KiB; b"" at the end. Raises OSError."""
        early, self._early = self._early, b""
        return early or await self._reader.read(PIECE_BYTES)

    def close(self) -> None:
        """End both directions."""
        self.writer.close()


class Transport:
    """Exchanges with the server on the socket at `path`. Create it inside the running event loop."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: Set when a call had no answer: what it has done is not known.
        self.lost = asyncio.Event()
        self._idle: list[HttpConnection] = []

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().abort()

    async def call(self, method: str, target: str, body: bytes | None, limit_s: float | None) -> tuple[int, bytes]:
        """The status below 400 and the body of an answer. Raises EngineError, also if it does not come within `limit_s` seconds.

        A call on a connection that the server has closed meanwhile is repeated if it did not reach the server.
        """
        try:
            async with asyncio.timeout(limit_s):
                return await self._call(method, target, body)
        except TimeoutError as error:
            message = f"no answer of Docker Engine to {method} {target} within {limit_s:g} s"
            raise self._unanswered(message) from error

    async def _call(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        async with self._exchange(_request(method, target, body), reuse=True) as (connection, status):
            found, size = list[bytes](), 0
            async for part in self._parts(connection):
                found.append(part)
                size += len(part)
                if size > MAX_ANSWER:
                    raise AnswerTooLong(method, target, MAX_ANSWER)
            return status, found[0] if len(found) == 1 else b"".join(found)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        reuse: bool = False,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The parts of an answer, as they come. Raises EngineError. `reuse`: it ends, and another call may use the connection."""
        async with self._exchange(_request(method, target, body, headers), reuse=reuse) as (connection, _):
            yield self._parts(connection)

    @asynccontextmanager
    async def _exchange(self, request: bytes, *, reuse: bool) -> AsyncIterator[tuple[HttpConnection, int]]:
        connection, answer = await self._asked(request, reuse=reuse)
        try:
            if answer.status >= 400:
                raise _refused(answer.status, await self._refusal(connection))
            yield connection, answer.status
        finally:
            self._put_back(connection, answer, reuse=reuse)

    async def _asked(self, request: bytes, *, reuse: bool) -> tuple[HttpConnection, ResponseParser]:
        """A connection on which the head of the answer has arrived."""
        while True:
            connection = (self._idle_connection() if reuse else None) or await self._connect()
            was_used = connection.used
            try:
                return connection, await connection.exchange(request)
            except FAILURES as error:
                heard = connection.response.heard
                connection.abort()
                if was_used and not heard and (isinstance(error, BrokenPipeError) or request[:4] != b"POST"):
                    continue  # closed while it was idle, so that the daemon did not get the request, or may get it twice
                raise self._unanswered(f"Docker Engine at {self.path}: {error}") from error
            except BaseException:
                connection.abort()
                raise

    def _idle_connection(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    async def _connect(self) -> HttpConnection:
        try:
            async with asyncio.timeout(CONNECT_S):
                made = await asyncio.get_running_loop().create_unix_connection(HttpConnection, self.path)
        except (OSError, TimeoutError) as error:
            raise unreachable(self.path, error) from error
        return made[1]

    def _put_back(self, connection: HttpConnection, answer: ResponseParser, *, reuse: bool) -> None:
        is_reusable = reuse and answer.complete and answer.keeps_alive and not connection.closed
        if is_reusable and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.abort()

    async def hijack(self, target: str, body: bytes | None) -> RawStream:
        """POST, and take the connection over as a raw stream. Raises EngineError."""
        request = _request("POST", target, body, {"Connection": "Upgrade", "Upgrade": "tcp"})
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_unix_connection(self.path, limit=STREAM_BYTES)
        except (OSError, TimeoutError) as error:
            raise unreachable(self.path, error) from error
        try:
            writer.write(request)
            answer, _, early = await read_head(reader)
            if answer.is_switched:
                return RawStream(reader, writer, early)
            raise _refused(answer.status, await read_refusal(reader, answer))
        except (OSError, BadResponse) as error:
            writer.transport.abort()
            raise self._unanswered(f"Docker Engine at {self.path}: {error}") from error
        except BaseException:
            writer.transport.abort()
            raise

    async def _refusal(self, connection: HttpConnection) -> bytes:
        """The body of an error: only its beginning is shown."""
        body = b""
        async for part in self._parts(connection):
            body += part[: MAX_REFUSAL - len(body)]
            if len(body) == MAX_REFUSAL:
                break
        return body

    async def _parts(self, connection: HttpConnection) -> AsyncIterator[bytes]:
        while True:
            try:
                part = await connection.part()
            except FAILURES as error:
                raise self._unanswered(f"Docker Engine at {self.path}: {error}") from error
            if part is None:
                return
            yield part

    def _unanswered(self, message: str) -> EngineError:
        self.lost.set()
        return EngineError(UNREACHABLE, message)


def target_of(version: str, path: str, query: Mapping[str, str]) -> str:
    """The target of a request. `version`: such as `1.41`, empty for calls without one."""
    prefix = f"/v{version}" if version else ""
    return f"{prefix}{path}?{urlencode(query)}" if query else f"{prefix}{path}"


def unreachable(path: str, error: Exception) -> EngineError:
    """The error of a socket that does not answer."""
    why = "no connection in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", "") or str(error)
    return EngineError(UNREACHABLE, f"Docker Engine cannot be reached at {path}: {why}; is dockerd running?")


def _request(method: str, target: str, body: bytes | None, headers: Mapping[str, str] | None = None) -> bytes:
    fields = {"Host": "docker", **(headers or {})}
    if body is not None:
        fields["Content-Type"] = "application/json"
    if body is not None or method == "POST":
        fields["Content-Length"] = str(len(body or b""))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("ascii") + (body or b"")


def _refused(status: int, body: bytes) -> EngineError:
    message = body.decode("utf-8", "replace").strip()
    try:
        message = msgspec.json.decode(body, type=_Refusal).message or message
    except msgspec.DecodeError:
        if (
            status == NOT_FOUND and message
        ):  # Podman's answer to a path that it does not know, as a missing object has JSON
            return EngineError(NO_SUCH_CALL, "the engine behind the socket has no such call")
    return EngineError(status, message[:MAX_MESSAGE] or f"status {status}")
