"""The client's side of a stream, and what it has sent for the backend."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Awaitable, Callable

from pykubelet.net.http.server import ServedConnection
from pykubelet.net.websocket import frames

#: The most bytes per read. They may be tiny frames, each of which takes up to twenty microseconds.
CLIENT_PIECE = 16 * 1024
#: The most bytes that wait for a backend, after which the client is not read. One more piece may be added.
MAX_WAITING = 64 * 1024
#: The most bytes that wait for a client which sends but does not read, after which it is not read.
MAX_UNSENT = 256 * 1024
#: How often a client that is not read is looked at: nothing else notices that it has disconnected.
LOOK_S = 10.0


class ClientGone(Exception):
    """The client has disconnected."""


class Inbox:
    """Bytes from the client on their way to a backend, in order."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._is_closed = False
        self._changed = asyncio.Event()
        self._has_space = asyncio.Event()
        self._has_space.set()

    def put(self, data: bytes) -> None:
        """Add bytes, even if there is no space."""
        if self._ended or self._is_closed or not data:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._changed.set()
        if self._size > MAX_WAITING:
            self._has_space.clear()

    def end(self) -> None:
        """Nothing follows."""
        self._ended = True
        self._changed.set()

    def close(self) -> None:
        """The backend takes nothing more: what waits is dropped, and what comes."""
        self._is_closed = True
        self._pieces.clear()
        self._changed.set()
        self._has_space.set()

    @property
    def is_full(self) -> bool:
        """Whether no more should be added."""
        return not self._has_space.is_set()

    async def wait_for_space(self) -> None:
        """Wait until more may be added."""
        await self._has_space.wait()

    async def take(self) -> bytes:
        """All that waits; b"" at the end."""
        while not self._pieces and not self._ended and not self._is_closed:
            self._changed.clear()
            await self._changed.wait()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._has_space.set()
        return data


class Client:
    """The connection to a client. Frames are sent whole, in order, and as fast as the client reads them."""

    def __init__(self, connection: ServedConnection) -> None:
        self._reader = connection.reader
        self._writer = connection.writer
        self._in_order = asyncio.Lock()
        self._now = asyncio.get_running_loop().time
        self._moved = self._now()

    async def read(self) -> bytes:
        """The next bytes; b"" when the client has disconnected. Lets other tasks run first, even if there are bytes already."""
        await asyncio.sleep(0)
        try:
            data = await self._reader.read(CLIENT_PIECE)
        except OSError:
            return b""
        self._moved = self._now()
        return data

    async def send(self, data: bytes) -> None:
        """Send frames, after those of others who wait. Raises ClientGone."""
        if data:
            async with self._in_order:
                self._writer.write(data)
                await self._drain()

    async def answer(self, data: bytes) -> None:
        """Send what the protocol answers, before the frames that wait. Raises ClientGone."""
        if data:
            self._writer.write(data)
            if self._writer.transport.get_write_buffer_size() > MAX_UNSENT:
                await self._drain()

    async def finish(self, data: bytes) -> None:
        """Send the last bytes, and wait until all are sent. Raises ClientGone."""
        self._writer.transport.set_write_buffer_limits(0)
        await self.send(data)
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            raise ClientGone from error
        self._moved = self._now()

    async def wait_idle(self, idle_s: float) -> None:
        """Wait until nothing was sent or received for `idle_s` seconds."""
        while True:
            left = self._moved + idle_s - self._now()
            if left <= 0:
                return
            await asyncio.sleep(left)

    async def while_there(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait for something during which the client is not read. `wait` may be called again. Raises ClientGone."""
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    return await wait()
            except TimeoutError:
                if self._is_gone():
                    raise ClientGone from None

    def _is_gone(self) -> bool:
        """Whether the client has closed its side, though not all that it has sent is read."""
        sock = self._writer.get_extra_info("socket")
        if self._writer.transport.is_closing() or sock is None:
            return self._writer.transport.is_closing()
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))


class TunneledClient(Client):
    """A client that sends the bytes of another protocol in binary messages of a WebSocket. The boundaries of messages have no meaning."""

    def __init__(self, connection: ServedConnection) -> None:
        super().__init__(connection)
        self._frames = frames.WebSocketReader()

    async def read(self) -> bytes:
        """The next bytes of the other protocol; b"" when the client has disconnected or closes the WebSocket."""
        while data := await super().read():
            received = self._frames.feed(data)
            await super().answer(received.pong + received.close_frame)
            if content := b"".join(piece.data for piece in received.pieces):
                return content
            if received.close_frame:
                return b""
        return b""

    async def send(self, data: bytes) -> None:
        """Send bytes of the other protocol. Raises ClientGone."""
        await super().send(_message(data))

    async def answer(self, data: bytes) -> None:
        """Send bytes of the other protocol before those that wait. Raises ClientGone."""
        await super().answer(_message(data))


def _message(data: bytes) -> bytes:
    return frames.head(frames.BINARY, len(data)) + data if data else b""
