"""One connection to a port of a sandbox, for a client of port-forward.

Either side may end its direction first. When the port has ended, the client gets this at once, and has PARTING_S for what it still sends.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from pykubelet.base.kit.supervise import Supervisor
from pykubelet_cri_docker.streaming.backend import BackendError, StreamBackend
from pykubelet_cri_docker.streaming.client import Client, ClientGone, Inbox
from pykubelet_cri_docker.streaming.session import PARTING_S

#: The most bytes of a port that are sent in one frame.
PORT_PIECE = 32 * 1024


class Outlet(Protocol):
    """The frames of one connection. `port`: the port's number."""

    @property
    def port(self) -> int:
        """The number of the port."""
        ...

    def data(self, data: bytes) -> bytes:
        """The frame with some bytes of the port."""
        ...

    def end(self, error: str) -> bytes:
        """The last frames: the port has ended, or there was an error."""
        ...


async def forward(client: Client, inbox: Inbox, outlet: Outlet, backend: StreamBackend, sandbox_id: str) -> None:
    """Connect to the port, and move bytes until both sides have ended or the client has disconnected."""
    try:
        reader, writer = await backend.connect(sandbox_id, outlet.port)
    except (BackendError, OSError) as error:
        inbox.close()
        with contextlib.suppress(ClientGone):
            await client.send(outlet.end(f"error forwarding port {outlet.port} to pod {sandbox_id}, uid : {error}"))
        return
    try:
        async with Supervisor("forward") as supervisor:
            sending = supervisor.start_child("forward-up", _send(inbox, writer))
            while data := await _read(reader):
                await client.send(outlet.data(data))
            await client.send(outlet.end(""))
            await asyncio.wait((sending,), timeout=PARTING_S)
    except ClientGone:
        return
    finally:
        inbox.close()
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(PORT_PIECE)
    except OSError:
        return b""  # a reset: what came before it was read


async def _send(inbox: Inbox, writer: asyncio.StreamWriter) -> None:
    """Send what the client sends, and then its end."""
    try:
        while data := await inbox.take():
            writer.write(data)
            await writer.drain()
        writer.transport.set_write_buffer_limits(0)
        await writer.drain()
        writer.write_eof()
    except OSError:
        inbox.close()
