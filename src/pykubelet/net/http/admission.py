"""The door of the authenticated port: connections come in, through TLS, and are strangers until somebody lets them in.

Owns: accepting, and what strangers may take of the agent's time and memory: how many wait before the door, how many are
inside (`decide.py` says who comes and who goes), and heads longer than a small one, of which there are few. Who was let
in, or shows a certificate of the client CA, counts as none: a crowd of strangers costs him nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import ssl
from collections import Counter
from functools import partial
from typing import NamedTuple

from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.net.http.client_hello import ContextsByGroup
from pykubelet.net.http.decide_admission import choose_leaver, choose_next
from pykubelet.net.http.server import HttpServer

log = Log("server")
HANDSHAKE_S, SHUTDOWN_S = 10.0, 2.0
PAUSE_S = 1.0
KNOWN_ADDRESSES = 64
#: So many are accepted before all else that is to be done has its turn.
ACCEPTED_AT_ONCE = 32
SAID_AGAIN_S = 60.0
#: As Go's servers: a machine that is gone is noticed after two and a half minutes.
KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 9}
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class LobbyLimits(Value):
    """`places` for strangers, each of whom keeps his for `grace_s` at least, unless others from his address have most of them.
    `handshakes`, fewer than places, may begin at once; `waiting` connections are those with which none has begun.
    `head`, `large_head`: bytes of a request's head; of the large ones there may be `large_heads` at a time. `known_head`: of
    clients that were let in."""

    places: int = 128
    grace_s: float = 0.5
    handshakes: int = 32
    waiting: int = 2048
    head: int = 16 << 10
    large_head: int = 128 << 10
    large_heads: int = 8
    known_head: int = 1 << 20


def keep_alive(end: socket.socket) -> None:
    """Ask now and then whether the machine at the other end is still there. Connections have it from the socket that listens.

    There is no TCP_USER_TIMEOUT: it would also end the streams of those who are there and do not read for a while.
    """
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        end.setsockopt(socket.IPPROTO_TCP, option, value)


class Stranger(asyncio.StreamReader):
    """What somebody says who is not known; kept small until he is let in."""

    def __init__(self, lobby: Lobby, limits: LobbyLimits, address: str) -> None:
        super().__init__(limits.head, asyncio.get_running_loop())
        self._lobby = lobby
        self._limits = limits
        self.address = address
        self.is_large = False

    @property
    def is_let_in(self) -> bool:
        return not self._lobby.has(self)

    def let_in(self) -> None:
        self._lobby.let_in(self)
        self._limit = self._limits.known_head

    def may_say_more(self) -> bool:
        """Whether his head may be a large one."""
        if self.is_large or not self._lobby.has_room_for_large(self):
            return False
        self.is_large = True
        self._limit = self._limits.large_head
        return True


class Arrival(NamedTuple):
    """A connection of which nothing was read yet, and where it comes from, as `source_of` says."""

    end: socket.socket
    address: str


class Lobby:
    """All strangers: those who wait, and those who are inside, both as they came."""

    def __init__(self, limits: LobbyLimits) -> None:
        self._limits = limits
        self._waiting: list[Arrival] = []
        self._inside: dict[Stranger, asyncio.Task[None] | None] = {}
        self._from: Counter[str] = Counter()
        self._known: dict[str, None] = {}
        rate = (limits.places - limits.handshakes) / limits.grace_s  # so it takes a grace to fill all places
        self._handshakes = TokenBucket(rate, limits.handshakes)
        self._changed = asyncio.Event()
        self._said_at = -SAID_AGAIN_S

    def arrive(self, arrival: Arrival) -> None:
        """Let somebody wait. Where too many do, who has waited for longest is cut off."""
        self._waiting.append(arrival)
        if len(self._waiting) > self._limits.waiting:
            self._waiting.pop(0).end.close()
            self._complain()
        self._changed.set()

    async def wait_next(self) -> tuple[socket.socket, Stranger]:
        """Whoever comes in next, as soon as he may. He has a place then, and somebody else may have lost his."""
        while not self._waiting or (pause_s := self._handshakes.wait_s(_now())):
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s if self._waiting else None):
                    await self._changed.wait()
        self._handshakes.take(_now())
        chosen = 0
        if len(self._waiting) > 1:
            chosen = choose_next([arrival.address for arrival in self._waiting], self._from, self._known)
        end, address = self._waiting.pop(chosen)
        if len(self._inside) >= self._limits.places:
            self._turn_one_out()
        stranger = Stranger(self, self._limits, address)
        self._inside[stranger] = None
        self._from[address] += 1
        return end, stranger

    def seat(self, stranger: Stranger, task: asyncio.Task[None]) -> None:
        """`task` has the connection, and is cancelled to end it."""
        if stranger in self._inside:
            self._inside[stranger] = task
        task.add_done_callback(lambda _: self._leave(stranger))

    def let_in(self, stranger: Stranger) -> None:
        if self._leave(stranger):
            self._handshakes.give_back()
            self._changed.set()
            self._known.pop(stranger.address, None)
            self._known[stranger.address] = None  # the latest is last
            if len(self._known) > KNOWN_ADDRESSES:
                del self._known[next(iter(self._known))]

    def has(self, stranger: Stranger) -> bool:
        """Whether it is inside and was not let in yet."""
        return stranger in self._inside

    def has_room_for_large(self, stranger: Stranger) -> bool:
        return stranger not in self._inside or sum(one.is_large for one in self._inside) < self._limits.large_heads

    def close(self) -> None:
        """Nobody waits any longer."""
        for arrival in self._waiting:
            arrival.end.close()
        self._waiting.clear()

    def _leave(self, stranger: Stranger) -> bool:
        if stranger not in self._inside:
            return False
        del self._inside[stranger]
        self._from[stranger.address] -= 1
        if not self._from[stranger.address]:
            del self._from[stranger.address]
        return True

    def _turn_one_out(self) -> None:
        self._complain()
        there = list(self._inside)
        stranger = there[choose_leaver([one.address for one in there], self._from)]
        task = self._inside[stranger]
        self._leave(stranger)
        if task is not None:
            task.cancel()

    def _complain(self) -> None:
        if _now() - self._said_at >= SAID_AGAIN_S:
            self._said_at = _now()
            [(address, count)] = self._from.most_common(1) or [("", 0)]
            log.warning(
                "many connections of nobody who is known; the oldest are cut off",
                waiting=len(self._waiting),
                inside=len(self._inside),
                most_from=address,
                of_these=count,
            )


def _now() -> float:
    return asyncio.get_running_loop().time()


def source_of(peer: tuple[object, ...]) -> str:
    """Whose a connection is, as far as an address tells: of IPv6 it is the network, in which one machine may have all."""
    address = str(peer[0]).partition("%")[0]
    if ":" not in address:
        return address
    packed = ipaddress.IPv6Address(address)
    if packed.ipv4_mapped is not None:
        return str(packed.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(packed) >> 64 << 64)}/64"


async def keep_open(
    listening: socket.socket,
    tls: ssl.SSLContext | ContextsByGroup,
    server: HttpServer,
    limits: LobbyLimits | None = None,
) -> None:
    """Take in whoever connects. Ends only by cancellation, and all connections with it."""
    lobby = Lobby(limits or LobbyLimits())
    listening.setblocking(False)
    async with Supervisor("connections") as supervisor:
        supervisor.start_root("accepting", _keep_accepting(listening, lobby))
        try:
            while True:
                end, stranger = await lobby.wait_next()
                work = _receive(end, stranger, tls, server)
                task = supervisor.start_child("connection", work, lambda _: None)
                task.add_done_callback(partial(_ended, end))
                lobby.seat(stranger, task)
        finally:
            lobby.close()


async def _keep_accepting(listening: socket.socket, lobby: Lobby) -> None:
    """Everybody is accepted, for where he comes from shows no sooner."""
    while True:
        await _wait_readable(listening)  # and all else that is to be done has its turn
        try:
            for _ in range(ACCEPTED_AT_ONCE):
                end, peer = listening.accept()
                end.setblocking(False)
                lobby.arrive(Arrival(end, source_of(peer)))
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in _FULL:
                log.error("cannot accept connections, trying again", error=error)
                await asyncio.sleep(PAUSE_S)


async def _wait_readable(listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(listening, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(listening)


def _ended(end: socket.socket, _: asyncio.Task[None]) -> None:
    """Also of one who had to go before his handshake began, and of one with whom there was none."""
    end.close()


async def _receive(
    end: socket.socket, stranger: Stranger, tls: ssl.SSLContext | ContextsByGroup, server: HttpServer
) -> None:
    loop = asyncio.get_running_loop()
    context = await tls.for_client(end, HANDSHAKE_S) if isinstance(tls, ContextsByGroup) else tls
    protocol = asyncio.StreamReaderProtocol(stranger, loop=loop)
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, end, ssl=context, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=SHUTDOWN_S
        )
    except OSError:
        return  # no handshake: that is between the client and its settings
    if transport.get_extra_info("peercert"):
        stranger.let_in()
    writer = asyncio.StreamWriter(transport, protocol, stranger, loop)
    try:
        await server.serve(stranger, writer)
        with contextlib.suppress(OSError):
            await writer.wait_closed()  # until then it has its memory
    finally:
        writer.transport.abort()
