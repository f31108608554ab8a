"""Clients that send what they like, in threads of their own: their CPU time is not the agent's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

#: Given a connected socket; what it raises as OSError is the server's answer to it.
Talk = Callable[[socket.socket], None]
PATIENCE_S = 2.0


def saying(data: bytes) -> Talk:
    """Send, and read for as long as the server answers."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(data)
        while connection.recv(1 << 20):
            pass

    return talk


def flooding(first: bytes, again: bytes, most_bytes: int = 16 << 20) -> Talk:
    """`first`, and then `again` for as long as the server takes it."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(first)
        block = again * max(1, 65536 // len(again))
        for _ in range(most_bytes // len(block)):
            connection.sendall(block)

    return talk


async def attack_port(port: int, talk: Talk, clients: int = 1) -> None:
    """`clients` at once over TLS to a port of loopback, each until it is done or has waited too long."""
    tls = ssl._create_unverified_context()

    def attack() -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain,
            tls.wrap_socket(plain) as connection,
        ):
            talk(connection)

    await _at_once(attack, clients)


async def attack_socket(path: str, talk: Talk, clients: int = 1) -> None:
    """The same on a unix socket."""

    def attack() -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(path)
            talk(connection)

    await _at_once(attack, clients)


async def _at_once(attack: Callable[[], None], clients: int) -> None:
    with ThreadPoolExecutor(clients) as threads:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(threads, attack) for _ in range(clients)))
