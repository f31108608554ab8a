"""Admission of connections to the authenticated port: accepting, the TLS handshake, and limits until authentication.

Owns: accepting, and the limits of time and memory for unauthenticated clients: how many connections wait for a handshake,
how many clients are served (`decide_admission.py` chooses the next one and the one to close), and how many of them may
send a large request head. A client that is authenticated or has a certificate of the client CA does not count, and is not
affected by any number of unauthenticated clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections import Counter
from functools import partial
from typing import NamedTuple

from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.causes import releasing_frames
from pykubelet.base.kit.cells import within
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.readiness import wait_ready
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.net.http.checked_tls import CheckedTls, allow_small_records, unusual_cpu_s
from pykubelet.net.http.client_hello import ContextsByGroup
from pykubelet.net.http.decide_accept import choose_evicted, choose_next
from pykubelet.net.http.server import HttpServer, LimitedReader
from pykubelet.net.http.staged_reader import StagedReader

log = Log("server")
HANDSHAKE_S, SHUTDOWN_S = 10.0, 2.0
#: The part of the event loop's time that handshakes of unauthenticated clients may take beyond what is usual for them.
UNUSUAL_SHARE = 0.25
PAUSE_S = 1.0
KNOWN_ADDRESSES = 64
#: The most connections that are accepted in one iteration of the event loop.
ACCEPTED_AT_ONCE = 32
WARNING_INTERVAL_S = 60.0
#: As Go's servers do: the loss of the client's machine is noticed after two and a half minutes.
KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 9}
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class AdmissionLimits(Value):
    """Limits of admission. `places`: the most unauthenticated clients at a time.

    Each keeps its place for `grace_s` seconds at least, unless its address has the most places. `handshakes`: how many may begin
    at once; fewer than `places`. `unfinished`: how many are under way at a time; one that takes longer than `unfinished_s` seconds is
    closed if others wait. `waiting`: the most connections without a handshake. `head`, `large_head`: the most bytes of a request's head;
    `large_heads` clients at a time may send a large one. `known_head`: the same for admitted clients.
    """

    places: int = 128
    grace_s: float = 0.5
    handshakes: int = 32
    unfinished: int = 6
    unfinished_s: float = 1.0
    waiting: int = 2048
    head: int = 16 << 10
    large_head: int = 128 << 10
    large_heads: int = 8
    known_head: int = 1 << 20


def keep_alive(end: socket.socket) -> None:
    """Set TCP keep-alive on a listening socket, from which accepted connections inherit it.

    TCP_USER_TIMEOUT is not set, because it would also end streams to clients that are alive but do not read for a while.
    """
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        end.setsockopt(socket.IPPROTO_TCP, option, value)


class UnauthenticatedClient(StagedReader, LimitedReader):
    """The reader of one unauthenticated client. It limits heads of requests to a small size until `admit`.

    `unusual_cpu_s`: what its handshake has cost beyond what is usual.
    """

    def __init__(self, queue: ConnectionQueue, limits: AdmissionLimits, address: str) -> None:
        super().__init__(limits.head)
        self._queue = queue
        self._limits = limits
        self.address = address
        self.is_large = False
        self.unusual_cpu_s = 0.0

    @property
    def is_admitted(self) -> bool:
        """Whether the client has no place any more: it was admitted, or was closed for another one."""
        return not self._queue.has(self)

    def finish_handshake(self, unusual_cpu_s: float) -> None:
        """Note that the handshake has ended. `unusual_cpu_s`: what handshakes have cost beyond what is usual, since the last end."""
        self._queue.finish(self, unusual_cpu_s)

    async def admit(self) -> None:
        """Free the client's place and allow it heads of `known_head` bytes. Does not wait."""
        if self._queue.admit(self):
            if self._peer is not None:
                allow_small_records(self._peer)
            await self.change_limit(self._limits.known_head)

    async def allow_large_head(self) -> bool:
        """Whether the client may send a large head; True reserves one of `large_heads`. Does not wait."""
        if self.is_large or self.is_admitted or not self._queue.has_free_large_head():
            return False
        self.is_large = True
        await self.change_limit(self._limits.large_head)
        return True


class QueuedConnection(NamedTuple):
    """An accepted connection from which nothing was read yet, and its source (see `source_of`)."""

    end: socket.socket
    address: str


class ConnectionQueue:
    """The connections that wait for a handshake, and the unauthenticated clients, both in the order of arrival."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._waiting: list[QueuedConnection] = []
        self._clients: dict[UnauthenticatedClient, asyncio.Task[None] | None] = {}
        self._unfinished: dict[UnauthenticatedClient, float] = {}
        self._held_by_address: Counter[str] = Counter()
        self._known_addresses: dict[str, None] = {}
        rate = (limits.places - limits.handshakes) / limits.grace_s  # filling all places takes `grace_s`
        self._handshakes = TokenBucket(rate, limits.handshakes)
        self._changed = asyncio.Event()
        self._warned_at = -WARNING_INTERVAL_S

    def enqueue(self, connection: QueuedConnection) -> None:
        """Add a connection. If more than `waiting` wait, the oldest is closed."""
        self._waiting.append(connection)
        if len(self._waiting) > self._limits.waiting:
            self._waiting.pop(0).end.close()
            self._warn()
        self._changed.set()

    async def wait_next(self) -> tuple[socket.socket, UnauthenticatedClient]:
        """Wait until a handshake may begin, and return the next connection with its reader.

        If all places are taken, another client is closed.
        """
        while not self._waiting or (pause_s := self._pause_s()):
            self._changed.clear()
            await within(pause_s if self._waiting else None, self._changed.wait())
        self._handshakes.take(_now())
        chosen = 0
        if len(self._waiting) > 1:
            chosen = choose_next(
                [connection.address for connection in self._waiting], self._held_by_address, self._known_addresses
            )
        end, address = self._waiting.pop(chosen)
        if len(self._clients) >= self._limits.places:
            self._evict_one(list(self._clients))
        if len(self._unfinished) >= self._limits.unfinished:
            self._evict_one([c for c, began in self._unfinished.items() if began + self._limits.unfinished_s <= _now()])
        client = UnauthenticatedClient(self, self._limits, address)
        self._clients[client] = None
        self._unfinished[client] = _now()
        self._held_by_address[address] += 1
        return end, client

    def _pause_s(self) -> float:
        """Seconds until a handshake may begin."""
        now = _now()
        pause_s = self._handshakes.wait_s(now)
        if len(self._unfinished) < self._limits.unfinished:
            return pause_s
        oldest = next(iter(self._unfinished.values()))
        return max(pause_s, oldest + self._limits.unfinished_s - now, 0.0)

    def finish(self, client: UnauthenticatedClient, unusual_cpu_s: float) -> None:
        """Note the end of a handshake; see `UnauthenticatedClient.finish_handshake`."""
        if unusual_cpu_s:
            self._handshakes.charge(unusual_cpu_s / UNUSUAL_SHARE, _now())
        self._unfinished.pop(client, None)
        self._changed.set()

    def attach(self, client: UnauthenticatedClient, task: asyncio.Task[None]) -> None:
        """Record the task that serves the client. It is cancelled to close the connection."""
        if client in self._clients:
            self._clients[client] = task
        task.add_done_callback(lambda _: self._remove(client))

    def admit(self, client: UnauthenticatedClient) -> bool:
        """Free the client's place, give back what its handshake has taken, and prefer its address from now on. False if it has no place."""
        if not self._remove(client):
            return False
        self._handshakes.give_back()
        self._handshakes.charge(-client.unusual_cpu_s / UNUSUAL_SHARE, _now())
        self._changed.set()
        self._known_addresses.pop(client.address, None)
        self._known_addresses[client.address] = None  # re-added, so that the latest is last
        if len(self._known_addresses) > KNOWN_ADDRESSES:
            del self._known_addresses[next(iter(self._known_addresses))]
        return True

    def has(self, client: UnauthenticatedClient) -> bool:
        """Whether the client has a place, so that it is not admitted yet."""
        return client in self._clients

    def has_free_large_head(self) -> bool:
        """Whether fewer than `large_heads` clients have a large head."""
        return sum(client.is_large for client in self._clients) < self._limits.large_heads

    def close(self) -> None:
        """Close the connections that wait."""
        for connection in self._waiting:
            connection.end.close()
        self._waiting.clear()

    def _remove(self, client: UnauthenticatedClient) -> bool:
        if client not in self._clients:
            return False
        del self._clients[client]
        self._unfinished.pop(client, None)
        self._held_by_address[client.address] -= 1
        if not self._held_by_address[client.address]:
            del self._held_by_address[client.address]
        return True

    def _evict_one(self, candidates: list[UnauthenticatedClient]) -> None:
        self._warn()
        addresses = [client.address for client in candidates]
        client = candidates[choose_evicted(addresses, Counter(addresses))]
        task = self._clients[client]
        self._remove(client)
        if task is not None:
            task.cancel()

    def _warn(self) -> None:
        if _now() - self._warned_at >= WARNING_INTERVAL_S:
            self._warned_at = _now()
            [(address, count)] = self._held_by_address.most_common(1) or [("", 0)]
            log.warning(
                "too many unauthenticated connections; closing the oldest",
                waiting=len(self._waiting),
                clients=len(self._clients),
                most_from=address,
                of_these=count,
            )


def _now() -> float:
    return asyncio.get_running_loop().time()


def source_of(peer: tuple[object, ...]) -> str:
    """The source by which connections are limited: the IPv4 address, or the IPv6 /64 network, which one machine may own."""
    address = str(peer[0]).partition("%")[0]
    if ":" not in address:
        return address
    packed = ipaddress.IPv6Address(address)
    if packed.ipv4_mapped is not None:
        return str(packed.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(packed) >> 64 << 64)}/64"


async def serve_connections(
    listening: socket.socket,
    tls: CheckedTls | ContextsByGroup,
    server: HttpServer,
    limits: AdmissionLimits | None = None,
) -> None:
    """Serve the connections of a listening socket until cancelled. Cancellation closes all connections."""
    queue = ConnectionQueue(limits or AdmissionLimits())
    # in TLS the client sends first, so the kernel can hold a connection until its client has sent something
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(HANDSHAKE_S))
    listening.setblocking(False)
    async with Supervisor("connections") as supervisor:
        supervisor.start_root("accepting", _keep_accepting(listening, queue))
        try:
            while True:
                end, client = await queue.wait_next()
                work = _receive(end, client, tls, server)
                task = supervisor.start_child("connection", work, lambda _: None)
                task.add_done_callback(partial(_ended, end))
                queue.attach(client, task)
        finally:
            queue.close()


async def _keep_accepting(listening: socket.socket, queue: ConnectionQueue) -> None:
    """Accept every connection, because its source is known only afterwards."""
    while True:
        await wait_ready(listening.fileno())  # lets other tasks run in between
        try:
            for _ in range(ACCEPTED_AT_ONCE):
                end, peer = listening.accept()
                end.setblocking(False)
                queue.enqueue(QueuedConnection(end, source_of(peer)))
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in _FULL:
                log.error("cannot accept connections, trying again", error=error)
                await asyncio.sleep(PAUSE_S)


def _ended(end: socket.socket, _: asyncio.Task[None]) -> None:
    """Close the socket, also if the task ended before or without a handshake."""
    end.close()


async def _receive(
    end: socket.socket, client: UnauthenticatedClient, tls: CheckedTls | ContextsByGroup, server: HttpServer
) -> None:
    loop = asyncio.get_running_loop()
    context = await tls.for_client(end, HANDSHAKE_S) if isinstance(tls, ContextsByGroup) else tls
    protocol = asyncio.StreamReaderProtocol(client, loop=loop)
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, end, ssl=context, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=SHUTDOWN_S
        )
    except OSError:
        return  # a failed handshake is the client's problem
    finally:
        client.finish_handshake(context.take_unusual_cpu_s())
    client.unusual_cpu_s = unusual_cpu_s(transport)
    if transport.get_extra_info("peercert"):
        await client.admit()
    writer = asyncio.StreamWriter(transport, protocol, client, loop)
    with releasing_frames(client):
        try:
            await server.serve(client, writer)
            with contextlib.suppress(OSError):
                await writer.wait_closed()  # the connection uses memory until then
        finally:
            writer.transport.abort()
