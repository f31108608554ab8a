"""Relays data between a WebSocket client and the runtime's SPDY server.

Owns: the two connections of one stream, its deadlines and its end. The `Bridge` translates the bytes. Each side is read only
as fast as the other one accepts data. Answers to pings are dropped if a side does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from enum import Enum, auto

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.net.http.proxy import Backend, open_backend
from pykubelet.net.http.server import Answer, Request, Response, ServedConnection, Takeover
from pykubelet.net.websocket.handshake import upgrade_response
from pykubelet.serve.streaming.bridge import Bridge, Step

#: The most seconds until the runtime has accepted all streams, and until the client has answered the Close frame.
OPEN_DEADLINE_S = 30.0
PARTING_S = 30.0
PIECE = 256 * 1024
#: The most bytes per read. They may be tiny messages, each of which takes some microseconds; a client's take longer.
RUNTIME_PIECE = 128 * 1024
CLIENT_PIECE = 32 * 1024
#: The most bytes of answers that are kept for a side that does not read them.
ANSWERS = 64 * 1024


async def serve_websocket(request: Request, url: str, bridge: Bridge, idle_s: float) -> Answer:
    """Accept the client's WebSocket, and open SPDY to the runtime's streaming server at `url`.

    `idle_s`: a stream without data for this long is ended; 0: never. If the stream cannot be opened, the answer is 500, or the
    answer of the runtime's server.
    """
    head = upgrade_response(request, bridge.protocol)
    if isinstance(head, Response):
        return head
    upgrade = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": bridge.runtime_protocol}
    opened = await open_backend("POST", url, upgrade)
    if isinstance(opened, Response):
        return opened

    backend, _ = opened

    async def talk(client: ServedConnection) -> None:
        client.writer.write(head)
        await carry(client, backend, bridge, idle_s)

    return Takeover(talk)


async def carry(client: ServedConnection, backend: Backend, bridge: Bridge, idle_s: float) -> None:
    """Relay data until one side has ended, then send the Close frame. Closes only the connection to the runtime."""
    try:
        error = await _converse(client, backend, bridge, idle_s)
    finally:
        backend.writer.transport.abort()
    await _part(client, bridge, error, idle_s)


async def _converse(client: ServedConnection, backend: Backend, bridge: Bridge, idle_s: float) -> str:
    """Relay data until one side has ended. Returns why the stream ended early; "" if it did not."""
    loop = asyncio.get_running_loop()
    to_client, to_runtime = bridge.start()
    client.writer.write(to_client)
    backend.writer.write(to_runtime)
    opened = asyncio.Event()
    try:
        async with Supervisor("websocket") as supervisor, asyncio.timeout(OPEN_DEADLINE_S) as limit:

            def moved() -> None:
                if bridge.is_open:
                    limit.reschedule(loop.time() + idle_s if idle_s else None)
                    opened.set()

            async def listen() -> _End:
                await opened.wait()
                speak = _read_slowly(client.reader.read, CLIENT_PIECE)
                return await _pump(speak, backend.writer, client.writer, bridge.from_client, moved)

            moved()
            answer = _read_slowly(backend.read, RUNTIME_PIECE)
            up = supervisor.start_child("websocket-up", listen())
            answers = _pump(answer, client.writer, backend.writer, bridge.from_runtime, moved)
            down = supervisor.start_child("websocket-down", answers)
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            if not down.done() and up.result() is not _End.TARGET:
                return ""  # the client has disconnected
            # a runtime that does not read any more may still send something
            return "the runtime has ended the connection" if await down is _End.SOURCE else ""
    except TimeoutError:
        return "no data for too long" if bridge.is_open else "the runtime does not open the streams"


class _End(Enum):
    """Why one direction has ended: everything was sent, or the source or target has disconnected."""

    COMPLETE = auto()
    SOURCE = auto()
    TARGET = auto()


async def _pump(
    read: Callable[[int], Awaitable[bytes]],
    target: asyncio.StreamWriter,
    back: asyncio.StreamWriter,
    step: Callable[[bytes], Step],
    moved: Callable[[], None],
) -> _End:
    while data := await _read(read):
        follows = step(data)
        if follows.back and back.transport.get_write_buffer_size() < ANSWERS:
            back.write(follows.back)
        if follows.onward:
            target.write(b"".join(follows.onward))  # one write, because over TLS each would become its own record
            try:
                await target.drain()
            except OSError:
                return _End.TARGET
        if follows.ended:
            return _End.COMPLETE
        if follows.onward or not follows.back:  # a ping alone does not keep the stream from being idle
            moved()
    return _End.SOURCE


def _read_slowly(read: Callable[[int], Awaitable[bytes]], piece: int) -> Callable[[int], Awaitable[bytes]]:
    """Limit reads to `piece` bytes, and let other tasks run between two reads, even if more data is available."""

    async def read_piece(most: int) -> bytes:
        await asyncio.sleep(0)
        return await read(min(most, piece))

    return read_piece


async def _read(read: Callable[[int], Awaitable[bytes]]) -> bytes:
    try:
        return await read(PIECE)
    except OSError:
        return b""


async def _part(client: ServedConnection, bridge: Bridge, error: str, idle_s: float) -> None:
    """Send the last bytes, and read until the client's Close frame.

    Closing with unread bytes would lose data that the client has not read yet.
    """
    with contextlib.suppress(OSError, TimeoutError):
        client.writer.write(bridge.close_message(error))
        async with asyncio.timeout(idle_s or None):
            await client.writer.drain()
        data = b""
        async with asyncio.timeout(PARTING_S):
            read = _read_slowly(client.reader.read, CLIENT_PIECE)
            while not bridge.from_client(data).ended and (data := await read(PIECE)):
                pass
