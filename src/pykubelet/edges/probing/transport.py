"""An asyncio transport on a `Connection`: its protocol gets what arrives when the connection's `Connector` allows it."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from pykubelet.edges.probing.connection import Connection


class ConnectionTransport(asyncio.Transport):
    """Sends what its protocol writes, and hands it what arrives, in tasks of its own. `close` sends the rest first."""

    def __init__(self, connection: Connection, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._connection = connection
        self._protocol = protocol
        self._unsent: deque[bytes] = deque()
        self._is_closing = False
        self._wakeup = asyncio.Event()
        loop = asyncio.get_running_loop()
        #: None: at the end. A task that was cancelled keeps the frames that it was in, which refer to this object.
        self._reading: asyncio.Task[None] | None = loop.create_task(self._read())
        self._writing: asyncio.Task[None] | None = loop.create_task(self._write())
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio.WriteTransport`."""
        self._unsent.append(bytes(data))
        self._wakeup.set()

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return sum(map(len, self._unsent))

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._is_closing

    def close(self) -> None:
        """See `asyncio.BaseTransport`."""
        self._is_closing = True
        self._wakeup.set()
        if self._writing is None or self._writing.done():
            self.abort()

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""
        self._is_closing = True
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        try:
            while data := await self._connection.receive():
                self._protocol.data_received(data)
        except OSError as error:
            await self._end(error)
        except BaseException:
            await self._end(None)
            raise
        else:
            await self._end(None)

    async def _end(self, problem: Exception | None) -> None:
        self._is_closing = True
        writing, self._writing = self._writing, None
        assert writing is not None
        writing.cancel()
        try:
            await asyncio.wait([writing])  # it may wait for the socket
        finally:
            self._reading = None
            self._connection.close(healthy=problem is None)
            self._protocol.connection_lost(problem)

    async def _write(self) -> None:
        with suppress(OSError):  # what can still be read may be the reason
            while self._unsent or not self._is_closing:
                if self._unsent:
                    await self._connection.send(self._unsent[0])
                    self._unsent.popleft()
                else:
                    self._wakeup.clear()
                    await self._wakeup.wait()
            self.abort()
