"""The small HTTP server, over real connections, with good and bad clients."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import pytest

from pykubelet.report.server import http
from pykubelet.report.server.http import HEAD_BYTES, HttpServer, Request, Response, text


def route(request: Request) -> Response:
    if request.path == "/boom":
        raise RuntimeError("boom")
    return text(200, f"{request.method} {request.path} {sorted(request.query.items())}")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = HttpServer(route)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=HEAD_BYTES) as listener:
        yield listener.sockets[0].getsockname()[1]
        server.close()
        await asyncio.sleep(0)


async def talk(port: int, sent: bytes, *, eof: bool = True) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    if eof:
        writer.write_eof()
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_an_ordinary_client_gets_its_answer(port: int) -> None:
    def get() -> tuple[int, bytes, str | None]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/a%20b?x=1&y&x=2") as answer:
            return answer.status, answer.read(), answer.headers["Content-Type"]

    found = await asyncio.get_running_loop().run_in_executor(None, get)
    assert found == (200, b"GET /a b [('x', ['1', '2']), ('y', [''])]", "text/plain; charset=utf-8")


async def test_several_requests_on_one_connection(port: int) -> None:
    answer = await talk(port, b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nHEAD /2 HTTP/1.1\r\n\r\nGET /3 HTTP/1.1\r\n\r\n")
    assert [part in answer for part in (b"GET /1 []", b"HEAD /2 []", b"GET /3 []")] == [True, False, True]
    assert answer.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_the_connection_ends_where_the_client_wants_it_or_a_body_follows(port: int, sent: bytes) -> None:
    answer = await talk(port, sent, eof=False)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"x" * (HEAD_BYTES + 1) + b" HTTP/1.1\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\xff\r\n\r\n", 400),
    ],
)
async def test_bad_requests_are_refused(port: int, sent: bytes, status: int) -> None:
    assert (await talk(port, sent, eof=False)).startswith(f"HTTP/1.1 {status} ".encode())
    assert b"GET / []" in await talk(port, b"GET / HTTP/1.0\r\n\r\n")


async def test_a_question_that_crashes_costs_its_asker_only(port: int) -> None:
    assert (await talk(port, b"GET /boom HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 500 ")
    assert b"GET / []" in await talk(port, b"GET / HTTP/1.0\r\n\r\n")


async def test_a_client_that_says_nothing_is_dropped(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_DEADLINE_S", 0.05)
    assert await talk(port, b"GET / HT", eof=False) == b""


async def test_a_client_that_leaves_in_the_middle_disturbs_nobody(port: int) -> None:
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\nGET /")
        writer.transport.abort()
    assert b"GET / []" in await talk(port, b"GET / HTTP/1.0\r\n\r\n")


async def test_too_many_connections_are_turned_away(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"[]")
    assert await talk(port, b"", eof=False) == b""
    writer.close()
    await writer.wait_closed()
