"""An event loop whose time passes only when nothing is left to be done, with connections that never leave the process.

Time stands still while callbacks are ready, while a thread or a child process whose end the loop awaits is at work, and while
the kernel has something for a descriptor that the loop watches. Otherwise it jumps to the next timer. So a month of waiting
costs nothing, real threads and real files stay in order, and a deadline passes only where nothing answers.

    with VirtualLoop() as loop: asyncio.Runner(loop_factory=lambda: loop).run(main())

Not for blocking work that waits for virtual time: a thread that waits for something of the loop stops time for all.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import os
import selectors
import socket
import ssl
import stat
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

from pykubelet.base.kit.flight import SingleFlight

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: So much real time a thread or a child may take; what takes longer hangs.
STUCK_S = 120.0
#: So much real time the kernel gets to hand on what was sent on loopback, while a probe waits for a socket.
KERNEL_S = 0.002
#: As many iterations within one virtual second mean an endless loop.
BUSY_ITERATIONS = 100_000
#: Virtual time of one iteration: a wait that ends just now, to the last digit of a float, ends.
ITERATION_S = 1e-6
#: A test covers a day or two.
LASTS_S = 10 * 86400.0
EPHEMERAL = 32768
SKIPPED = 8


class Stuck(Exception):
    """Nothing can happen any more, or real work does not end."""


class VirtualSelector(selectors.DefaultSelector):
    """Asks the kernel, and lets virtual time pass instead of waiting."""

    loop: VirtualLoop
    _skipped = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0 and self._skipped < SKIPPED:
            self._skipped += 1  # what is ready comes first: the kernel is asked before time passes
            return []
        self._skipped = 0
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        loop = self.loop
        if loop.waits_for_kernel() and (found := super().select(KERNEL_S)):
            return found
        began = time.monotonic()
        while loop.real_work():
            if found := super().select(1.0):
                return found
            if time.monotonic() - began > STUCK_S:
                raise Stuck(f"real work does not end: {loop.real_work()}")
        if timeout is None:
            if found := super().select(STUCK_S):
                return found
            raise Stuck("nothing is left to wait for")
        loop.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """`now`: the virtual second. `iterations`: the iterations so far.

    `lasts_s`: after so much virtual time, what a test waits for does not come. Without an end, periodic work would go on for ever.
    """

    def __init__(self, start: float = 1000.0, lasts_s: float = LASTS_S) -> None:
        selector = VirtualSelector()
        selector.loop = self
        self.now = start
        self.iterations = 0
        self._end = start + lasts_s
        self._second = (0, 0)
        self._flights: set[SingleFlight] = set()
        self._outcomes: set[asyncio.Future[Any]] = set()  # of threads, from their start until the loop has them
        self._executing = 0
        self._children: set[int] = set()  # their descriptors
        self._servers: dict[tuple[str, int], MemoryServer] = {}
        self._addresses: set[tuple[str, int]] = set()
        self._ports = EPHEMERAL
        self._awaited_sockets: set[int] = set()
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    @property
    def timers(self) -> int:
        """Those that are set and were not cancelled."""
        return sum(not timer.cancelled() for timer in self._scheduled)  # type: ignore[attr-defined]

    def _run_once(self) -> None:
        self.iterations += 1
        self.now += ITERATION_S
        if self.now > self._end:
            self._end = float("inf")  # what is cancelled now may take its time
            waiting = [repr(task) for task in asyncio.all_tasks(self)]
            raise Stuck(f"too much time has passed, until {self.now!r}: {waiting}")
        second = int(self.now)
        if second != self._second[0]:
            self._second = (second, self.iterations)
        elif self.iterations - self._second[1] > BUSY_ITERATIONS:
            waiting = [repr(handle) for handle in (*self._ready, *sorted(self._scheduled)[:5])]  # type: ignore[attr-defined]
            raise Stuck(f"no end of work within one second, at {self.now!r}: {waiting}")
        super()._run_once()  # type: ignore[misc]

    # Real work

    def real_work(self) -> str:
        """What of it is going on; empty: nothing."""
        if self._executing:
            return "an executor"
        for flight in self._flights:
            if flight._running:
                return f"threads: {', '.join(flight._running)}"
        if self._outcomes:
            return "outcomes of threads"
        return "child processes" if self._children else ""

    def waits_for_kernel(self) -> bool:
        """Whether something waits for a socket that is connected or being connected, as probes do."""
        return bool(self._awaited_sockets)

    def add_reader(self, fd: Any, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:
        self._note_socket(fd)
        if isinstance(fd, int) and os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[pidfd]":
            self._children.add(fd)  # its end is waited for (`run_program`)
        super().add_reader(fd, callback, *args)

    def add_writer(self, fd: Any, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:
        self._note_socket(fd)
        super().add_writer(fd, callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        self._awaited_sockets.discard(fd)
        self._children.discard(fd)
        return super().remove_reader(fd)

    def remove_writer(self, fd: Any) -> bool:
        self._awaited_sockets.discard(fd)
        return super().remove_writer(fd)

    def _note_socket(self, fd: Any) -> None:
        if isinstance(fd, int) and stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.socket(fileno=os.dup(fd)) as found:
                if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    self._awaited_sockets.add(fd)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, SingleFlight):
            self._flights.add(owner)
            for future in (arg for arg in args if isinstance(arg, asyncio.Future) and not arg.done()):
                self._outcomes.add(future)
                future.add_done_callback(self._outcomes.discard)
        return super().call_later(delay, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._executing += 1
        future.add_done_callback(self._executed)
        return future

    def _executed(self, _: asyncio.Future[Any]) -> None:
        self._executing -= 1

    # Connections within the process

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if host in ("127.0.0.1", "localhost"):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]
        return await super().getaddrinfo(host, port, **options)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        server = self._servers.get((host, port))
        if server is None and (host, port) not in self._addresses:
            return await super().create_connection(protocol_factory, host, port, **options)
        if server is None or not server.is_open:
            raise ConnectionRefusedError(111, f"Connect call failed {(host, port)}")
        self._ports = EPHEMERAL + (self._ports + 1 - EPHEMERAL) % 28000
        ours, theirs = ("127.0.0.1", self._ports), server.address
        near, far = MemoryTransport(self, ours, theirs), MemoryTransport(self, theirs, ours)
        near.peer, far.peer = far, near
        server.transports.add(far)
        far.server = server
        far.begin(server.make(), server.tls)
        protocol = protocol_factory()
        greeted = self.create_future()
        tls, name = options.get("ssl"), options.get("server_hostname")
        near.begin(protocol, tls or None, name, greeted)
        await greeted
        return near.shown, protocol

    async def serve_in_memory(
        self, make: Callable[[], asyncio.BaseProtocol], port: int, tls: ssl.SSLContext | None = None
    ) -> MemoryServer:
        """Answer connections to this port of 127.0.0.1 that this loop makes."""
        address = ("127.0.0.1", port)
        if address in self._servers:
            raise OSError(98, "Address already in use")
        self._addresses.add(address)
        self._servers[address] = server = MemoryServer(self._servers, address, make, tls)
        return server


class MemoryServer:
    """A listening address within the process."""

    def __init__(
        self,
        servers: dict[tuple[str, int], MemoryServer],
        address: tuple[str, int],
        make: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._servers = servers
        self.address = address
        self.make = make
        self.tls = tls
        self.transports: set[MemoryTransport] = set()
        self.is_open = True

    def close(self) -> None:
        """No connection is accepted any more, and every open one breaks."""
        self.is_open = False
        self._servers.pop(self.address, None)
        for transport in list(self.transports):
            transport.abort()


class MemorySocket:
    """What a transport shows as its socket."""

    family = socket.AF_INET

    def setsockopt(self, level: int, option: int, value: int) -> None:
        return


class MemoryTransport(asyncio.Transport):
    """One end of a connection; what is written is there at the other end in the loop's next round."""

    peer: MemoryTransport
    _start_tls_compatible = True

    def __init__(self, loop: VirtualLoop, ours: tuple[str, int], theirs: tuple[str, int]) -> None:
        super().__init__({"sockname": ours, "peername": theirs, "socket": MemorySocket()})
        self._loop = loop
        self._protocol: Any = None
        self._inbox: deque[bytes] = deque()
        self._is_called = False
        self._is_paused = False
        self._has_ended = False
        self._is_closing = False
        self._is_lost = False
        self.server: MemoryServer | None = None
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
        if self.server is not None:
            self.server.transports.discard(self)
        self._protocol.connection_lost(error)


def _greet(greeted: asyncio.Future[None]) -> None:
    if not greeted.done():
        greeted.set_result(None)


class VirtualClock:
    """The loop's seconds, and a wall clock that can be set. A `Clock` for the agent and for what it talks to."""

    def __init__(self, loop: VirtualLoop, wall: float) -> None:
        self._loop = loop
        self._off_s = wall - loop.now

    def monotonic(self) -> float:
        return self._loop.now

    def wall(self) -> float:
        return self._loop.now + self._off_s

    def jump_wall(self, seconds: float) -> None:
        """As an administrator or a time service does it; as a suspended machine does it, too: its monotonic clock rests."""
        self._off_s += seconds
