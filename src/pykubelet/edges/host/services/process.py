"""Helper programs: run one, feed it, take a bounded answer, and leave nothing of it behind.

Owns: the process group of each program and its end. Source for the main user: KEP-2133 (credential providers).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from typing import cast

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, translated

_LAST_WORDS_S = 1.0


class Finished(Value):
    """`code` as the shell counts (negative: the signal that ended it). Output beyond the limit is cut off."""

    code: int
    out: bytes
    err: bytes
    out_cut: bool = False


class _Conversation(asyncio.SubprocessProtocol):
    """Collects what the program says. `exited`: it has ended; `over`: nobody holds its pipes any more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.said = {1: bytearray(), 2: bytearray()}
        self.cut = False
        self.exited = asyncio.Event()
        self.over = asyncio.Event()
        self._pid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pid = cast(asyncio.SubprocessTransport, transport).get_pid()  # uvloop's own class is not derived

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep up to the limit and drop the rest, so that a talkative program neither blocks nor fills the memory."""
        room = self._limit - len(self.said[fd])
        self.cut = self.cut or (fd == 1 and len(data) > room)
        self.said[fd] += data[: max(0, room)]

    def process_exited(self) -> None:
        """The program's end is the end of its children too: one that keeps the pipes open would keep us waiting."""
        kill_group(self._pid)
        self.exited.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.over.set()


def kill_group(pid: int) -> None:
    """SIGKILL to the program and its children."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # all of it has ended


async def run_program(
    argv: tuple[str, ...],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_s: float = 60.0,
    limit: int = 1 << 20,
) -> Finished:
    """Run a program to its end. HostError: it cannot be started, or took longer than `timeout_s` (ETIMEDOUT).

    `cwd`: the directory it runs in; None: the agent's own. It gets its own process group, which is killed as a whole on
    timeout, on cancellation and at its end.
    """
    loop = asyncio.get_running_loop()
    variables = None if env is None else dict(env)
    talk = _Conversation(limit)
    try:
        transport, _ = await loop.subprocess_exec(lambda: talk, *argv, env=variables, cwd=cwd, start_new_session=True)
    except OSError as error:
        raise translated("exec", argv[0], error) from error
    try:
        async with asyncio.timeout(timeout_s):
            _feed(transport, stdin)
            await talk.exited.wait()
            await _wait_quiet(talk)
    except TimeoutError:
        raise HostError("exec", argv[0], "ETIMEDOUT", f"no end within {timeout_s:g} s") from None
    finally:
        if not talk.exited.is_set():
            kill_group(transport.get_pid())
        transport.close()
        await talk.exited.wait()
    code = transport.get_returncode()
    assert code is not None
    return Finished(code, bytes(talk.said[1]), bytes(talk.said[2]), talk.cut)


def _feed(transport: asyncio.SubprocessTransport, data: bytes) -> None:
    pipe = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
    if not pipe.is_closing():  # a program need not read what it is offered, and may have ended
        pipe.write(data)
        pipe.close()


async def _wait_quiet(talk: _Conversation) -> None:
    """What was said before the end is still in the pipes; a child that left the group may hold them open for ever."""
    try:
        async with asyncio.timeout(_LAST_WORDS_S):
            await talk.over.wait()
    except TimeoutError:
        return
