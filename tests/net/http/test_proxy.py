"""The runtime's streaming server, as the proxy sees it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from pykubelet.net.http.proxy import MUCH, Backend, open_backend, proxy_upgrade
from pykubelet.net.http.server import HEAD_BYTES, Answer, HttpServer, Request, Response, ServedConnection
from pykubelet.net.http.upgrade import ANSWER_BYTES

pytestmark = pytest.mark.virtual_time

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"


async def everything(backend: Backend) -> bytes:
    received = b""
    while data := await backend.read(1000):
        received += data
    return received


async def test_what_was_sent_before_a_reset_is_read() -> None:
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH + b"the last words")
        await writer.drain()
        at_once = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.transport.abort()
        gone.set()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        opened = await open_backend("POST", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/exec", {})
        assert not isinstance(opened, Response)
        backend, _ = opened
        await gone.wait()
        await asyncio.sleep(0.05)
        assert await everything(backend) == b"the last words"
        backend.writer.close()


async def test_a_server_that_is_not_there_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as missing:
        port = missing.getsockname()[1]
    answer = await open_backend("POST", f"http://127.0.0.1:{port}/exec", {})
    assert isinstance(answer, Response)
    assert answer.status == 500 and answer.body.startswith(b"error dialing backend: ")


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\nrest", 403, b"no\n"),
        (b"HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nno \r\n4\r\nmore\r\n0\r\n\r\n", 500, b"no more"),
        (b"HTTP/1.1 400 x\r\nConnection: close\r\n\r\n" + b"x" * 100_000, 400, b"x" * ANSWER_BYTES),
        (b"HTTP/1.1 400 x\r\nContent-Length: 9\r\n\r\nhalf", 400, b"half"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n", 404, b""),
        (b"SSH-2.0-x\r\n", 500, b"error dialing backend: the response is not HTTP/1.1"),
        (b"HTTP/1.1 101 x\r\n\r\n", 500, b"error dialing backend: the server switches protocols unasked"),
        (
            b"HTTP/1.1 101 x\r\nConnection",
            500,
            b"error dialing backend: the connection ended in the middle of a response",
        ),
        (b"", 500, b"error dialing backend: no response came"),
        (
            b"HTTP/1.1 101 x\r\na: " + b"x" * 70_000,
            500,
            b"error dialing backend: the head of the response is too large",
        ),
    ],
    ids=[
        "plain",
        "chunks",
        "long",
        "cut short",
        "interim",
        "no HTTP",
        "no upgrade",
        "half a head",
        "nothing",
        "a large head",
    ],
)
async def test_an_answer_that_is_no_upgrade_is_passed_on_or_reported(answer: bytes, status: int, body: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        opened = await open_backend("POST", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/exec", {})
    assert opened == Response(status, body)


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_the_head_is_passed_on_as_it_was_sent_and_what_follows_it_is_read(step: int) -> None:
    sent = SWITCH + bytes(range(256))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for at in range(0, len(sent), step):
            writer.write(sent[at : at + step])
            await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        opened = await open_backend("POST", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/exec", {})
        assert not isinstance(opened, Response)
        backend, head = opened
        assert (head, await everything(backend)) == (SWITCH, bytes(range(256)))
        backend.writer.close()


BITS = [bytes([n % 251]) * (4096 * (1 + n % 9)) for n in range(300)]


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_much_in_small_bits_comes_whole_and_so_does_its_end(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def hear() -> bytes:
        async with await asyncio.start_server(_say(BITS), "127.0.0.1", 0) as server:
            backend = await _backend(server)
            heard = await everything(backend)
            backend.writer.close()
            return heard

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(hear()) == b"".join(BITS)


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_one_may_leave_in_the_middle(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    troubles: list[dict[str, Any]] = []

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))
        ended = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _say(BITS)(reader, writer)
            ended.set()

        async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
            backend = await _backend(server)
            heard = 0
            while heard <= MUCH:
                heard += len(await backend.read())
            backend.writer.transport.abort()
            await ended.wait()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(leave())
    assert not troubles


def _say(bits: list[bytes]) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    """A streaming server that sends this and ends."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(SWITCH)
            for bit in bits:
                writer.write(bit)
                await writer.drain()
        except OSError:
            return  # the agent has left
        finally:
            writer.close()

    return talk


async def _backend(server: asyncio.Server) -> Backend:
    opened = await open_backend("POST", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/exec", {})
    assert not isinstance(opened, Response)
    return opened[0]


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def streaming(talk: Talk, idle_s: float) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client whose stream ends at a runtime that talks like this."""
    gone = asyncio.Event()

    async def runtime(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        try:
            await talk(reader, writer)
        finally:
            writer.close()
            gone.set()

    async with await asyncio.start_server(runtime, "127.0.0.1", 0) as behind:
        url = f"http://127.0.0.1:{behind.sockets[0].getsockname()[1]}/exec"

        async def handle(request: Request, _: ServedConnection) -> Answer:
            return await proxy_upgrade(request, url, idle_s)

        server = HttpServer(handle)
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=HEAD_BYTES) as front:
            reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname())
            async with asyncio.timeout(30):
                writer.write(b"POST /exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
                yield reader, writer
                writer.transport.abort()
                await gone.wait()


async def test_a_stream_on_which_nothing_moves_is_ended_for_both_sides() -> None:
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        left.set()

    async with streaming(silent, 1.0) as (reader, _):
        assert await reader.read() == b"hello"  # to its end
        await left.wait()


async def test_a_stream_on_which_something_moves_lasts() -> None:
    async def patient(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(10):
            await asyncio.sleep(0.25)
            writer.write(b".")

    async with streaming(patient, 2.0) as (reader, _):
        assert await reader.read() == b"." * 10


async def test_who_does_not_read_holds_up_the_runtime_and_gets_all_when_he_does() -> None:
    total, sent = 64 << 20, 0

    async def loud(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while sent < total:
            writer.write(bytes(1 << 20))
            await writer.drain()
            sent += 1 << 20

    async with streaming(loud, 60.0) as (reader, _):
        before = -1
        while sent == 0 or sent != before:
            before = sent
            await asyncio.sleep(0.3)
        assert 0 < sent < total / 2
        heard = 0
        while data := await reader.read(1 << 20):
            heard += len(data)
        assert heard == total
