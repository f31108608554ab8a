"""The door of the authenticated port: connections come in, through TLS, and are strangers until somebody lets them in.

Owns: accepting, and what strangers may take of the agent's memory: places, of which the one who has had his longest loses it
when others wait, and heads longer than a small one, of which there are few. Who was let in, or shows a certificate of the
client CA, counts as none: a crowd of strangers costs him nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.report.server.http.server import HttpServer

log = Log("server")
HANDSHAKE_S, SHUTDOWN_S = 10.0, 2.0
PAUSE_S = 1.0
SAID_AGAIN_S = 60.0
#: As Go's servers: a machine that is gone is noticed after two and a half minutes.
KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 9}
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class LobbyLimits(Value):
    """`places` for strangers, each of whom keeps his for `grace_s` at least. `head`, `large_head`: bytes of a request's head;
    of the large ones there may be `large_heads` at a time."""

    places: int = 128
    grace_s: float = 0.5
    head: int = 16 << 10
    large_head: int = 1 << 20
    large_heads: int = 8


def keep_alive(end: socket.socket) -> None:
    """Ask now and then whether the machine at the other end is still there. Connections have it from the socket that listens.

    There is no TCP_USER_TIMEOUT: it would also end the streams of those who are there and do not read for a while.
    """
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        end.setsockopt(socket.IPPROTO_TCP, option, value)


class Stranger(asyncio.StreamReader):
    """What somebody says who is not known; kept small until he is let in."""

    def __init__(self, lobby: Lobby, limits: LobbyLimits) -> None:
        super().__init__(limits.head, asyncio.get_running_loop())
        self._lobby = lobby
        self._limits = limits
        self.came_at = asyncio.get_running_loop().time()
        self.is_large = False

    def let_in(self) -> None:
        self._lobby.leave(self)
        self._limit = self._limits.large_head

    def may_say_more(self) -> bool:
        """Whether his head may be a large one."""
        if self.is_large or not self._lobby.has_room_for_large(self):
            return False
        self.is_large = True
        self._limit = self._limits.large_head
        return True


class Lobby:
    """All strangers, those who came first before the others."""

    def __init__(self, limits: LobbyLimits) -> None:
        self._limits = limits
        self._there: dict[Stranger, asyncio.Task[None] | None] = {}
        self._left = asyncio.Event()
        self._said_at = -SAID_AGAIN_S

    async def wait_place(self) -> None:
        """Until a place is free; made free by whoever has had his for too long."""
        now = asyncio.get_running_loop().time
        while len(self._there) >= self._limits.places:
            first = next(iter(self._there))
            wait_s = first.came_at + self._limits.grace_s - now()
            if wait_s <= 0:
                self._turn_out(first, now())
                return
            self._left.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._left.wait()

    def enter(self) -> Stranger:
        stranger = Stranger(self, self._limits)
        self._there[stranger] = None
        return stranger

    def seat(self, stranger: Stranger, task: asyncio.Task[None]) -> None:
        """`task` has the connection, and is cancelled to end it."""
        if stranger in self._there:
            self._there[stranger] = task
        task.add_done_callback(lambda _: self.leave(stranger))

    def leave(self, stranger: Stranger) -> None:
        self._there.pop(stranger, None)
        self._left.set()

    def has_room_for_large(self, stranger: Stranger) -> bool:
        return stranger not in self._there or sum(one.is_large for one in self._there) < self._limits.large_heads

    def _turn_out(self, stranger: Stranger, now: float) -> None:
        if now - self._said_at >= SAID_AGAIN_S:
            self._said_at = now
            log.warning("many connections of nobody who is known; the oldest are cut off", at_once=len(self._there))
        task = self._there[stranger]
        self.leave(stranger)
        if task is not None:
            task.cancel()


async def keep_open(
    listening: socket.socket, tls: ssl.SSLContext, server: HttpServer, limits: LobbyLimits | None = None
) -> None:
    """Take in whoever connects. Ends only by cancellation, and all connections with it."""
    loop = asyncio.get_running_loop()
    limits = limits or LobbyLimits()
    lobby = Lobby(limits)
    listening.setblocking(False)
    async with Supervisor("connections") as supervisor:
        while True:
            await lobby.wait_place()
            try:
                end, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _FULL:
                    log.error("cannot accept connections, trying again", error=error)
                    await asyncio.sleep(PAUSE_S)
                continue
            stranger = lobby.enter()
            work = _receive(end, stranger, tls, server)
            lobby.seat(stranger, supervisor.start_child("connection", work, lambda _: None))


async def _receive(end: socket.socket, stranger: Stranger, tls: ssl.SSLContext, server: HttpServer) -> None:
    loop = asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(stranger, loop=loop)
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, end, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=SHUTDOWN_S
        )
    except OSError:
        end.close()
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
