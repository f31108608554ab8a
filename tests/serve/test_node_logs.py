"""The node's own logs: files and listings, queries, and what no client may read through them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.net.http.server import (
    HEAD_BYTES,
    Answer,
    Closable,
    HttpServer,
    Request,
    Response,
    ServedConnection,
    StreamedResponse,
)
from pykubelet.serve.endpoints.node_logs import MAX_QUERIES, PIECE, NodeLogs, QueryRefused, journal_command, parse_query

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    root = tmp_path / "log"
    (root / "pods").mkdir(parents=True)
    (root / "syslog").write_text("hello\n")
    (root / "svc").mkdir()
    (root / "svc" / "svc.log").write_text("of a service\n")
    (root / "odd & name").write_text("x" * 600_000)
    (tmp_path / "secret").write_text("top secret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("..")
    (root / "in").symlink_to(root / "syslog")
    os.mkfifo(root / "pipe")
    return root


@pytest.mark.parametrize(
    ("method", "query", "queries", "allowed"),
    [
        ("POST", "", True, "GET"),
        ("POST", "query=svc", False, "GET"),
        ("POST", "query=svc", True, ""),
        ("PUT", "query=svc", True, "GET, POST"),
        ("DELETE", "", True, "GET"),
    ],
)
async def test_files_can_be_read_and_queries_also_posted(
    logs: Path, method: str, query: str, queries: bool, allowed: str
) -> None:
    handler = NodeLogs(SingleFlight("test"), queries=queries, root=str(logs))
    answer = await handler.answer(Request(method, "/logs/", query))
    if allowed:
        assert isinstance(answer, Response)
        assert (answer.status, answer.body, answer.headers["Allow"]) == (405, b"405: Method Not Allowed", allowed)
    else:
        assert isinstance(answer, StreamedResponse) and isinstance(answer.chunks, Closable)
        assert answer.status == 200
        await answer.chunks.aclose()


async def ask(logs: Path, path: str, **query: list[str]) -> tuple[int, str]:
    handler = NodeLogs(SingleFlight("test"), queries=True, root=str(logs))
    answer = await handler.answer(Request("GET", path, urlencode(query or {}, doseq=True)))
    if isinstance(answer, StreamedResponse):
        output = b"".join([chunk async for chunk in answer.chunks]).decode()
        assert isinstance(answer.chunks, Closable)
        await answer.chunks.aclose()
        return answer.status, output
    assert isinstance(answer, Response)
    return answer.status, answer.body.decode()


async def test_files_and_listings(logs: Path) -> None:
    status, listing = await ask(logs, "/logs/")
    assert status == 200 and listing.startswith("<pre>\n")
    assert '<a href="odd%20%26%20name">odd &amp; name</a>' in listing and '<a href="pods/">pods/</a>' in listing
    assert await ask(logs, "/logs/syslog") == (200, "hello\n")
    assert await ask(logs, "/logs/in") == (200, "hello\n")
    assert await ask(logs, "/logs/odd & name") == (200, "x" * 600_000)
    assert (await ask(logs, "/logs/pods"))[0] == 301


@pytest.mark.parametrize(
    "path",
    ["../secret", "pods/../../secret", "out", "up", "up/secret", "pipe", "nothing", "%2e%2e/secret", "/etc/passwd"],
)
async def test_nothing_outside_is_shown(logs: Path, path: str) -> None:
    assert await ask(logs, f"/logs/{path}") == (404, "404 page not found\n")


async def served(logs: Path, asked: bytes) -> bytes:
    """The answer as it goes over a connection, which ends with it."""
    handler = NodeLogs(SingleFlight("test"), queries=True, root=str(logs))

    async def handle(request: Request, _: ServedConnection) -> Answer:
        return await handler.answer(request)

    server = HttpServer(handle)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=HEAD_BYTES) as listener:
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(asked)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer


async def test_who_asks_for_the_head_of_a_file_gets_its_length_and_leaves_no_file_open(logs: Path) -> None:
    asked = (
        b"HEAD /logs/syslog HTTP/1.1\r\nHost: x\r\n\r\n" * 20
        + b"GET /logs/syslog HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    answer = await served(logs, asked)
    assert answer.count(b"\r\nContent-Length: 6\r\n") == 20
    assert answer.count(b"Transfer-Encoding") == 1  # of the last answer, which has a body
    assert answer.endswith(b"6\r\nhello\n\r\n0\r\n\r\n")
    assert str(logs / "syslog") not in open_files()


def open_files() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


async def test_a_service_without_a_journal_is_looked_for_among_the_files(logs: Path) -> None:
    assert await ask(logs, "/logs/", query=["svc"]) == (200, "of a service\n")
    assert await ask(logs, "/logs/", query=["pods/../syslog"]) == (
        200,
        "open {}: no such file or directory\n".format(logs / "pods/../syslog"),
    )
    status, text = await ask(logs, "/logs/", query=["missing"])
    assert status == 200 and "failed to get logs for missing" in text
    status, text = await ask(logs, "/logs/", query=["svc", "missing"], tailLines=["1"])
    assert status == 200 and text.startswith("\noptions present and query resolved to log files for [svc missing]\n")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"query": ["a", "b", "c", "d", "e"]}, 406),
        ({"query": ["a b"]}, 406),
        ({"query": ["x" * 257]}, 406),
        ({"query": ["/a", "/b"]}, 406),
        ({"query": ["/a"], "tailLines": ["3"]}, 406),
        ({"query": ["a"], "tailLines": ["100001"]}, 406),
        ({"query": ["a"], "boot": ["1"]}, 406),
        ({"query": ["a"], "sinceTime": ["2026-01-02T03:04:05Z"], "untilTime": ["2026-01-02T03:04:04Z"]}, 406),
        ({"query": [""]}, 406),
        ({"query": ["a"], "tailLines": ["x"]}, 400),
        ({"query": ["a"], "sinceTime": ["yesterday"]}, 400),
    ],
)
def test_queries_that_are_refused(query: dict[str, list[str]], status: int) -> None:
    with pytest.raises(QueryRefused) as caught:
        parse_query(query)
    assert caught.value.status == status


def test_the_journal_is_asked_without_a_shell() -> None:
    given = {
        "query": ["kubelet"],
        "sinceTime": ["2026-01-02T03:04:05Z"],
        "tailLines": ["7"],
        "pattern": ["; rm -rf /"],
        "boot": ["-1"],
    }
    assert journal_command(parse_query(given), ("kubelet",)) == (
        *("journalctl", "--utc", "--no-pager", "--output=short-precise", "--since=2026-01-02 03:04:05", "--pager-end"),
        *("--lines=7", "--unit=kubelet", "--grep=; rm -rf /", "--case-sensitive=false", "--boot", "-1"),
    )


async def test_a_link_that_is_swapped_while_it_is_opened_leads_nowhere(logs: Path, tmp_path: Path) -> None:
    """Many tries against a link that changes between inside and outside."""
    swap = logs / "swap"
    swap.symlink_to(logs / "syslog")
    stop = asyncio.Event()

    async def keep_swapping() -> None:
        while not stop.is_set():
            for target in (tmp_path / "secret", logs / "syslog"):
                new = logs / "swap.new"
                new.symlink_to(target)
                new.replace(swap)
            await asyncio.sleep(0)

    swapping = asyncio.get_running_loop().create_task(keep_swapping())
    found = {(await ask(logs, "/logs/swap"))[1] for _ in range(200)}
    stop.set()
    await swapping
    assert found <= {"hello\n", "404 page not found\n"}


async def test_what_a_link_leads_to_is_not_even_opened(logs: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (logs / "link").symlink_to(pipe)
    writer = threading.Thread(target=lambda: os.close(os.open(pipe, os.O_WRONLY)))
    writer.start()  # waits until a reader opens the other end
    try:
        await asyncio.sleep(0.1)
        assert (await ask(logs, "/logs/link"))[0] == 404
        assert (await ask(logs, "/logs/pipe"))[0] == 404
        writer.join(0.3)
        assert writer.is_alive()
    finally:
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        writer.join()


def query(query: str, **headers: str) -> Request:
    return Request(
        "GET", "/logs/", urlencode({"query": query}), {name.replace("_", "-"): v for name, v in headers.items()}
    )


async def test_the_answer_to_a_query_is_compressed_piece_by_piece(logs: Path) -> None:
    (logs / "large").write_bytes(output := os.urandom(3 * PIECE + 7))
    handler = NodeLogs(SingleFlight("test"), queries=True, root=str(logs))
    answer = await handler.answer(query("/large", accept_encoding="gzip"))
    assert isinstance(answer, StreamedResponse) and answer.headers == {"Content-Encoding": "gzip"}
    pieces = [piece async for piece in answer.chunks]
    assert gzip.decompress(b"".join(pieces)) == output
    assert max(map(len, pieces)) < PIECE + PIECE // 8


async def test_few_queries_are_answered_at_a_time(logs: Path) -> None:
    """Until their clients have read the answers or left."""
    handler = NodeLogs(SingleFlight("test"), queries=True, root=str(logs))
    answers = [await handler.answer(query("/syslog")) for _ in range(MAX_QUERIES)]
    refused = await handler.answer(query("/syslog"))
    assert isinstance(refused, Response) and refused.status == 429
    for answer in answers:
        assert isinstance(answer, StreamedResponse) and isinstance(answer.chunks, Closable)
        await answer.chunks.aclose()
        await answer.chunks.aclose()
    again = await handler.answer(query("/syslog"))
    assert isinstance(again, StreamedResponse)
    assert [piece async for piece in again.chunks] == [b"hello\n"]


async def test_names_that_are_not_utf_8_are_listed(logs: Path) -> None:
    Path(os.fsdecode(os.fsencode(logs) + b"/caf\xe9")).write_text("")
    handler = NodeLogs(SingleFlight("test"), queries=True, root=str(logs))
    answer = await handler.answer(Request("GET", "/logs/"))
    assert isinstance(answer, Response)
    assert b'<a href="caf%E9">caf\xe9</a>' in answer.body
