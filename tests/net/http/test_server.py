"""The small HTTP server, over real connections, with good and bad clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pykubelet.net.http.server import (
    HEAD_BYTES,
    Answer,
    Handler,
    HttpServer,
    Request,
    Response,
    ServedConnection,
    ServerLimits,
    StreamedResponse,
    Takeover,
    text,
)

pytestmark = pytest.mark.virtual_time


def route(request: Request) -> Response:
    if request.path == "/boom":
        raise RuntimeError("boom")
    return text(200, f"{request.method} {request.path} {sorted(request.query.items())}")


def plain(route: Callable[[Request], Response]) -> Handler:
    """A handler that does not wait for anything."""

    async def handle(request: Request, _: ServedConnection) -> Answer:
        return route(request)

    return handle


async def with_body(request: Request, connection: ServedConnection) -> Answer:
    """As `route`, and the body of the request if there is one."""
    body = await connection.read_body()
    return text(200, f"{request.method} {body.decode()}") if body else route(request)


@asynccontextmanager
async def serving(handler: Handler, limits: ServerLimits | None = None) -> AsyncIterator[int]:
    server = HttpServer(handler, limits=limits)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=HEAD_BYTES) as listener:
        yield listener.sockets[0].getsockname()[1]
        server.close()
        await asyncio.sleep(0)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serving(with_body) as number:
        yield number


async def talk(port: int, sent: bytes, *, eof: bool = True) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    if eof:
        writer.write_eof()
    async with asyncio.timeout(60):
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
    answer = await talk(
        port, b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nHEAD /2 HTTP/1.1\r\nHost: x\r\n\r\nGET /3 HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert [part in answer for part in (b"GET /1 []", b"HEAD /2 []", b"GET /3 []")] == [True, False, True]
    assert answer.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ],
)
async def test_the_connection_ends_where_the_client_wants_it(port: int, sent: bytes) -> None:
    answer = await talk(port, sent, eof=False)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /" + b"x" * (HEAD_BYTES + 1) + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA : 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\nB: 2\r\n\r\n", 400),
        (b"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\nhello", 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: 1\r\n" * 201 + b"\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\xff\r\n\r\n", 400),
    ],
)
async def test_bad_requests_are_refused(port: int, sent: bytes, status: int) -> None:
    assert (await talk(port, sent, eof=False)).startswith(f"HTTP/1.1 {status} ".encode())
    assert b"GET / []" in await talk(port, b"GET / HTTP/1.0\r\n\r\n")


async def test_a_question_that_crashes_costs_its_asker_only(port: int) -> None:
    assert (await talk(port, b"GET /boom HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 500 ")
    assert b"GET / []" in await talk(port, b"GET / HTTP/1.0\r\n\r\n")


async def test_a_client_that_leaves_in_the_middle_disturbs_no_other(port: int) -> None:
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /")
        writer.transport.abort()
    assert b"GET / []" in await talk(port, b"GET / HTTP/1.0\r\n\r\n")


async def test_bodies_are_read_and_the_connection_goes_on(port: int) -> None:
    chunked = (
        b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: 1\r\n\r\n"
    )
    answer = await talk(
        port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello" + chunked + b"GET /3 HTTP/1.0\r\n\r\n"
    )
    assert [part in answer for part in (b"POST hello", b"PUT abc", b"GET /3 []")] == [True, True, True]


async def test_a_client_that_sends_nothing_is_dropped() -> None:
    async with serving(plain(route), ServerLimits(head_s=0.05)) as port:
        assert await talk(port, b"GET / HT", eof=False) == b""


async def test_an_idle_connection_is_closed() -> None:
    async with serving(plain(route), ServerLimits(idle_s=1.0)) as port:
        assert b"GET / []" in await talk(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", eof=False)


async def test_a_new_connection_takes_the_place_of_the_one_that_has_been_idle_for_longest() -> None:
    """Whether it has sent nothing, half a request, or whole ones before."""
    async with serving(plain(route), ServerLimits(connections=3)) as port:
        silent, half, served = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        half[1].write(b"GET / HT")
        served[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await served[0].readuntil(b"[]")
        newer = []
        for idle in (silent, half, served):
            newer.append(new := await asyncio.open_connection("127.0.0.1", port))
            new[1].write(b"GET /new HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await new[0].readuntil(b"[]")
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionResetError):
                    assert await idle[0].read() == b""
        for _, writer in (silent, half, served, *newer):
            writer.close()


async def test_where_no_connection_is_idle_the_newest_is_closed() -> None:
    endless = Endless()

    async def handle(_: Request, __: ServedConnection) -> Answer:
        return StreamedResponse(200, endless.chunks())

    async with serving(handle, ServerLimits(connections=1)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"tick")
        with contextlib.suppress(ConnectionResetError):
            assert await talk(port, b"", eof=False) == b""
        await reader.readuntil(b"tick")
        writer.close()


async def test_a_client_with_many_connections_makes_way_for_others() -> None:
    """As a pod that keeps all connections of the local API busy, with watches or with bodies that never come."""
    endless = Endless()

    async def handle(request: Request, _: ServedConnection) -> Answer:
        return StreamedResponse(200, endless.chunks()) if request.path == "/busy" else route(request)

    async with serving(handle, ServerLimits(connections=3)) as port:
        busy = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(3)]
        for reader, writer in busy:
            writer.write(b"GET /busy HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"tick")
        assert b"GET /other" in await talk(port, b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionResetError):
                await busy[0][0].read()
        for reader, _ in busy[1:]:
            await reader.readuntil(b"tick")
        for _, writer in busy:
            writer.close()


class Endless:
    """Chunks for ever; knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"tick\n"
                await asyncio.sleep(0.001)
        finally:
            self.closed.set()


async def test_a_stream_is_sent_as_it_comes_and_ends_when_the_client_leaves() -> None:
    endless = Endless()

    async def handle(_: Request, __: ServedConnection) -> Answer:
        return StreamedResponse(200, endless.chunks())

    async with serving(handle) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        assert await reader.readexactly(10) == b"5\r\ntick\n\r\n"
        assert not endless.closed.is_set()
        writer.close()
        async with asyncio.timeout(60):
            await endless.closed.wait()


async def test_the_end_of_a_connection_is_not_taken_for_that_of_its_stream() -> None:
    """A stream may take a moment to end, and meanwhile the connection is closed for another one."""
    ending, ended = asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"tick"
            await asyncio.get_running_loop().create_future()
        finally:
            ending.set()
            await ended.wait()

    async def handle(_: Request, __: ServedConnection) -> Answer:
        return StreamedResponse(200, chunks())

    near, far = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=near)
    serving = asyncio.ensure_future(HttpServer(handle).serve(*await asyncio.open_connection(sock=far)))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"tick")
    writer.close()
    await ending.wait()
    serving.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait((serving,))
    assert serving.cancelled()


async def test_a_stream_that_has_nothing_to_say_ends_with_its_limit() -> None:
    closed = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"once"
            await asyncio.get_running_loop().create_future()
        finally:
            closed.set()

    async def handle(_: Request, __: ServedConnection) -> Answer:
        return StreamedResponse(200, chunks())

    async with serving(handle, ServerLimits(stream_idle_s=1.0)) as port:
        answer = await talk(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", eof=False)
        assert answer.endswith(b"4\r\nonce\r\n")  # cut off: no end of the chunks
        assert closed.is_set()


async def test_a_stream_of_which_nothing_is_taken_ends_with_its_limit() -> None:
    endless = Endless()

    async def loud(_: Request, __: ServedConnection) -> Answer:
        async def chunks() -> AsyncIterator[bytes]:
            async for chunk in endless.chunks():
                yield chunk * 100_000

        return StreamedResponse(200, chunks())

    async with serving(loud, ServerLimits(stream_idle_s=1.0)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(60):
            await endless.closed.wait()
            while await reader.read(1 << 20):  # what it did not take is not kept for it: the connection ends
                pass
        writer.close()
        await writer.wait_closed()


async def ticks(_: Request, connection: ServedConnection) -> Answer:
    await connection.read_body()

    async def chunks() -> AsyncIterator[bytes]:
        for tick in (b"one", b"two"):
            await asyncio.sleep(0.01)
            yield tick

    return StreamedResponse(200, chunks())


@pytest.mark.parametrize(
    ("method", "content", "body"),
    [
        (b"GET", b"0123456789abcdef", b"10\r\n0123456789abcdef\r\n0\r\n\r\n"),
        (b"GET", b"", b"0\r\n\r\n"),
        (b"HEAD", b"once", b""),
    ],
)
async def test_a_whole_answer_may_look_like_a_stream(method: bytes, content: bytes, body: bytes) -> None:
    async def whole(_: Request, __: ServedConnection) -> Answer:
        return Response(200, content, is_chunked=True)

    async def stream(_: Request, __: ServedConnection) -> Answer:
        async def chunks() -> AsyncIterator[bytes]:
            yield content

        return StreamedResponse(200, chunks())

    request = method + b" / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving(whole) as port, serving(stream) as other:
        answer = await talk(port, request * 2)
        assert answer == await talk(other, request * 2)
    head = answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    assert b"Transfer-Encoding: chunked" in head and b"Content-Length" not in head
    assert answer == (head + body) * 2


async def test_the_next_request_comes_on_the_connection_of_a_stream() -> None:
    async with serving(ticks) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(60):
            for _ in range(3):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"Connection: close" not in await reader.readuntil(b"\r\n\r\n")
                assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        writer.close()
        await writer.wait_closed()


async def test_who_asks_on_during_a_stream_gets_it_whole_and_then_the_next_answer() -> None:
    requests = (
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody" * 2
    )
    async with serving(ticks) as port:
        answers = await talk(port, requests + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", eof=False)
    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n") == 4


async def test_who_leaves_after_speaking_into_a_stream_ends_it() -> None:
    endless = Endless()

    async def handle(_: Request, __: ServedConnection) -> Answer:
        return StreamedResponse(200, endless.chunks())

    async with serving(handle) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"tick")
        writer.transport.abort()
        async with asyncio.timeout(60):
            await endless.closed.wait()


async def test_a_stream_ends_the_connection_where_the_client_wants_it() -> None:
    async with serving(ticks) as port:
        answer = await talk(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", eof=False)
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.endswith(b"0\r\n\r\n")


async def test_a_stream_that_fails_is_cut_off_without_its_end() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"half"
        raise OSError("the disk is gone")

    async def handle(_: Request, __: ServedConnection) -> Answer:
        return StreamedResponse(200, chunks())

    async with serving(handle) as port:
        answer = await talk(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", eof=False)
    assert b"half" in answer
    assert not answer.endswith(b"0\r\n\r\n")


async def test_a_connection_can_be_handed_over() -> None:
    async def echo(connection: ServedConnection) -> None:
        while data := await connection.reader.read(100):
            connection.writer.write(data.upper())

    async def handle(request: Request, _: ServedConnection) -> Answer:
        assert request.is_upgrade
        return Takeover(echo)

    async with serving(handle) as port:
        sent = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: x\r\n\r\nearly bytes"
        assert await talk(port, sent) == b"EARLY BYTES"


async def test_a_body_is_read_only_if_the_handler_asks_for_it() -> None:
    """A client that waits for `100 Continue` gets it only then."""

    async def handle(request: Request, connection: ServedConnection) -> Answer:
        if request.path == "/refused":
            return text(401, "Unauthorized")
        return text(200, (await connection.read_body()).decode())

    head = b"POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 60000\r\n\r\n"
    async with serving(handle) as port:
        refused = await talk(port, head % b"/refused", eof=False)
        assert refused.startswith(b"HTTP/1.1 401 ") and b"\r\nConnection: close\r\n" in refused
        asked = await talk(port, head % b"/asked" + b"a" * 60000)
        assert asked.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n") and asked.endswith(b"a" * 60000)


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_server_may_take_larger_bodies(is_chunked: bool) -> None:
    """Up to its limit, and not one byte more."""
    limit = 200_000
    async with serving(with_body, ServerLimits(body_bytes=limit)) as port:

        async def send(size: int) -> bytes:
            framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % size
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"a" * size) if is_chunked else b"a" * size
            return await talk(port, b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n" + body)

        assert (await send(limit)).endswith(b"a" * limit)
        assert (await send(limit + 1)).startswith(b"HTTP/1.1 413 ")


async def test_a_body_that_nothing_read_is_not_taken_for_a_request(port: int) -> None:
    async with serving(plain(route)) as deaf:
        hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
        head = b"POST /first HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(hidden)
        answer = await talk(deaf, head + hidden, eof=False)
    assert answer.count(b"HTTP/1.1 ") == 1 and b"POST /first" in answer


async def test_a_body_that_does_not_come_is_waited_for_only_so_long() -> None:
    async with serving(with_body, ServerLimits(head_s=0.05)) as port:
        sent = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe"
        assert (await talk(port, sent, eof=False)).startswith(b"HTTP/1.1 408 ")


async def test_requests_sent_at_once_hold_up_no_other_connection(port: int) -> None:
    """The answer to the other connection comes before the last of the many."""
    many, other = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    many[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 500 + b"GET /last HTTP/1.0\r\n\r\n")
    other[1].write(b"GET /other HTTP/1.0\r\n\r\n")
    order: list[str] = []

    async def read(name: str, reader: asyncio.StreamReader) -> None:
        await reader.readuntil(name.encode())
        order.append(name)

    async with asyncio.timeout(60):
        await asyncio.gather(read("/last", many[0]), read("/other", other[0]))
    assert order == ["/other", "/last"]
    for _, writer in (many, other):
        writer.close()
        await writer.wait_closed()
