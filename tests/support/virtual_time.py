"""An event loop whose time passes only when nothing is left to be done, with connections that never leave the process.

Time stands still while callbacks are ready, while a thread or a child process whose end the loop awaits is at work, and while
the kernel has something for a descriptor that the loop watches. Otherwise it jumps to the next timer. So a month of waiting
costs nothing, real threads and real files stay in order, and a deadline passes only where nothing answers.

    with asyncio.Runner(loop_factory=VirtualLoop) as runner: runner.run(main())

Not for blocking work that waits for virtual time: a thread that waits for something of the loop stops time for all, unless its
key is `hung`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import ssl
import stat
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, Unpack

from support.memory_transport import MemoryServer

from pykubelet.base.kit.clock import Clock, SystemClock
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
    `hung`: keys of single-flight work that does not end, so that time passes in spite of it.
    """

    def __init__(self, start: float = 1000.0, lasts_s: float = LASTS_S) -> None:
        selector = VirtualSelector()
        selector.loop = self
        self.began = self.now = start
        self.iterations = 0
        self._end = start + lasts_s
        self._second = (0, 0)
        self._flights: set[SingleFlight] = set()
        self._outcomes: dict[asyncio.Future[Any], str] = {}  # awaited outcomes of their work, with its keys
        self._executing = 0
        self._children: set[int] = set()  # their descriptors
        self._servers: dict[tuple[str, int], MemoryServer] = {}
        self._sockets: dict[tuple[int, int] | None, MemoryServer] = {}  # by device and number of the file
        self._addresses: set[tuple[str, int]] = set()
        self._ports = EPHEMERAL
        self._awaited_sockets: set[int] = set()
        self.hung: set[str] = set()
        super().__init__(selector)

    def close(self) -> None:
        for server in (*self._sockets.values(), *self._servers.values()):
            server.close()
        super().close()

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
            if running := flight._running.keys() - self.hung:
                return f"threads: {', '.join(running)}"
        if ended := set(self._outcomes.values()) - self.hung:
            return f"threads that have ended: {', '.join(ended)}"
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
            given: tuple[Any, ...] = args
            for future in given:
                if isinstance(future, asyncio.Future) and not future.done():
                    self._outcomes[future] = given[1]
                    future.add_done_callback(lambda done: self._outcomes.pop(done, None))
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
        return await server.connect(self, ("127.0.0.1", self._ports), protocol_factory, options)

    async def serve_in_memory(
        self, make: Callable[[], asyncio.BaseProtocol], port: int, tls: ssl.SSLContext | None = None
    ) -> MemoryServer:
        """Answer connections to this port of 127.0.0.1 that this loop makes."""
        address = ("127.0.0.1", port)
        if address in self._servers:
            raise OSError(98, "Address already in use")
        self._addresses.add(address)
        self._servers[address] = server = MemoryServer(address, make, tls, lambda: self._servers.pop(address, None))
        return server

    # The socket is in the file system, so that it is found, renamed and removed as any other; the kernel answers for one
    # that nothing serves.

    async def create_unix_server(self, protocol_factory: Any, path: Any = None, **options: Any) -> MemoryServer:  # type: ignore[override]
        bound: socket.socket | None = options.get("sock")
        if bound is None:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(os.stat(path).st_mode):
                    os.unlink(path)  # as asyncio does it
            bound = socket.socket(socket.AF_UNIX)
            bound.bind(os.fspath(path))
        address = bound.getsockname()
        file = _identity(address)
        assert file is not None

        forget = partial(self._sockets.pop, file, None)
        self._sockets[file] = server = MemoryServer(address, protocol_factory, options.get("ssl"), forget)
        server.keep(bound)
        return server

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **options: Any) -> Any:
        server = self._sockets.get(_identity(path)) if options.get("sock") is None else None
        if server is None:
            return await super().create_unix_connection(protocol_factory, path, **options)
        return await server.connect(self, "", protocol_factory, options)


def _identity(path: Any) -> tuple[int, int] | None:
    """The file that a path leads to."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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


def virtual_clock() -> VirtualClock:
    """The clock of the running event loop, which is virtual. Its wall clock begins with the machine's."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return VirtualClock(loop, time.time() + loop.now - loop.began)


def clock_of_loop() -> Clock:
    """The clock of the running event loop: of virtual time, or the machine's."""
    return virtual_clock() if isinstance(asyncio.get_running_loop(), VirtualLoop) else SystemClock()
