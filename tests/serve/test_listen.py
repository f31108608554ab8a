"""Listening: what becomes of connections when the agent ends."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
import struct
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.host.services.unix_socket import keep_serving_socket
from pykubelet.net.http.server import Answer, Handler, Request, ServedConnection, text
from pykubelet.serve.listen import open_port, serve_port, serve_socket

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def over_tcp(handler: Handler, supervisor: Supervisor, _: Path) -> Streams:
    listening = open_port("127.0.0.1", 0)
    supervisor.start_root("port", serve_port(handler, listening, "a test"))
    return await asyncio.open_connection(*listening.getsockname()[:2])


async def over_a_unix_socket(handler: Handler, supervisor: Supervisor, folder: Path) -> Streams:
    path = folder / "socket"
    supervisor.start_root("socket", serve_socket(handler, str(path)))
    while not path.exists():  # noqa: ASYNC110 - it is there at once
        await asyncio.sleep(0)
    return await asyncio.open_unix_connection(path)


@pytest.mark.parametrize("connect", [over_tcp, over_a_unix_socket])
def test_a_request_that_is_being_answered_at_the_end_is_no_error(
    connect: Callable[[Handler, Supervisor, Path], Awaitable[Streams]], tmp_path: Path
) -> None:
    errors: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        asked = asyncio.Event()

        async def answer_never(_: Request, __: ServedConnection) -> Answer:
            asked.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        async with Supervisor("test") as supervisor:
            _, writer = await connect(answer_never, supervisor, tmp_path)
            writer.write(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
            await asked.wait()
        writer.close()

    asyncio.run(main())
    assert not errors


def test_a_connection_that_is_reset_leaves_nothing_that_only_a_garbage_collection_frees(tmp_path: Path) -> None:
    async def main() -> None:
        freed = asyncio.Event()
        kept: list[weakref.ref[asyncio.StreamReader]] = []

        async def answer(_: Request, connection: ServedConnection) -> Answer:
            kept.append(weakref.ref(connection.reader, lambda _: freed.set()))
            return text(200, "ok")

        async with Supervisor("test") as supervisor:
            reader, writer = await over_tcp(answer, supervisor, tmp_path)
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gc.disable()
            try:
                writer.transport.abort()
                async with asyncio.timeout(30):
                    await freed.wait()
            finally:
                gc.enable()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_a_socket_file_of_a_process_that_accepts_nothing_is_not_replaced(tmp_path: Path) -> None:
    """The detector of blocking calls fails this test if the agent waits for the other process."""

    async def answer(_: Request, __: ServedConnection) -> Answer:
        raise AssertionError

    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as waiting:
        other.bind(str(path))
        other.listen(0)
        waiting.connect(str(path))
        before = path.stat()
        async with Supervisor("test") as supervisor:
            task = supervisor.start_root("socket", serve_socket(answer, str(path), retry_s=0.0))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not task.done()
        assert path.stat().st_ino == before.st_ino


async def test_a_socket_that_is_removed_with_its_directory_is_made_again(tmp_path: Path) -> None:
    """Also if its directory cannot be made at first, as on a full disk."""
    folder = tmp_path / "pods-api"
    folder.touch()
    path = folder / "s.sock"
    async with Supervisor("test") as supervisor:
        supervisor.start_root("socket", keep_serving_socket(_echo, str(path), "a test", retry_s=0.01))
        await asyncio.sleep(0)
        folder.unlink()
        await _echoed(path)
        assert (path.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o750)
        for _ in range(2):
            shutil.rmtree(folder)
            await _echoed(path)
        path.unlink()
        await _echoed(path)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(1))
    writer.close()


async def _echoed(path: Path) -> None:
    """Wait until a server answers on the socket."""
    async with asyncio.timeout(20):
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
                writer.close()
                return
            await asyncio.sleep(0)
