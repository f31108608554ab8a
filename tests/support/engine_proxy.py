"""A proxy before Docker Engine that runs a function when a wanted request comes: before it is forwarded, or when its answer is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_METHODS = (b"GET /", b"POST /", b"DELETE /")


class EngineProxy:
    """Counts the requests from `arm` on. `requests`: the first lines of those that came."""

    def __init__(self, engine: Path) -> None:
        self._engine = engine
        self._at = -1
        self._after_answer = False
        self._act: Callable[[], None] = lambda: None
        self._streams: set[asyncio.StreamWriter] = set()
        self.requests: list[str] = []

    def arm(self, at: int, act: Callable[[], None], *, after_answer: bool) -> None:
        """Call `act` at request number `at`, counted from now on and from 0; -1 for never."""
        self._at, self._act, self._after_answer, self.requests = at, act, after_answer, []

    @asynccontextmanager
    async def serving(self, path: Path) -> AsyncIterator[None]:
        """Serve on the socket at `path`."""
        server = await asyncio.start_unix_server(self._serve, str(path))
        try:
            yield
        finally:
            server.close()
            for writer in self._streams:
                writer.transport.abort()
            await server.wait_closed()
            path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            engine_reader, engine_writer = await asyncio.open_unix_connection(str(self._engine))
        except OSError:
            writer.transport.abort()
            return
        mine = {writer, engine_writer}
        self._streams |= mine
        hit = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(reader, engine_writer, hit))
                tasks.create_task(self._answer(engine_reader, writer, hit))
        except* OSError:
            pass
        finally:
            self._streams -= mine
            for stream in mine:
                stream.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hit: asyncio.Event) -> None:
        while data := await reader.read(1 << 16):
            if data.startswith(_METHODS):
                number = len(self.requests)
                self.requests.append(data.partition(b"\r\n")[0].decode())
                if number == self._at:
                    if not self._after_answer:
                        self._act()
                        raise ConnectionAbortedError
                    hit.set()
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hit: asyncio.Event) -> None:
        while data := await reader.read(1 << 16):
            if hit.is_set():
                self._act()
                raise ConnectionAbortedError
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()
