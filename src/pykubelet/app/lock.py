"""`--lock-file` and `--exit-on-lock-contention`: one agent at a time, which gives way to the next one."""

from __future__ import annotations

import asyncio
import fcntl
import os

from pykubelet.app.prepare import AgentStartError
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.inotify import EventKind, Watcher

log = Log("app")
CONTENTION = EventKind.OPEN | EventKind.ATTRIB | EventKind.DELETE_SELF | EventKind.MOVE_SELF


def take_lock(path: str) -> int | None:
    """Lock --lock-file until the process ends. Returns its descriptor, or None without a lock file.

    Raises AgentStartError if the file cannot be locked, for instance because another process holds it.
    """
    if not path:
        return None
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise AgentStartError(f"lock file {path} is held by another process") from error
    except OSError as error:
        raise AgentStartError(f"lock file {path}: {error}") from error
    return descriptor


def _inode(path: str) -> int:
    """The inode of the file; 0 if there is none."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


async def stop_on_contention(path: str, stop: asyncio.Event) -> None:
    """Set `stop` as soon as another process opens the lock file, or the file is deleted or replaced."""
    try:
        with Watcher() as watcher:
            watcher.add(path, CONTENTION)
            inode = _inode(path)
            async for event in watcher:
                if event.kinds & ~EventKind.ATTRIB or _inode(path) != inode:
                    log.info("stopping because the lock file was opened or removed", path=path)
                    break
    except HostError as error:
        log.error("stopping because the lock file cannot be watched", path=path, error=error)
    stop.set()
