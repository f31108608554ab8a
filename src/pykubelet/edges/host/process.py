"""Helper programs: run one, feed it, take a bounded answer, and leave nothing of it behind.

Owns: the process group of each program and its end. Source for the main user: KEP-2133 (credential providers).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from pykubelet.edges.host.errors import HostError, translated

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Finished:
    """`code` as the shell counts (negative: the signal that ended it). Output beyond the limit is cut off."""

    code: int
    out: bytes
    err: bytes
    out_cut: bool = False


async def run_program(
    argv: tuple[str, ...],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    limit: int = 1 << 20,
) -> Finished:
    """Run a program to its end. HostError: it cannot be started, or took longer than `timeout_s` (ETIMEDOUT).

    It gets its own process group, which is killed as a whole on timeout, on cancellation and at its end.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
    except OSError as error:
        raise translated("exec", argv[0], error) from error
    try:
        async with asyncio.timeout(timeout_s):
            return await _converse(process, stdin, limit)
    except TimeoutError:
        raise HostError("exec", argv[0], "ETIMEDOUT", f"no end within {timeout_s:g} s") from None
    finally:
        await _end(process)


async def _converse(process: asyncio.subprocess.Process, stdin: bytes, limit: int) -> Finished:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    async with asyncio.TaskGroup() as talk:
        out = talk.create_task(_read(process.stdout, limit))
        err = talk.create_task(_read(process.stderr, limit))
        talk.create_task(_feed(process.stdin, stdin))
        code = talk.create_task(_wait(process))
    data, cut = out.result()
    return Finished(code.result(), data, err.result()[0], cut)


async def _wait(process: asyncio.subprocess.Process) -> int:
    """The program's end is the end of its children too: one that keeps the pipes open would keep us waiting."""
    code = await process.wait()
    _kill_group(process.pid)
    return code


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # all of it has ended


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    try:
        stream.write(data)
        await stream.drain()
        stream.close()
        await stream.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        return  # a program need not read all that it is offered


async def _read(stream: asyncio.StreamReader, limit: int) -> tuple[bytes, bool]:
    """Read to the end, keeping `limit` bytes, so that a talkative program neither blocks nor fills the memory."""
    kept = bytearray()
    cut = False
    while chunk := await stream.read(_CHUNK):
        room = limit - len(kept)
        cut = cut or len(chunk) > room
        kept += chunk[: max(0, room)]
    return bytes(kept), cut


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of the group, and reap the program."""
    if process.returncode is None:
        _kill_group(process.pid)
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()
