"""Connections within the process, for an event loop of virtual time (`virtual_time.py`)."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Self, cast

from pykubelet.testing.ordered import OrderedSet

#: Of a TCP connection, address and port; of a unix socket, the path, and "" at the client's end.
Address = tuple[str, int] | str


class MemoryServer:
    """A listening address within the process, used as an `asyncio.Server`. `forget`: called once, when it is closed."""

    def __init__(
        self,
        address: Address,
        make: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        forget: Callable[[], object],
    ) -> None:
        self.address = address
        self.is_open = True
        self._make = make
        self._tls = tls
        self._forget = forget
        self.sockets: tuple[socket.socket, ...] = ()
        self._transports: OrderedSet[MemoryTransport] = OrderedSet()

    async def connect(
        self, loop: asyncio.AbstractEventLoop, ours: Address, make: Callable[[], Any], options: dict[str, Any]
    ) -> tuple[asyncio.Transport, Any]:
        """Connect a client. `options`: as of `create_connection`."""
        near, far = MemoryTransport(loop, ours, self.address), MemoryTransport(loop, self.address, ours)
        near.peer, far.peer = far, near
        self._transports.add(far)
        far.at_end = lambda: self._transports.discard(far)
        far.begin(self._make(), self._tls)
        protocol = make()
        greeted = loop.create_future()
        near.begin(protocol, options.get("ssl") or None, options.get("server_hostname"), greeted)
        await greeted
        return near.shown, protocol

    def keep(self, bound: socket.socket) -> None:
        """Hold a socket that is bound to the address, until the server is closed."""
        self.sockets = (*self.sockets, bound)

    def close(self) -> None:
        """Accept no more connections; those that are open stay."""
        if self.is_open:
            self.is_open = False
            self._forget()
            for bound in self.sockets:
                bound.close()

    def abort_clients(self) -> None:
        """Break every open connection, as the end of a process does."""
        for transport in list(self._transports):
            transport.abort()

    async def wait_closed(self) -> None:
        return

    def is_serving(self) -> bool:
        return self.is_open

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class MemorySocket:
    """What a transport shows as its socket."""

    def __init__(self, address: Address) -> None:
        self.family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET

    def setsockopt(self, level: int, option: int, value: int) -> None:
        return


class MemoryTransport(asyncio.Transport):
    """One end of a connection; what is written is there at the other end in the loop's next round."""

    peer: MemoryTransport
    _start_tls_compatible = True

    def __init__(self, loop: asyncio.AbstractEventLoop, ours: Address, theirs: Address) -> None:
        super().__init__({"sockname": ours, "peername": theirs, "socket": MemorySocket(ours)})
        self._loop = loop
        self._protocol: Any = None
        self._inbox: deque[bytes] = deque()
        self._is_called = False
        self._is_paused = False
        self._has_ended = False
        self._is_closing = False
        self._is_lost = False
        self.at_end: Callable[[], object] = lambda: None
        self.shown: asyncio.Transport = self

    def begin(
        self,
        protocol: Any,
        tls: ssl.SSLContext | None,
        server_name: str | None = None,
        greeted: asyncio.Future[None] | None = None,
    ) -> None:
        if tls is not None:
            is_server = greeted is None
            protocol = asyncio.sslproto.SSLProtocol(
                self._loop,
                protocol,
                tls,
                greeted,  # type: ignore[arg-type]  # typeshed does not know that a server's is None
                server_side=is_server,
                server_hostname=server_name,
            )
            self.shown = protocol._app_transport
        self._protocol = protocol
        self._loop.call_soon(protocol.connection_made, self)
        if tls is None and greeted is not None:
            self._loop.call_soon(_greet, greeted)

    # asyncio.Transport

    def write(self, data: Any) -> None:
        if data and not self._is_closing and not self._is_lost:
            self.peer._take(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        if not self._is_lost:
            self.peer._take(b"")

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._call()

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.peer._take(b"")
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._loop.call_soon(self._lose, None)
            self._loop.call_soon(self.peer._lose, ConnectionResetError(104, "Connection reset by peer"))

    # Delivery

    def _take(self, data: bytes) -> None:
        self._inbox.append(data)
        self._call()

    def _call(self) -> None:
        if self._inbox and not self._is_called and not self._is_lost:
            self._is_called = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False
        while self._inbox and not self._is_paused and not self._is_lost and not self._is_closing:
            data = self._inbox.popleft()
            if not data:
                self._has_ended = True
                if not self._protocol.eof_received():
                    self.close()
                return
            while self._inbox and self._inbox[0]:
                data += self._inbox.popleft()
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        while data:
            free = cast(memoryview, self._protocol.get_buffer(len(data)))
            size = min(len(free), len(data))
            free[:size] = data[:size]
            self._protocol.buffer_updated(size)
            data = data[size:]

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._inbox.clear()
        self.at_end()
        protocol, self._protocol = self._protocol, None
        del self.peer, self.at_end  # nothing is left to a garbage collection
        protocol.connection_lost(error)


def _greet(greeted: asyncio.Future[None]) -> None:
    if not greeted.done():
        greeted.set_result(None)
