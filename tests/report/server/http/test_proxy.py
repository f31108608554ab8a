"""The runtime's streaming server, as the proxy sees it."""

from __future__ import annotations

import asyncio
import socket
import struct

from pykubelet.report.server.http.proxy import open_backend
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
