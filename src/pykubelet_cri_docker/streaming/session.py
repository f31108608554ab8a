"""One exec or attach: moves bytes between a client and a process.

Owns: the process from its start, its deadlines and its end. The `Channels` translate. The client is read only as fast as the process reads
its input, and the process as fast as the client reads the output. A client that disconnects ends the session at once; at the end of the
process, the client gets all output before the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet_cri_docker.streaming.backend import BackendError, Process
from pykubelet_cri_docker.streaming.channels import Channels, TerminalSize
from pykubelet_cri_docker.streaming.client import Client, ClientGone, Inbox
from pykubelet_cri_docker.streaming.status import SUCCESS, StreamResult, exit_status, failure

#: The most seconds for a client to answer the end of the stream.
PARTING_S = 30.0


class StreamLimits(Value):
    """Seconds until streams must be open, and after which a stream without data ends."""

    open_s: float = 30.0
    idle_s: float = 4 * 3600.0


class Job(Value):
    """The process of a session. `has_code`: the result is its exit code. `what`: for errors, such as "attaching to container"."""

    start: Callable[[], Awaitable[Process]]
    has_code: bool
    what: str


class ProcessSession:
    """The session of one client."""

    def __init__(self, client: Client, channels: Channels, job: Job, limits: StreamLimits) -> None:
        self._client = client
        self._channels = channels
        self._job = job
        self._limits = limits
        self._is_open = asyncio.Event()
        self._stdin = Inbox()
        self._size: TerminalSize | None = None
        self._resized = asyncio.Event()

    async def run(self) -> None:
        """Serve the client until the process has ended, or the client has disconnected or is idle for too long."""
        async with Supervisor("stream") as supervisor:
            serving = supervisor.start_child("stream-serve", self._serve())
            listening = supervisor.start_child("stream-listen", self._listen())
            idle = supervisor.start_child("stream-idle", self._client.wait_idle(self._limits.idle_s))
            await asyncio.wait((serving, listening, idle), return_when=asyncio.FIRST_COMPLETED)
            if serving.done() and serving.result():
                # closing with unread bytes would lose data that the client has not read yet
                await asyncio.wait((listening,), timeout=PARTING_S)
            if listening.done():
                listening.result()

    async def _listen(self) -> None:
        """Read the client until it has disconnected."""
        try:
            while data := await self._client.read():
                received = self._channels.feed(data)
                if self._channels.is_open:
                    self._is_open.set()
                if received.size is not None:
                    self._size = received.size
                    self._resized.set()
                for piece in received.stdin:
                    self._stdin.put(piece)
                if received.stdin_ended:
                    self._stdin.end()
                await self._client.answer(received.answer)
                if received.is_over:
                    return
                await self._client.while_there(self._stdin.wait_for_space)
        except ClientGone:
            return

    async def _serve(self) -> bool:
        """Run the process and send the result. Returns False if the client has disconnected, or does not open the streams."""
        try:
            await self._client.send(self._channels.start())
            if not self._channels.is_open:
                async with asyncio.timeout(self._limits.open_s):
                    await self._is_open.wait()
            status = await self._run_process()
            self._stdin.close()
            await self._client.finish(self._channels.finish(status))
        except (ClientGone, TimeoutError):
            return False
        return True

    async def _run_process(self) -> StreamResult:
        try:
            process = await self._job.start()
            try:
                return await self._attend(process)
            finally:
                await process.close()
        except (BackendError, OSError) as error:
            return failure(f"error {self._job.what}: {error}")

    async def _attend(self, process: Process) -> StreamResult:
        """Serve the process until it has ended."""
        async with Supervisor("process") as supervisor:
            supervisor.start_child("process-stdin", self._feed(process))
            supervisor.start_child("process-resize", self._resize(process))
            while (output := await process.read()) is not None:
                await self._client.send(self._channels.output(output.data, is_stderr=output.is_stderr))
            return exit_status(await process.wait()) if self._job.has_code else SUCCESS

    async def _feed(self, process: Process) -> None:
        try:
            while data := await self._stdin.take():
                await process.write(data)
            await process.end_input()
        except (BackendError, OSError):
            self._stdin.close()  # the process reads no more, and may still write

    async def _resize(self, process: Process) -> None:
        while True:
            await self._resized.wait()
            self._resized.clear()
            size = self._size
            if size is not None:
                try:
                    await process.resize(size.width, size.height)
                except (BackendError, OSError):
                    continue  # a process that has just ended has no terminal
