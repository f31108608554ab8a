"""Runs helper programs with input, bounded output and a deadline, and leaves no process behind.

Owns: the process group of each program, and its termination. Source for the main user: KEP-2133 (credential providers).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from typing import cast

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, translated

_DRAIN_S = 1.0


class ProgramResult(Value):
    """The result of a program. `code`: its exit code; negative: the signal that ended it. Output beyond the limit is cut off."""

    code: int
    out: bytes
    err: bytes
    out_cut: bool = False


class _OutputCollector(asyncio.SubprocessProtocol):
    """Collects the output. `exited`: the program has ended; `closed`: no process holds its pipes any more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.output = {1: bytearray(), 2: bytearray()}
        self.cut = False
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        self._pid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pid = cast(asyncio.SubprocessTransport, transport).get_pid()  # uvloop's class does not derive from it

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep output up to the limit and drop the rest: a program with much output neither blocks nor uses up the memory."""
        free = self._limit - len(self.output[fd])
        self.cut = self.cut or (fd == 1 and len(data) > free)
        self.output[fd] += data[: max(0, free)]

    def process_exited(self) -> None:
        """Kill the program's children too: the agent would wait for one that keeps the pipes open."""
        kill_group(self._pid)
        self.exited.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.closed.set()


def kill_group(pid: int) -> None:
    """Send SIGKILL to the program and its children."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # all of them have ended


async def run_program(
    argv: tuple[str, ...],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_s: float = 60.0,
    limit: int = 1 << 20,
) -> ProgramResult:
    """Run a program to its end. Raises HostError if it cannot be started or takes longer than `timeout_s` (ETIMEDOUT).

    `cwd`: the directory in which it runs; None: the agent's own. The program gets its own process group, which is killed as a
    whole on a time-out, on cancellation, and when the program ends.
    """
    loop = asyncio.get_running_loop()
    variables = None if env is None else dict(env)
    collector = _OutputCollector(limit)
    try:
        transport, _ = await loop.subprocess_exec(
            lambda: collector, *argv, env=variables, cwd=cwd, start_new_session=True
        )
    except OSError as error:
        raise translated("exec", argv[0], error) from error
    try:
        async with asyncio.timeout(timeout_s):
            _feed(transport, stdin)
            await collector.exited.wait()
            await _drain(collector)
    except TimeoutError:
        raise HostError("exec", argv[0], "ETIMEDOUT", f"no end within {timeout_s:g} s") from None
    finally:
        if not collector.exited.is_set():
            kill_group(transport.get_pid())
        transport.close()
        await collector.exited.wait()
    code = transport.get_returncode()
    assert code is not None
    return ProgramResult(code, bytes(collector.output[1]), bytes(collector.output[2]), collector.cut)


def _feed(transport: asyncio.SubprocessTransport, data: bytes) -> None:
    pipe = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
    if not pipe.is_closing():  # the program may have ended without reading its input
        pipe.write(data)
        pipe.close()


async def _drain(collector: _OutputCollector) -> None:
    """Read the rest of the output. The time is limited, because a child in another process group may hold the pipes open."""
    try:
        async with asyncio.timeout(_DRAIN_S):
            await collector.closed.wait()
    except TimeoutError:
        return
