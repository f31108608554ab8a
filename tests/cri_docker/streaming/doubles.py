"""Backends and clients of the streaming server: local processes and ports, a process that a test plays, and the bytes of a client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from pykubelet.net.websocket import spdy
from pykubelet_cri_docker.streaming.backend import (
    AttachTarget,
    BackendError,
    ExecTarget,
    Output,
    PortForwardTarget,
    StreamSet,
)
from pykubelet_cri_docker.streaming.server import StreamingServer, listen
from pykubelet_cri_docker.streaming.session import StreamLimits

ALL = StreamSet(stdin=True, stdout=True, stderr=True)
TERMINAL = StreamSet(stdin=True, stdout=True, tty=True)
V4 = "v4.channel.k8s.io"


class LocalProcess:
    """A child process of the tests, with pipes."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self._outputs: asyncio.Queue[Output | None] = asyncio.Queue(1)
        self._open = 2
        self.closed = asyncio.Event()
        self._pumps = [asyncio.create_task(self._pump(is_stderr)) for is_stderr in (False, True)]

    async def _pump(self, is_stderr: bool) -> None:
        pipe = self._child.stderr if is_stderr else self._child.stdout
        assert pipe is not None
        while data := await pipe.read(65536):
            await self._outputs.put(Output(data, is_stderr))
        await self._outputs.put(None)

    async def read(self) -> Output | None:
        while self._open:
            output = await self._outputs.get()
            if output is not None:
                return output
            self._open -= 1
        return None

    async def write(self, data: bytes) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(data)
        await self._child.stdin.drain()

    async def end_input(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()

    async def resize(self, width: int, height: int) -> None:
        raise BackendError("no terminal")

    async def wait(self) -> int:
        return await self._child.wait()

    async def close(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        await self._child.wait()
        self.closed.set()


class PlayedProcess:
    """A process that a test plays. `taken`: the bytes of output that were read of it."""

    def __init__(self) -> None:
        self.outputs: asyncio.Queue[Output | None] = asyncio.Queue()
        self.written = bytearray()
        self.has_ended_input = False
        self.sizes: list[tuple[int, int]] = []
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.takes_input = asyncio.Event()
        self.takes_input.set()
        self.taken = 0

    def say(self, data: bytes, *, is_stderr: bool = False) -> None:
        self.outputs.put_nowait(Output(data, is_stderr))

    def end(self, code: int = 0) -> None:
        self.outputs.put_nowait(None)
        self.code.set_result(code)

    async def read(self) -> Output | None:
        output = await self.outputs.get()
        self.taken += len(output.data) if output is not None else 0
        return output

    async def write(self, data: bytes) -> None:
        await self.takes_input.wait()
        self.written += data

    async def end_input(self) -> None:
        self.has_ended_input = True

    async def resize(self, width: int, height: int) -> None:
        self.sizes.append((width, height))

    async def wait(self) -> int:
        return await self.code

    async def close(self) -> None:
        self.closed.set()


class Local:
    """Runs commands as local processes, attaches to a played one, and connects to local ports. `refusal`: the error of each call."""

    def __init__(self) -> None:
        self.played = PlayedProcess()
        self.executed: list[ExecTarget] = []
        self.refusal = ""
        self.children: list[LocalProcess] = []

    async def exec(self, target: ExecTarget) -> LocalProcess | PlayedProcess:
        self._check()
        self.executed.append(target)
        if not target.command:
            return self.played
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(*target.command, stdin=pipe, stdout=pipe, stderr=pipe)
        self.children.append(LocalProcess(child))
        return self.children[-1]

    async def attach(self, target: AttachTarget) -> PlayedProcess:
        self._check()
        return self.played

    async def connect(self, sandbox_id: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._check()
        return await asyncio.open_connection("127.0.0.1", port)

    def _check(self) -> None:
        if self.refusal:
            raise BackendError(self.refusal)


@asynccontextmanager
async def serving(backend: Local, limits: StreamLimits | None = None) -> AsyncIterator[StreamingServer]:
    server = StreamingServer(backend, listen(), limits)
    task = asyncio.create_task(server.serve())
    await asyncio.sleep(0)
    try:
        yield server
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10):
            for child in backend.children:
                await child.closed.wait()
        for _ in range(20):
            await asyncio.sleep(0)


def command(*words: str, streams: StreamSet = ALL) -> ExecTarget:
    return ExecTarget("container", words, streams)


def shell(script: str, streams: StreamSet = ALL) -> ExecTarget:
    return command("sh", "-c", script, streams=streams)


PLAYED = command()
SANDBOX = PortForwardTarget("sandbox")


async def connect(url: str, headers: dict[str, str]) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    """The head of the answer, and the connection after it."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    lines = [
        f"POST {parts.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    return (await reader.readuntil(b"\r\n\r\n")).decode(), reader, writer


class SpdyPeer:
    """A client that speaks SPDY, and what it has got so far, by stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.replied: set[int] = set()
        self.refused: set[int] = set()
        self.finished: set[int] = set()
        self.data: dict[int, bytearray] = {}
        self.pongs: list[int] = []
        self.ended = False
        self._opener = spdy.StreamOpener()
        self._frames = spdy.SpdyFrameReader()
        self._next = 1

    def open(self, kind: str, **more: str) -> int:
        number, self._next = self._next, self._next + 2
        self.writer.write(self._opener.open(number, {"streamtype": kind, **more}))
        return number

    def send(self, stream: int, data: bytes, *, last: bool = False) -> None:
        self.writer.write(spdy.data_head(stream, len(data), last=last) + data)

    def got(self, stream: int) -> bytes:
        return bytes(self.data.get(stream, b""))

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Read until something is there."""
        async with asyncio.timeout(600):
            while not is_reached():
                data = await self.reader.read(65536)
                for frame in self._frames.feed(data):
                    self._take(frame)
                if not data:
                    self.ended = True
                    assert is_reached(), vars(self)

    async def until_end(self) -> None:
        await self.until(lambda: self.ended)

    def _take(self, frame: spdy.Frame) -> None:
        match frame:
            case spdy.Data():
                self.data.setdefault(frame.stream, bytearray()).extend(frame.data)
            case spdy.Replied():
                self.replied.add(frame.stream)
            case spdy.StreamFinished():
                self.finished.add(frame.stream)
            case spdy.Reset():
                self.refused.add(frame.stream)
            case spdy.Ping():
                self.pongs.append(frame.number)


@asynccontextmanager
async def spdy_peer(url: str, protocol: str = V4) -> AsyncIterator[SpdyPeer]:
    upgrade = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": protocol}
    head, reader, writer = await connect(url, upgrade)
    try:
        assert head.startswith("HTTP/1.1 101 "), head
        assert f"X-Stream-Protocol-Version: {protocol.split(',')[0]}\r\n" in head
        yield SpdyPeer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def opened(peer: SpdyPeer, *kinds: str) -> list[int]:
    return [peer.open(kind) for kind in kinds]
