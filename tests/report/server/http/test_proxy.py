"""The runtime's streaming server, as the proxy sees it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from pykubelet.report.server.http.proxy import MUCH, Backend, open_backend
from pykubelet.report.server.http.server import Response


async def test_what_was_said_before_a_reset_is_heard() -> None:
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\nthe last words")
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
        assert await backend.reader.read() == b"the last words"
        backend.writer.close()


async def test_a_server_that_is_not_there_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    answer = await open_backend("POST", f"http://127.0.0.1:{port}/exec", {})
    assert isinstance(answer, Response)
    assert answer.status == 500 and answer.body.startswith(b"error dialing backend: ")


BITS = [bytes([n % 251]) * (4096 * (1 + n % 9)) for n in range(300)]


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_much_in_small_bits_comes_whole_and_so_does_its_end(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def hear() -> bytes:
        async with await asyncio.start_server(_say(BITS), "127.0.0.1", 0) as server:
            backend = await _backend(server)
            heard = b""
            while data := await backend.read():
                heard += data
            backend.writer.close()
            return heard

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(hear()) == b"".join(BITS)


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_one_may_leave_in_the_middle(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    troubles: list[dict[str, Any]] = []

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))
        async with await asyncio.start_server(_say(BITS), "127.0.0.1", 0) as server:
            backend = await _backend(server)
            heard = 0
            while heard <= MUCH:
                heard += len(await backend.read())
            backend.writer.transport.abort()
            await asyncio.sleep(0.02)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(leave())
    assert not troubles


def _say(bits: list[bytes]) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    """A streaming server that says this and ends."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
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
