"""Port-forward over SPDY, also through a WebSocket: many connections to ports of a sandbox through one of the client.

Owns: the streams of the connection, each pair of which is a connection to a port. The client is not read while one of the ports does not
take what it was sent, as SPDY is used without flow control of streams.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.net.websocket import spdy
from pykubelet.net.websocket.spdy_server import CANCEL, REFUSED, ServedFrameReader, StreamReplier, reset
from pykubelet_cri_docker.streaming.backend import StreamBackend
from pykubelet_cri_docker.streaming.client import Client, ClientGone, Inbox
from pykubelet_cri_docker.streaming.forward import forward
from pykubelet_cri_docker.streaming.pairs import DATA, Half, Pair, PairBook
from pykubelet_cri_docker.streaming.session import StreamLimits

PROTOCOL = "portforward.k8s.io"
TUNNEL = f"SPDY/3.1+{PROTOCOL}"


class SpdyOutlet:
    """The frames of a pair of streams."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.port = pair.port

    def data(self, data: bytes) -> bytes:
        """The frame with some bytes of the port."""
        return spdy.data_head(self._pair.data, len(data)) + data

    def end(self, error: str) -> bytes:
        """The end of both streams. After an error the client sends nothing more."""
        text = error.encode()
        frames = (
            spdy.data_head(self._pair.data, 0, last=True)
            + spdy.data_head(self._pair.error, len(text), last=True)
            + text
        )
        return frames + reset(self._pair.data, CANCEL) if error else frames


class _Connection:
    """A data stream. `task`: its connection to a port, once its error stream is there."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.task: asyncio.Task[None] | None = None


class SpdyForwardSession:
    """The port-forward of one client."""

    def __init__(self, client: Client, backend: StreamBackend, sandbox_id: str, limits: StreamLimits) -> None:
        self._client = client
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._limits = limits
        self._reader = ServedFrameReader()
        self._replier = StreamReplier()
        self._book = PairBook()
        self._has_halves = asyncio.Event()
        self._connections: dict[int, _Connection] = {}
        self._supervisor = Supervisor("port-forward")

    async def run(self) -> None:
        """Serve the client until it has disconnected or is idle for too long."""
        async with self._supervisor as supervisor:
            listening = supervisor.start_child("port-forward-listen", self._listen())
            idle = supervisor.start_child("port-forward-idle", self._client.wait_idle(self._limits.idle_s))
            expiring = supervisor.start_child("port-forward-expire", self._expire())
            done, _ = await asyncio.wait((listening, idle, expiring), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _listen(self) -> None:
        try:
            while data := await self._client.read():
                answers: list[bytes] = []
                filled: dict[int, Inbox] = {}
                for frame in self._reader.feed(data):
                    if isinstance(frame, spdy.GoneAway | spdy.Broken):
                        return
                    self._take(frame, answers, filled)
                await self._client.answer(b"".join(answers))
                for inbox in filled.values():
                    await self._client.while_there(inbox.wait_for_space)
        except ClientGone:
            return

    def _take(self, frame: spdy.Frame, answers: list[bytes], filled: dict[int, Inbox]) -> None:
        """Process a frame. `filled`: the inboxes that may be full now."""
        match frame:
            case spdy.Data():
                connection = self._connections.get(frame.stream)
                if connection is None:
                    return
                connection.inbox.put(frame.data)
                if connection.task is not None:
                    filled[frame.stream] = connection.inbox
                elif connection.inbox.is_full:  # waiting for space would keep its error stream from being opened
                    self._forget_half(frame.stream)
                    answers.append(reset(frame.stream, CANCEL))
            case spdy.Opened():
                answers.append(self._open(frame))
            case spdy.StreamFinished() if frame.stream in self._connections:
                self._connections[frame.stream].inbox.end()
            case spdy.Reset():
                self._forget_half(frame.stream)
                connection = self._connections.get(frame.stream)
                if connection is not None and connection.task is not None:
                    connection.task.cancel()
            case spdy.Ping() if frame.number % 2:
                answers.append(spdy.pong(frame.number))

    def _open(self, opened: spdy.Opened) -> bytes:
        """Begin a connection if both of its streams are there; returns the answer to the new one."""
        found = self._book.open(opened.stream, opened.headers)
        if found is None:
            return reset(opened.stream, REFUSED)
        if opened.headers["streamtype"] == DATA:
            self._connections[opened.stream] = _Connection()
        if isinstance(found, Half):
            self._has_halves.set()
        else:
            self._begin(found)
        return self._replier.accept(opened.stream)

    def _begin(self, pair: Pair) -> None:
        connection = self._connections[pair.data]
        work = forward(self._client, connection.inbox, SpdyOutlet(pair), self._backend, self._sandbox_id)
        connection.task = self._supervisor.start_child(f"port-forward-{pair.data}", work, on_crash=lambda _: None)

        def ended(_: asyncio.Task[None]) -> None:
            connection.inbox.close()
            self._book.forget_pair()
            self._connections.pop(pair.data, None)

        connection.task.add_done_callback(ended)

    def _forget_half(self, stream: int) -> None:
        connection = self._connections.get(stream)
        if connection is not None and connection.task is None:
            del self._connections[stream]
        self._book.forget_half(stream)

    async def _expire(self) -> None:
        """Reset streams of which the other one does not come, after one to two times the limit."""
        while True:
            await self._has_halves.wait()
            self._has_halves.clear()
            while known := {half.stream for half in self._book.halves}:
                await asyncio.sleep(self._limits.open_s)
                late = [half for half in self._book.halves if half.stream in known]
                for half in late:
                    self._forget_half(half.stream)
                    text = b"timed out waiting for streams"
                    error = spdy.data_head(half.stream, len(text), last=True) + text if half.kind != DATA else b""
                    await self._client.send(error + reset(half.stream, CANCEL))
