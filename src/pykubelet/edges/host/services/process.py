"""Runs helper programs with input, bounded output and a deadline, and leaves no process behind.

Owns: the process group of each program, and its termination. Source for the main user: KEP-2133 (credential providers).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import IO

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, translated
from pykubelet.edges.host.fs.programs import find_program, safe_path

_DRAIN_S = 1.0
_PIECE = 64 << 10


class ProgramResult(Value):
    """The result of a program. `code`: its exit code; negative: the signal that ended it. Output beyond the limit is cut off."""

    code: int
    out: bytes
    err: bytes
    out_cut: bool = False


class _Output:
    """Collects what a pipe delivers. `closed`: no process holds the pipe any more, or it was closed here.

    The file is the only owner of the descriptor. A transport of uvloop would close the number, and the file would close it again.
    """

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        self._pipe = pipe
        self._limit = limit
        self.data = bytearray()
        self.cut = False
        self.closed = asyncio.Event()
        os.set_blocking(pipe.fileno(), False)
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._read)

    def _read(self) -> None:
        """Keep output up to the limit and drop the rest: a program with much output neither blocks nor uses up the memory."""
        try:
            data = os.read(self._pipe.fileno(), _PIECE)
        except BlockingIOError:
            return
        free = self._limit - len(self.data)
        self.cut = self.cut or len(data) > free
        self.data += data[: max(0, free)]
        if not data:
            self.close()

    def close(self) -> None:
        """Stop reading and close the pipe. Does nothing if it is closed."""
        if not self._pipe.closed:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._pipe.close()
            self.closed.set()


class _Input:
    """Sends data to a program and then closes the pipe. The file is the only owner of the descriptor."""

    def __init__(self, pipe: IO[bytes], data: bytes) -> None:
        self._pipe = pipe
        self._left = memoryview(data)
        os.set_blocking(pipe.fileno(), False)
        asyncio.get_running_loop().add_writer(pipe.fileno(), self._write)

    def _write(self) -> None:
        try:
            self._left = self._left[os.write(self._pipe.fileno(), self._left[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the program has ended without reading its input, or has closed it
            self._left = self._left[:0]
        if not self._left:
            self.close()

    def close(self) -> None:
        """Send nothing more and close the pipe. Does nothing if it is closed."""
        if not self._pipe.closed:
            asyncio.get_running_loop().remove_writer(self._pipe.fileno())
            self._pipe.close()


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

    A name without a slash is looked up as `find_program` does, in the PATH of `env`. `cwd`: the directory in which it runs; None:
    the agent's own. The program gets its own process group, which is killed as a whole on a time-out, on cancellation, and
    when the program ends.
    """
    process = start_program(argv, env, cwd)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    with process.stdin, process.stdout, process.stderr:
        try:
            exited = watch_exit(process.pid)
        except OSError as error:  # no descriptor is left
            kill_group(process.pid)
            process.wait()
            raise translated("pidfd_open", argv[0], error) from error
        out, err = _Output(process.stdout, limit), _Output(process.stderr, limit)
        sent = _Input(process.stdin, stdin)
        try:
            async with asyncio.timeout(timeout_s):
                await exited.wait()
                await _drain(out, err)
        except TimeoutError:
            raise HostError("exec", argv[0], "ETIMEDOUT", f"no end within {timeout_s:g} s") from None
        finally:
            if not exited.is_set():
                kill_group(process.pid)
            for pipe in (out, err, sent):
                pipe.close()
            await exited.wait()
            code = process.wait()
    return ProgramResult(code, bytes(out.data), bytes(err.data), out.cut)


def start_program(argv: tuple[str, ...], env: Mapping[str, str] | None, cwd: str | None) -> subprocess.Popen[bytes]:
    """Start a program with three pipes, as the first of a process group. Raises HostError.

    The agent's page tables are not copied: uvloop would fork, which holds up the event loop for 3 ms and more.
    """
    variables, pipe = dict(os.environ if env is None else env), subprocess.PIPE
    variables["PATH"] = safe_path(variables.get("PATH", ""))
    program = argv[0] if argv[0].startswith("/") else find_program(argv[0], variables["PATH"])
    try:
        return subprocess.Popen(
            argv,
            executable=program,
            bufsize=0,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=variables,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise translated("exec", argv[0], error) from error


def python_module(name: str) -> tuple[str, ...]:
    """The command line that runs a module with this Python, as isolated as this process.

    Without -P, Python searches modules in the current directory first, which may belong to any user. Without -E, in those of
    PYTHONPATH, which an agent that was started with -I (that is -E, -P and -s) ignores.
    """
    own = sys.flags
    isolation = (*(("-E",) if own.ignore_environment else ()), *(("-s",) if own.no_user_site else ()))
    return (sys.executable, "-P", *isolation, "-m", name)


def watch_exit(pid: int) -> asyncio.Event:
    """Return an event that is set once the program has ended, and its group was killed. Raises OSError."""
    loop, exited, descriptor = asyncio.get_running_loop(), asyncio.Event(), os.pidfd_open(pid)

    def end() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        kill_group(pid)  # its children too: the agent would wait for one that keeps the pipes open
        exited.set()

    loop.add_reader(descriptor, end)
    return exited


async def _drain(*outputs: _Output) -> None:
    """Read the rest of the output. The time is limited, because a child in another process group may hold the pipes open."""
    try:
        async with asyncio.timeout(_DRAIN_S):
            for output in outputs:
                await output.closed.wait()
    except TimeoutError:
        return
