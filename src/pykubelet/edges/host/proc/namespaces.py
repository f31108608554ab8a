"""Connections that are made in the network namespace of another process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

from pykubelet.base.kit.flight import start_thread
from pykubelet.edges.host.fs import libc
from pykubelet.edges.host.fs.files import OpenDescriptor


async def connect_in(netns: str, addresses: Sequence[tuple[str, int]], limit_s: float) -> socket.socket:
    """Connect by TCP to the first of `addresses` (host, port) that answers, in the namespace at the path `netns`.

    A thread of its own enters the namespace and ends: a thread of a pool would stay there. Raises OSError, with the problem of
    each address and the code of the first.
    """
    loop = asyncio.get_running_loop()
    connected: asyncio.Future[socket.socket] = loop.create_future()

    def finish(found: socket.socket | None, code: int, problem: str) -> None:
        if connected.done():  # cancelled
            if found is not None:
                found.close()
        elif found is not None:
            connected.set_result(found)
        else:
            connected.set_exception(OSError(code, problem))

    def report(found: socket.socket | None, code: int = 0, problem: str = "") -> None:
        try:
            loop.call_soon_threadsafe(finish, found, code, problem)
        except RuntimeError:  # the program has ended
            if found is not None:
                found.close()

    def work() -> None:
        try:
            report(_connect(netns, addresses, limit_s))
        except OSError as error:
            report(None, error.errno or 0, error.strerror or str(error))

    start_thread(work, "netns")
    return await connected


def _connect(netns: str, addresses: Sequence[tuple[str, int]], limit_s: float) -> socket.socket:
    with OpenDescriptor(os.open(netns, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
        libc.setns(descriptor)
    failures: list[tuple[int, str]] = []
    for address in addresses:
        try:
            found = socket.create_connection(address, limit_s)
        except OSError as error:
            failures.append((error.errno or 0, f"{address[0]}: {error.strerror or error}"))
        else:
            found.setblocking(False)
            return found
    raise OSError(failures[0][0] if failures else 0, "; ".join(text for _, text in failures))
