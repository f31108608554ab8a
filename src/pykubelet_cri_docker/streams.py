"""Processes in Docker's containers and ports of sandboxes, as the streaming server wants them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pykubelet.edges.host.proc.namespaces import connect_in
from pykubelet_cri_docker.containers import Containers
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.output import OutputReader
from pykubelet_cri_docker.engine.transport import EngineError, RawStream
from pykubelet_cri_docker.exec_sync import end_exec, read_exit_code
from pykubelet_cri_docker.sandboxes import PodSandboxes, netns_of
from pykubelet_cri_docker.streaming.backend import AttachTarget, BackendError, ExecTarget, Output, Process

T = TypeVar("T")
CONNECT_S = 10.0


class DockerProcess:
    """The streams of a process. `exec_id`: empty for the first process of a container, which goes on without its client."""

    def __init__(self, engine: Engine, container_id: str, exec_id: str, stream: RawStream, *, tty: bool) -> None:
        self._engine = engine
        self._container_id = container_id
        self._exec_id = exec_id
        self._stream = stream
        self._reader = None if tty else OutputReader()
        self._waiting: deque[Output] = deque()

    async def read(self) -> Output | None:
        """See `Process`."""
        while not self._waiting:
            data = await self._stream.read()
            if not data:
                return None
            if self._reader is None:
                return Output(data)
            self._waiting.extend(Output(piece, is_stderr) for is_stderr, piece in self._reader.feed(data))
        return self._waiting.popleft()

    async def write(self, data: bytes) -> None:
        """See `Process`."""
        self._stream.writer.write(data)
        await self._stream.writer.drain()

    async def end_input(self) -> None:
        """See `Process`."""
        self._stream.writer.write_eof()

    async def resize(self, width: int, height: int) -> None:
        """See `Process`."""
        resize = self._engine.resize_exec if self._exec_id else self._engine.resize
        await _asked(lambda: resize(self._exec_id or self._container_id, width, height))

    async def wait(self) -> int:
        """See `Process`."""
        return await _asked(lambda: read_exit_code(self._engine, self._exec_id))

    async def close(self) -> None:
        """See `Process`."""
        self._stream.close()
        if self._exec_id:
            await _asked(lambda: end_exec(self._engine, self._exec_id))


class DockerStreams:
    """The backend of the streaming server."""

    def __init__(self, engine: Engine, sandboxes: PodSandboxes, containers: Containers) -> None:
        self._engine = engine
        self._sandboxes = sandboxes
        self._containers = containers

    async def exec(self, target: ExecTarget) -> Process:
        """See `StreamBackend`."""
        return await _asked(lambda: self._exec(target))

    async def attach(self, target: AttachTarget) -> Process:
        """See `StreamBackend`. Whether the process has a terminal is known of the container, not of the client."""
        return await _asked(lambda: self._attach(target))

    async def connect(self, sandbox_id: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """See `StreamBackend`."""
        found = await _asked(lambda: self._sandboxes.inspect(sandbox_id))
        netns = netns_of(found)
        if not netns:
            raise BackendError(f"sandbox {sandbox_id} is not running")
        connected = await connect_in(netns, (("127.0.0.1", port), ("::1", port)), CONNECT_S)
        return await asyncio.open_connection(sock=connected)

    async def _exec(self, target: ExecTarget) -> Process:
        found, streams = await self._containers.inspect(target.container_id), target.streams
        wanted = docker.NewExec(
            list(target.command),
            tty=streams.tty,
            attach_stdin=streams.stdin,
            attach_stdout=streams.stdout,
            attach_stderr=streams.stderr and not streams.tty,
        )
        exec_id = await self._engine.create_exec(found.id, wanted)
        stream = await self._engine.start_exec(exec_id, tty=streams.tty)
        return DockerProcess(self._engine, found.id, exec_id, stream, tty=streams.tty)

    async def _attach(self, target: AttachTarget) -> Process:
        found, streams = await self._containers.inspect(target.container_id), target.streams
        if found.state.status != "running":
            raise BackendError(f"container {target.container_id} is not running")
        stream = await self._engine.attach(found.id, stdin=streams.stdin, stdout=streams.stdout, stderr=streams.stderr)
        return DockerProcess(self._engine, found.id, "", stream, tty=found.config.tty)


async def _asked(call: Callable[[], Awaitable[T]]) -> T:
    try:
        return await call()
    except EngineError as error:
        raise BackendError(error.message) from error
