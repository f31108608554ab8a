"""`/logs/`: the files below /var/log, and with `enableSystemLogQuery` the logs of services by name.

Owns: the format of the query and of the answers. Source: KEP-2258; the Kubernetes documentation "System Logs".
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from urllib.parse import quote

from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.flight import Done, SingleFlight, value_of
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.shown_tree import ShownDirectory, ShownFile, close_shown, open_shown, read_shown
from pykubelet.edges.host.services.process import run_program
from pykubelet.net.http.server import Answer, Request, Response, StreamedResponse, text
from pykubelet.serve.endpoints.endpoint import GET, GET_OR_POST, wrong_method

T = TypeVar("T")
ROOT = "/var/log"
HTML = "text/html; charset=utf-8"
PLAIN = "text/plain; charset=utf-8"
QUERY_TYPE = "text/plain;charset=UTF-8"
READ_DEADLINE_S = 30.0
QUERY_DEADLINE_S = 30.0
QUERY_BYTES = 64 << 20
#: The most queries at a time. Each may hold QUERY_BYTES until its client has read them.
MAX_QUERIES = 2
PIECE = 1 << 20
MAX_SERVICES, MAX_NAME, MAX_TAIL = 4, 256, 100_000
AS_FILES = "\noptions present and query resolved to log files for [{}]\ntry without specifying options\n"
TOO_MANY = Response(429, b"too many log queries at once; try again later\n", headers={"Retry-After": "5"})
_SERVICE = re.compile(r"[a-zA-Z\-_.:0-9@]+")


class QueryRefused(Exception):
    """A query is refused. `status` 400: it is malformed; 406: it is not allowed."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class LogQuery(Value):
    """A query for logs. `since`, `until`: as given (RFC 3339). `boot`: 0 or less; None: all boots."""

    services: tuple[str, ...] = ()
    file: str = ""
    since: str = ""
    until: str = ""
    tail: int | None = None
    pattern: str = ""
    boot: int | None = None

    @property
    def has_options(self) -> bool:
        """Whether the query has options that select a part of the logs."""
        return bool(self.since or self.until or self.pattern) or self.tail is not None or self.boot is not None


def parse_query(query: Mapping[str, list[str]]) -> LogQuery:
    """Parse a query. Raises QueryRefused."""
    names = [name for name in query.get("query", []) if name]
    files = tuple(name for name in names if "/" in name or "\\" in name)
    services = tuple(name for name in names if name not in files)
    since, until = _first(query, "sinceTime"), _first(query, "untilTime")
    for moment in (since, until):
        if moment:
            try:
                parse_time(moment)
            except ValueError as error:
                raise QueryRefused(400, str(error)) from error
    found = LogQuery(
        services,
        files[0] if files else "",
        since,
        until,
        _integer(query, "tailLines"),
        _first(query, "pattern"),
        _integer(query, "boot"),
    )
    _check(found, files)
    return found


def _check(found: LogQuery, files: tuple[str, ...]) -> None:
    problem = ""
    if len(files) > 1:
        problem = "query: at most one file may be named"
    elif files and (found.services or found.has_options):
        problem = "query: a file cannot be combined with services or options"
    elif len(found.services) > MAX_SERVICES:
        problem = f"query: at most {MAX_SERVICES} services may be named"
    elif any(len(name) > MAX_NAME or not _SERVICE.fullmatch(name) for name in found.services):
        problem = "query: a service's name has letters, digits and -_.:@ only"
    elif found.tail is not None and not 0 <= found.tail <= MAX_TAIL:
        problem = f"tailLines: must be from 0 to {MAX_TAIL}"
    elif found.boot is not None and found.boot > 0:
        problem = "boot: must be 0 or less"
    elif found.since and found.until and parse_time(found.since) > parse_time(found.until):
        problem = "untilTime: must be after sinceTime"
    elif not found.services and not found.file:
        problem = "query: name a service or a file"
    if problem:
        raise QueryRefused(406, problem)


def _first(query: Mapping[str, list[str]], name: str) -> str:
    values = query.get(name)
    return values[0] if values else ""


def _integer(query: Mapping[str, list[str]], name: str) -> int | None:
    value = _first(query, name)
    if not value:
        return None
    try:
        return int(value)
    except ValueError as error:
        raise QueryRefused(400, f"{name}: {value!r} is no whole number") from error


def journal_command(query: LogQuery, services: tuple[str, ...]) -> tuple[str, ...]:
    """The journalctl command for these services."""
    command = ["journalctl", "--utc", "--no-pager", "--output=short-precise"]
    command += [f"--since={_journal_time(query.since)}"] if query.since else []
    command += [f"--until={_journal_time(query.until)}"] if query.until else []
    command += ["--pager-end", f"--lines={query.tail}"] if query.tail is not None else []
    command += [f"--unit={name}" for name in services]
    command += [f"--grep={query.pattern}", "--case-sensitive=false"] if query.pattern else []
    command += ["--boot", str(query.boot)] if query.boot is not None else []
    return tuple(command)


def _journal_time(moment: str) -> str:
    return moment[:19].replace("T", " ")


class _FileChunks:
    """The chunks of a file, up to its size when it was opened. Holds the file open until closed."""

    def __init__(self, file: ShownFile, read: Callable[[int], Awaitable[bytes]]) -> None:
        self._file = file
        self._read = read
        self._at = 0
        self._is_open = True

    def __aiter__(self) -> _FileChunks:
        return self

    async def __anext__(self) -> bytes:
        data = await self._read(self._at) if self._at < self._file.size else b""
        if not data:
            raise StopAsyncIteration
        self._at += len(data)
        return data

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            close_shown(self._file)


class _QueryChunks:
    """The result of a query in pieces, compressed in a thread if `gzip`. `release` is called once, at the end."""

    def __init__(self, found: bytes, flight: SingleFlight, release: Callable[[], None], *, gzip: bool) -> None:
        self._found = found
        self._flight = flight
        self._release: Callable[[], None] | None = release
        self._zip = zlib.compressobj(1, wbits=zlib.MAX_WBITS | 16) if gzip else None
        self._at = 0

    def __aiter__(self) -> _QueryChunks:
        return self

    async def __anext__(self) -> bytes:
        piece = self._found[self._at : self._at + PIECE]
        self._at += len(piece)
        if self._zip is None:
            if not piece:
                raise StopAsyncIteration
            return piece
        return await self._compressed(self._zip, piece)

    async def _compressed(self, compressor: zlib._Compress, piece: bytes) -> bytes:
        def work() -> bytes:
            return compressor.compress(piece) if piece else compressor.flush()

        done = await self._flight.run(f"node-log-zip:{id(self)}", work, READ_DEADLINE_S)
        if not isinstance(done, Done):
            raise OSError("the answer could not be compressed in time")
        if not piece:
            self._zip = None
        return done.value

    async def aclose(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class NodeLogs:
    """The handler. `queries`: enableSystemLogQuery."""

    def __init__(self, flight: SingleFlight, *, queries: bool, root: str = ROOT) -> None:
        self._flight = flight
        self._queries = queries
        self._root = root
        self._running = 0

    async def answer(self, request: Request) -> Answer:
        """A file, a directory listing or, with `?query=`, the logs of services (KEP-2258)."""
        is_query = "query" in request.query and self._queries
        methods = GET_OR_POST if is_query else GET
        if request.method not in methods:
            return wrong_method(methods)
        if is_query:
            return await self._query(request)
        path = request.path.removeprefix("/logs").lstrip("/")
        try:
            found = await self._run(path, lambda: open_shown(self._root, path))
        except HostError as error:
            return text(404, "404 page not found\n") if error.is_not_found else text(403, "403 Forbidden\n")
        if isinstance(found, ShownDirectory):
            return self._directory(request, found)
        headers = {"Content-Length": str(found.size)} if request.method == "HEAD" else {}
        return StreamedResponse(
            200, _FileChunks(found, lambda at: self._run(path, lambda: read_shown(found, at))), PLAIN, headers
        )

    def _directory(self, request: Request, found: ShownDirectory) -> Response:
        if not request.path.endswith("/"):
            return Response(301, b"", headers={"Location": quote(request.path.rpartition("/")[2]) + "/"})
        import html  # rarely needed, only for browsers

        lines = [f'<a href="{quote(os.fsencode(name))}">{html.escape(name)}</a>' for name in found.names]
        return Response(200, ("<pre>\n" + "\n".join(lines) + "\n</pre>\n").encode("utf-8", "surrogateescape"), HTML)

    async def _query(self, request: Request) -> Answer:
        try:
            query = parse_query(request.query)
        except QueryRefused as error:
            return text(error.status, f"{error}\n")
        if self._running >= MAX_QUERIES:
            return TOO_MANY
        self._running += 1
        try:
            found = await (self._of_file(query.file) if query.file else self._of_services(query))
        except HostError as error:
            found = f"{error}\n".encode()
        except BaseException:
            self._release()
            raise
        gzip = request.headers.get("accept-encoding") == "gzip"
        chunks = _QueryChunks(found, self._flight, self._release, gzip=gzip)
        return StreamedResponse(200, chunks, QUERY_TYPE, {"Content-Encoding": "gzip"} if gzip else {})

    def _release(self) -> None:
        self._running -= 1

    async def _of_services(self, query: LogQuery) -> bytes:
        units = await self._units()
        known = tuple(name for name in query.services if f"{name}.service" in units)
        files = [name for name in query.services if name not in known]
        if files and query.has_options:  # options do not apply to files, which are always returned whole
            return AS_FILES.format(" ".join(files)).encode()
        parts = []
        if known:
            done = await run_program(journal_command(query, known), timeout_s=QUERY_DEADLINE_S, limit=QUERY_BYTES)
            parts.append(done.out or done.err)
        for name in files:
            parts.append(await self._of_log_file(name))
        return b"".join(parts)

    async def _units(self) -> frozenset[str]:
        try:
            argv = ("journalctl", "--utc", "--no-pager", "--field", "_SYSTEMD_UNIT")
            done = await run_program(argv, timeout_s=QUERY_DEADLINE_S)
        except HostError:
            return frozenset()  # no journal on this machine
        return frozenset(done.out.decode(errors="replace").split())

    async def _of_log_file(self, service: str) -> bytes:
        for path in (service, f"{service}.log", f"{service}/{service}.log"):
            try:
                return await self._of_file(path)
            except HostError as error:
                if not error.is_not_found and error.errno_name != "EISDIR":
                    raise
        return f"failed to get logs for {service}: no journal of it and no file below {self._root}\n".encode()

    async def _of_file(self, path: str) -> bytes:
        def read() -> bytes:
            found = open_shown(self._root, path)
            if isinstance(found, ShownDirectory):
                raise HostError("read", path, "EISDIR", "is a directory")
            try:
                return read_shown(found, 0, min(found.size, QUERY_BYTES))
            finally:
                close_shown(found)

        return await self._run(path, read)

    async def _run(self, path: str, work: Callable[[], T]) -> T:
        return value_of(
            await self._flight.run(f"node-log:{path}:{id(work)}", work, READ_DEADLINE_S),
            lambda _: HostError("read", path, "ETIMEDOUT", "the disk does not answer"),
        )
