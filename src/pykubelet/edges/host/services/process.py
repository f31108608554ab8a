"""Runs helper programs with input, bounded output and a deadline, and leaves no process behind.

Owns: the process group of each program, and its termination. Source for the main user: KEP-2133 (credential providers).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping

from pykubelet.base.kit.finish import finish
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, translated

#: Connecting takes a few iterations of the event loop.
_CONNECT_S = 30.0
_DRAIN_S = 1.0


class ProgramResult(Value):
    """The result of a program. `code`: its exit code; negative: the signal that ended it. Output beyond the limit is cut off."""

    code: int
    out: bytes
    err: bytes
    out_cut: bool = False


class _Output(asyncio.Protocol):
    """Collects what a pipe delivers. `closed`: no process holds the pipe any more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.data = bytearray()
        self.cut = False
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Keep output up to the limit and drop the rest: a program with much output neither blocks nor uses up the memory."""
        free = self._limit - len(self.data)
        self.cut = self.cut or len(data) > free
        self.data += data[: max(0, free)]

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
    process = _start(argv, env, cwd)
    try:
        exited = _watch_exit(process.pid)
    except OSError as error:  # no descriptor is left
        kill_group(process.pid)
        process.wait()
        raise translated("pidfd_open", argv[0], error) from error
    out, err = _Output(limit), _Output(limit)
    pipes: list[asyncio.BaseTransport] = []
    try:
        async with asyncio.timeout(timeout_s):
            # a pipe that is half connected has no owner that closes it
            await finish(_connect(process, out, err, stdin, pipes), _CONNECT_S)
            await exited.wait()
            await _drain(out, err)
    except TimeoutError:
        raise HostError("exec", argv[0], "ETIMEDOUT", f"no end within {timeout_s:g} s") from None
    finally:
        if not exited.is_set():
            kill_group(process.pid)
        for transport in pipes:
            transport.close()
        await exited.wait()
        code = process.wait()
    return ProgramResult(code, bytes(out.data), bytes(err.data), out.cut)


def _start(argv: tuple[str, ...], env: Mapping[str, str] | None, cwd: str | None) -> subprocess.Popen[bytes]:
    """Start the program without a copy of the agent's page tables: uvloop would fork, which holds up the event loop for 3 ms and more."""
    variables, pipe = None if env is None else dict(env), subprocess.PIPE
    try:
        return subprocess.Popen(
            argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env=variables, cwd=cwd, start_new_session=True
        )
    except OSError as error:
        raise translated("exec", argv[0], error) from error


def _watch_exit(pid: int) -> asyncio.Event:
    """Return an event that is set once the program has ended. Raises OSError."""
    loop, exited, descriptor = asyncio.get_running_loop(), asyncio.Event(), os.pidfd_open(pid)

    def end() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        kill_group(pid)  # its children too: the agent would wait for one that keeps the pipes open
        exited.set()

    loop.add_reader(descriptor, end)
    return exited


async def _connect(
    process: subprocess.Popen[bytes], out: _Output, err: _Output, data: bytes, pipes: list[asyncio.BaseTransport]
) -> None:
    """Collect the output and send the input. `pipes`: gets the transports, which the caller closes."""
    loop = asyncio.get_running_loop()
    pipes.append((await loop.connect_read_pipe(lambda: out, process.stdout))[0])
    pipes.append((await loop.connect_read_pipe(lambda: err, process.stderr))[0])
    writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
    pipes.append(writing)
    if not writing.is_closing():  # the program may have ended without reading its input
        writing.write(data)
        writing.close()


async def _drain(*outputs: _Output) -> None:
    """Read the rest of the output. The time is limited, because a child in another process group may hold the pipes open."""
    try:
        async with asyncio.timeout(_DRAIN_S):
            for output in outputs:
                await output.closed.wait()
    except TimeoutError:
        return
