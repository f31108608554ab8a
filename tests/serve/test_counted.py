"""Metrics of HTTP requests: their labels, and that each request is counted however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.logs import logging_restored

from pykubelet.base.kit.log import set_up_logging
from pykubelet.net.http.server import (
    HEAD_BYTES,
    Answer,
    HttpServer,
    Request,
    ServedConnection,
    StreamedResponse,
    Takeover,
    text,
)
from pykubelet.serve.endpoints.counted import DURATIONS, IN_FLIGHT, READ_ONLY, REQUESTS, counted, request_labels
from pykubelet.serve.endpoints.endpoint import metric_labels
from pykubelet.serve.endpoints.table import ENDPOINTS

PATHS = metric_labels(ENDPOINTS)


class Asked:
    """A server whose streams end once `go` is set, and the counts since it began."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.port = 0
        self._before: dict[str, tuple[float, float]] = {}

    async def handle(self, request: Request, _: ServedConnection) -> Answer:
        match request.path:
            case "/containerLogs/a/b/c":
                return StreamedResponse(200, self._chunks())
            case "/exec/a/b/c":
                return Takeover(self._talk)
            case "/stats/summary":
                raise RuntimeError("a bug")
        return text(401, "Unauthorized")

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield b"one"
        await self.go.wait()

    async def _talk(self, connection: ServedConnection) -> None:
        connection.writer.write(b"hello")
        await self.go.wait()

    async def asking(self, path: str, words: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        labels = request_labels(Request("GET", path), READ_ONLY, PATHS)
        self._before[path] = REQUESTS.value(*labels), DURATIONS.count(*labels)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET " + path.encode() + b" HTTP/1.1\r\nHost: x\r\n" + words + b"\r\n")
        await reader.readuntil(b"hello" if b"Upgrade" in words else b"\r\n\r\n")
        return reader, writer

    def counts(self, path: str) -> tuple[float, float, float]:
        """Requests that arrived, are in flight, have ended."""
        labels = request_labels(Request("GET", path), READ_ONLY, PATHS)
        came, ended = self._before[path]
        return REQUESTS.value(*labels) - came, IN_FLIGHT.value(*labels), DURATIONS.count(*labels) - ended


@asynccontextmanager
async def asked() -> AsyncIterator[Asked]:
    world = Asked()
    server = HttpServer(counted(world.handle, READ_ONLY, PATHS))
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=HEAD_BYTES) as listener:
        world.port = listener.sockets[0].getsockname()[1]
        async with asyncio.timeout(60):
            yield world
        server.close()


@pytest.mark.parametrize("path", ["/pods", "/stats/summary"])
async def test_refused_and_failed_requests_are_counted(path: str) -> None:
    async with asked() as world:
        _, writer = await world.asking(path)
        assert world.counts(path) == (1, 0, 1)
        writer.close()
        await writer.wait_closed()


async def test_requests_are_logged_from_verbosity_three_on(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_restored():
        for verbosity, lines in ((2, 0), (3, 1)):
            set_up_logging(verbosity)
            async with asked() as world:
                _, writer = await world.asking("/pods", b"User-Agent: curl\r\n")
                writer.close()
                await writer.wait_closed()
            logged = capsys.readouterr().err
            assert logged.count('"HTTP"') == lines
    assert ' verb="GET" URI="/pods" latency="' in logged
    assert logged.endswith(' userAgent="curl" srcIP="127.0.0.1" resp=401\n')


@pytest.mark.parametrize(
    ("path", "words"),
    [("/containerLogs/a/b/c", b"Connection: close\r\n"), ("/exec/a/b/c", b"Connection: Upgrade\r\nUpgrade: x\r\n")],
)
async def test_a_stream_is_under_way_until_its_end(path: str, words: bytes) -> None:
    async with asked() as world:
        reader, writer = await world.asking(path, words)
        assert world.counts(path) == (1, 1, 0)
        world.go.set()
        await reader.read()
        assert world.counts(path) == (1, 0, 1)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("method", "path", "labels"),
    [
        ("GET", "/metrics/cadvisor", ("GET", "metrics/cadvisor", "readonly", "false")),
        ("GET", "/pods/", ("GET", "pods", "readonly", "false")),
        ("BREW", "/exec/a/b/c", ("other", "exec", "readonly", "true")),
        ("GET", "/made/up", ("GET", "other", "readonly", "false")),
        ("GET", "/page/state", ("GET", "other", "readonly", "false")),
        ("GET", "/metrics/none", ("GET", "other", "readonly", "false")),
        ("PUT", "/debug/flags/v", ("PUT", "debug", "readonly", "true")),
    ],
)
def test_the_labels_have_few_values(method: str, path: str, labels: tuple[str, ...]) -> None:
    assert request_labels(Request(method, path), READ_ONLY, PATHS) == labels
