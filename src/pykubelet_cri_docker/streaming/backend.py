"""What is streamed: processes in containers and ports of sandboxes, as the runtime below provides them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pykubelet.base.kit.values import Value


class BackendError(Exception):
    """The runtime cannot start or continue a stream. The text is for the client."""


class StreamSet(Value):
    """The streams of a process that are requested. With a terminal there is no separate stderr."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


class ExecTarget(Value):
    """A command to run in a container."""

    container_id: str
    command: tuple[str, ...]
    streams: StreamSet


class AttachTarget(Value):
    """The first process of a container."""

    container_id: str
    streams: StreamSet


class PortForwardTarget(Value):
    """A sandbox with ports. `ports`: those that a WebSocket without a tunnel forwards; SPDY names a port with each connection."""

    sandbox_id: str
    ports: tuple[int, ...] = ()


class Output(Value):
    """Some bytes of stdout or stderr."""

    data: bytes
    is_stderr: bool = False


class Process(Protocol):
    """A process with its streams. Its methods may be called at the same time, but each only once at a time.

    They raise BackendError or OSError.
    """

    async def read(self) -> Output | None:
        """The next output, at most some 64 KiB; None when all output has ended. Reads no faster than it is called."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to stdin. Returns when more may be written."""

    async def end_input(self) -> None:
        """End stdin, after what was written."""

    async def resize(self, width: int, height: int) -> None:
        """Change the size of the terminal, in characters."""

    async def wait(self) -> int:
        """The exit code, when the process has ended. Not called for an attached one."""
        ...

    async def close(self) -> None:
        """Give the streams back. When the client of an exec has disconnected, the command ends, as far as the runtime can end it."""


class StreamBackend(Protocol):
    """The runtime below. A call that is cancelled leaves nothing behind. Raises BackendError or OSError."""

    async def exec(self, target: ExecTarget) -> Process:
        """Start a command."""
        ...

    async def attach(self, target: AttachTarget) -> Process:
        """Attach to a running process. Its `read` returns None when the process or the attachment has ended."""
        ...

    async def connect(self, sandbox_id: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port in the network namespace of a sandbox."""
        ...
