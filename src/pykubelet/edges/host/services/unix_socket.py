"""A root-only unix socket on which a program of this project serves, as a loop that never returns.

Owns: the socket file with its mode, and retries. A file that is removed, also with its directory, is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable

from pykubelet.base.kit.causes import releasing_frames
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind, FileStat, change_mode, make_dirs, remove_file, stat_file
from pykubelet.edges.host.fs.inotify import EventKind, Watcher
from pykubelet.edges.host.proc.dead_sockets import peer_is_dying
from pykubelet.net.http.server import HEAD_BYTES

log = Log("server")
RETRY_S = 5.0
SOCKET_MODE = 0o600
_REMOVALS = EventKind.DELETE | EventKind.MOVED_FROM | EventKind.DELETE_SELF | EventKind.MOVE_SELF
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def keep_serving_socket(serve: Serve, path: str, what: str, retry_s: float = RETRY_S) -> None:
    """Serve connections on the root-only unix socket at `path`. Never returns; an error is logged once and retried.

    A socket file of a process that was killed is replaced. If a process still answers on it, it is not. `what`: for the log.
    """
    logged = ""
    while True:
        try:
            await _serve_socket(serve, path, what)
        except (OSError, HostError) as error:
            if str(error) != logged:
                log.error(f"cannot listen for {what}, trying again", path=path, error=error)
                logged = str(error)
        await asyncio.sleep(retry_s)


async def _serve_socket(serve: Serve, path: str, what: str) -> None:
    make_dirs(os.path.dirname(path))
    found = stat_file(path, follow=False)
    if found is not None:
        if found.kind is not FileKind.SOCKET:
            raise HostError("listen", path, "EEXIST", f"is not a socket but a {found.kind}")
        if _is_answered(path):
            raise HostError("listen", path, "EADDRINUSE", "another agent uses this root directory")
        remove_file(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        change_mode(path, SOCKET_MODE)  # in time, because no client can connect before listen()
        listening.listen()
        listening.setblocking(False)
    except (OSError, HostError):
        listening.close()
        raise
    made = stat_file(path, follow=False)
    open_ends: set[asyncio.StreamWriter] = set()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ends.add(writer)
        try:
            await serve(reader, writer)
        finally:
            open_ends.discard(writer)

    listener = await asyncio.start_unix_server(until_the_end(serve_one), sock=listening, limit=HEAD_BYTES)
    log.info(f"serving {what}", path=path)
    try:
        await _wait_removed(path, made)
        log.warning("the socket was removed, making it again", path=path)
    finally:
        listener.close()
        for writer in tuple(open_ends):
            writer.close()
        now = stat_file(path, follow=False)
        if now is not None and made is not None and now.inode == made.inode:
            remove_file(path)


async def _wait_removed(path: str, made: FileStat | None) -> None:
    """Wait until the socket file is gone or is another one; without an inotify instance, for ever."""
    try:
        with Watcher() as watcher:
            watcher.add(os.path.dirname(path), _REMOVALS)
            while (now := stat_file(path, follow=False)) is not None and made is not None and now.inode == made.inode:
                await watcher.get_all()
    except HostError as error:
        log.debug("cannot watch a socket", path=path, error=error)
        await asyncio.get_running_loop().create_future()


def _is_answered(path: str) -> bool:
    """Whether a process that is not dying listens on a socket file. Does not wait."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a process listens, and has not accepted as many connections as the kernel keeps for it
        return not peer_is_dying(probe)


def until_the_end(serve: Serve) -> Serve:
    """A connection that is open when the program ends is cancelled, which asyncio before 3.12 logs as an error."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError), releasing_frames(reader):
            await serve(reader, writer)

    return serve_one
