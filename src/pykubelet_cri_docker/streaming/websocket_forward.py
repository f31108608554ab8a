"""Port-forward over a WebSocket without a tunnel: one connection to each port that the CRI call named.

The port with the place n in that list has the channels 2n for data and 2n + 1 for an error. The first message of each is the port, in two
bytes of which the lower one is first. A client cannot end its direction of a connection.
Source: Kubernetes' `v4.channel.k8s.io` of port-forward.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.net.websocket import frames
from pykubelet_cri_docker.streaming.backend import PortForwardTarget, StreamBackend
from pykubelet_cri_docker.streaming.client import Client, ClientGone, Inbox
from pykubelet_cri_docker.streaming.forward import forward
from pykubelet_cri_docker.streaming.session import PARTING_S, StreamLimits
from pykubelet_cri_docker.streaming.websocket_messages import BASE64_V4, V4, ChannelReader, ChannelWriter

PROTOCOLS = (V4, BASE64_V4, "")
#: Channels are numbered by a byte.
MAX_PORTS = 127


class ChannelOutlet:
    """The messages of one connection. `place`: that of its port."""

    def __init__(self, writer: ChannelWriter, place: int, port: int) -> None:
        self._writer = writer
        self._channel = 2 * place
        self.port = port

    def start(self) -> bytes:
        """The first messages of both channels."""
        number = self.port.to_bytes(2, "little")
        return self._writer.message(self._channel, number) + self._writer.message(self._channel + 1, number)

    def data(self, data: bytes) -> bytes:
        """The message with some bytes of the port."""
        return self._writer.message(self._channel, data)

    def end(self, error: str) -> bytes:
        """The error, if there is one."""
        return self._writer.message(self._channel + 1, error.encode()) if error else b""


class WebSocketForwardSession:
    """The port-forward of one client. `protocol`: one of PROTOCOLS."""

    def __init__(
        self, client: Client, backend: StreamBackend, target: PortForwardTarget, limits: StreamLimits, protocol: str
    ) -> None:
        self._client = client
        self._backend = backend
        self._target = target
        self._limits = limits
        self._reader = ChannelReader(protocol)
        self._writer = ChannelWriter(protocol)
        self._inboxes = [Inbox() for _ in target.ports]

    async def run(self) -> None:
        """Serve the client until all ports have ended, or the client has disconnected or is idle for too long."""
        async with Supervisor("port-forward") as supervisor:
            serving = supervisor.start_child("port-forward-serve", self._serve())
            listening = supervisor.start_child("port-forward-listen", self._listen())
            idle = supervisor.start_child("port-forward-idle", self._client.wait_idle(self._limits.idle_s))
            await asyncio.wait((serving, listening, idle), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
                await asyncio.wait((listening,), timeout=PARTING_S)
            if listening.done():
                listening.result()

    async def _listen(self) -> None:
        try:
            while data := await self._client.read():
                received = self._reader.feed(data)
                filled: set[Inbox] = set()
                for channel, content in received.pieces:
                    if channel % 2 == 0 and channel // 2 < len(self._inboxes):
                        self._inboxes[channel // 2].put(content)
                        filled.add(self._inboxes[channel // 2])
                await self._client.answer(received.answer + received.close_frame)
                if received.close_frame:
                    return
                for inbox in filled:
                    await self._client.while_there(inbox.wait_for_space)
        except ClientGone:
            return

    async def _serve(self) -> None:
        outlets = [ChannelOutlet(self._writer, place, port) for place, port in enumerate(self._target.ports)]
        try:
            await self._client.send(b"".join(outlet.start() for outlet in outlets))
            async with Supervisor("ports") as supervisor:
                for outlet, inbox in zip(outlets, self._inboxes, strict=True):
                    work = forward(self._client, inbox, outlet, self._backend, self._target.sandbox_id)
                    supervisor.start_child(f"port-{outlet.port}", work, on_crash=lambda _: None)
                await supervisor.wait_ended(self._limits.idle_s)
            await self._client.finish(frames.close_frame(frames.NORMAL))
        except ClientGone:
            return
