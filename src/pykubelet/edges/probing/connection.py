"""Connections to containers, bare or with TLS in memory (the certificate is not verified).

Owns: what connections cost the event loop together. Servers decide when they answer and when their handshakes go on, so that those of a
whole pod may do it at the same moment. In one iteration of the event loop, few answers are read, and one step of one handshake is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from math import inf
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from pykubelet.base.kit.readiness import until, wait_ready
from pykubelet.base.kit.yields import IterationSlots
from pykubelet.edges.probing.dial import abort, dial, literal_family, unverified_tls

T = TypeVar("T")
#: The most reads and steps of TLS handshakes with one host that wait to be done at a time: containers of one pod do not delay the probes of
#: others for long. While a server does not answer, its connection waits for no slot.
WAITING_OF_HOST = 4
READ_BYTES = 16 << 10
#: The most connections of which something is read in one iteration of the event loop; what was read is processed at once. With TLS, it may
#: be hundreds of records.
READS_AT_ONCE = 32
TLS_READS_AT_ONCE = 2


class Connection(Protocol):
    """A connection. Its methods raise OSError, and Overdue at the deadline."""

    async def send(self, data: bytes) -> None:
        """Send all."""

    async def receive(self) -> bytes:
        """Wait for data, and for its place in an iteration of the event loop. Process it before the next await. Empty at the end."""

    def close(self, healthy: bool) -> None:
        """Close; without `healthy`, by RST."""


class Connector:
    """Makes connections, with TLS or without. What they cost together is limited for all connections of one connector."""

    def __init__(self) -> None:
        self._hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._steps = IterationSlots(1)
        self._reads = IterationSlots(READS_AT_ONCE)
        self._tls_reads = IterationSlots(TLS_READS_AT_ONCE)

    async def connect(self, host: str, port: int, deadline: float = inf) -> Connection:
        """Connect without TLS. Raises DialError, and Overdue at the `deadline` (event loop time)."""
        return _Plain(await dial(host, port, deadline), deadline, _HostSlots(self._waiting(host), self._reads))

    async def connect_tls(self, host: str, port: int, deadline: float = inf, protocol: str = "") -> Connection:
        """As `connect`, with a handshake, which may also raise OSError. `protocol`: is offered by ALPN."""
        waiting = self._waiting(host)
        plain = _Plain(await dial(host, port, deadline), deadline, _HostSlots(waiting, self._tls_reads))
        name = None if literal_family(host) is not None else host
        secured = _Tls(plain, unverified_tls(protocol) if protocol else unverified_tls(), name)
        await secured.shake_hands(deadline, _HostSlots(waiting, self._steps))
        return secured

    def _waiting(self, host: str) -> asyncio.Semaphore:
        return self._hosts.setdefault(host, asyncio.Semaphore(WAITING_OF_HOST))


class _HostSlots:
    """Slots for the work of one host. `waiting`: limits how many pieces of the host's work wait for `slots` at a time."""

    def __init__(self, waiting: asyncio.Semaphore, slots: IterationSlots) -> None:
        self._waiting = waiting
        self._slots = slots

    async def take(self) -> None:
        """As of `IterationSlots`."""
        async with self._waiting:
            await self._slots.take()


class _Plain:
    """`reads`: limits what is read in an iteration of the event loop."""

    def __init__(self, connection: socket.socket, deadline: float, reads: _HostSlots) -> None:
        self._connection = connection
        self._deadline = deadline
        self._reads = reads

    async def send(self, data: bytes) -> None:
        sent = 0
        while sent < len(data):
            try:
                sent += self._connection.send(data[sent:])  # no need to wait: the buffer of a new connection is empty
            except BlockingIOError:
                await wait_ready(self._connection.fileno(), writable=True, deadline=self._deadline)

    async def receive(self) -> bytes:
        while True:
            await wait_ready(self._connection.fileno(), deadline=self._deadline)
            await self._reads.take()
            try:
                return self._connection.recv(READ_BYTES)
            except BlockingIOError:
                continue  # woken by a packet with a wrong checksum

    def send_some(self, data: bytes) -> None:
        """Send what the kernel takes at once."""
        with contextlib.suppress(OSError):
            self._connection.send(data)

    def close(self, healthy: bool) -> None:
        if healthy:
            self._connection.close()
        else:
            abort(self._connection)


class _Tls:
    """TLS on a connection. OpenSSL gets at most READ_BYTES at once, so that no peer keeps it at work with records without data."""

    def __init__(self, connection: _Plain, settings: ssl.SSLContext, name: str | None) -> None:
        self._connection = connection
        self._received, self._unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = settings.wrap_bio(self._received, self._unsent, server_hostname=name)

    async def shake_hands(self, deadline: float, steps: _HostSlots) -> None:
        """Closes the connection if it fails. Raises OSError and Overdue."""

        async def step() -> None:
            await steps.take()
            self._tls.do_handshake()

        try:
            async with until(deadline):
                await self._exchange(step)
        except BaseException:
            self._connection.close(healthy=False)
            raise

    async def send(self, data: bytes) -> None:
        self._tls.write(data)
        await self._connection.send(self._unsent.read())

    async def receive(self) -> bytes:
        try:
            return await self._exchange(self._read)
        except ssl.SSLEOFError:
            return b""  # many servers end the connection without a word

    def close(self, healthy: bool) -> None:
        if healthy:
            with contextlib.suppress(OSError):  # an SSLError is one, too
                self._tls.unwrap()
            self._connection.send_some(self._unsent.read())
        self._connection.close(healthy)

    async def _read(self) -> bytes:
        return self._tls.read(READ_BYTES)

    async def _exchange(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something for which OpenSSL may have to send and receive. Raises OSError."""
        while True:
            try:
                return await work()
            except ssl.SSLWantReadError:
                await self._connection.send(self._unsent.read())
                data = await self._connection.receive()
            if data:
                self._received.write(data)
            else:
                self._received.write_eof()
