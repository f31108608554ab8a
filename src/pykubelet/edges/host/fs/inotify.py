"""File-system notifications as an async stream.

Owns: one inotify instance and the translation of its events. An event only means that the reader must read the directory
again. An overflow is an event too (`EventKind.OVERFLOW`): then everything must be read again.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Flag
from math import inf

from pykubelet.base.kit.readiness import wait_ready
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs import libc
from pykubelet.edges.host.fs.errors import Translating


class EventKind(Flag):
    """The kinds of events that can be watched (`add`) and are reported. OVERFLOW and IGNORED are always reported."""

    ATTRIB = 0x4
    CLOSE_WRITE = 0x8
    MODIFY = 0x2
    OPEN = 0x20
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    OVERFLOW = 0x4000
    IGNORED = 0x8000
    DIRECTORY = 0x4000_0000


DIRECTORY_CHANGES = (
    EventKind.CREATE
    | EventKind.CLOSE_WRITE
    | EventKind.MOVED_TO
    | EventKind.MOVED_FROM
    | EventKind.DELETE
    | EventKind.ATTRIB
    | EventKind.DELETE_SELF
    | EventKind.MOVE_SELF
)
_REPORTED = EventKind(0)
for _kind in EventKind:
    _REPORTED |= _kind
_ASKABLE = _REPORTED & ~(EventKind.OVERFLOW | EventKind.IGNORED | EventKind.UNMOUNT | EventKind.DIRECTORY)
_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 << 10
#: After the first one, `get_all` reads so many times more: 1 MiB, the events of a whole queue with short names.
_MORE_READS = 16


class FileEvent(Value):
    """One event. `path`: as given to `add` (empty on overflow). `name`: the entry in that directory; empty for `path` itself.

    `kinds`: one or several. IGNORED means that the watch has ended (it was removed, or the file was deleted or unmounted);
    to continue, `add` it again. `cookie`: the same for MOVED_FROM and MOVED_TO of one rename, else 0.
    """

    path: str
    name: str
    kinds: EventKind
    cookie: int = 0


class Watcher:
    """Watches files and directories, not recursively. Use it as an async iterator or with `get_all`, and `close` it when done."""

    def __init__(self) -> None:
        with Translating("inotify_init", ""):
            self._descriptor = libc.inotify_init()
        self._watches: dict[str, int] = {}
        self._removed: dict[int, str] = {}
        self._unread: deque[FileEvent] = deque()
        self._lock = threading.Lock()  # for the three below; never locked while a file system is awaited
        self._users = 0
        self._is_closed = False

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, path: str, mask: EventKind = DIRECTORY_CHANGES) -> None:
        """Watch `path`. A second call replaces its mask. Raises HostError if `path` does not exist or no watches are left."""
        self.note(path, self.begin(path, mask))

    def begin(self, path: str, mask: EventKind = DIRECTORY_CHANGES) -> int:
        """The part of `add` that waits for the file system, for any thread. Returns the watch, which `note` takes.

        Until then, the path of its events is empty. Raises HostError as `add` does, also if this is closed.
        """
        with Translating("watch", path), self._in_use() as descriptor:
            return libc.inotify_add_watch(descriptor, path, (mask & _ASKABLE).value)

    def note(self, path: str, watch: int) -> None:
        """Note the watch of a path. It replaces the one that the path has, and does nothing if this is closed."""
        if self._is_closed:
            return
        if self._watches.get(path) not in (None, watch):
            self.remove(path)  # another directory has replaced the one that was watched
        self._watches[path] = watch

    def remove(self, path: str) -> None:
        """Stop watching `path`. Does nothing if it is not watched."""
        watch = self._watches.pop(path, None)
        if watch is None or watch in self._watches.values():  # the directory may have got another path
            return
        self._removed[watch] = path
        try:
            libc.inotify_rm_watch(self._descriptor, watch)
        except OSError:
            return  # the kernel has removed the watch with the file

    def is_watched(self, path: str) -> bool:
        """Whether `path` was added and its watch still exists."""
        return path in self._watches

    def close(self) -> None:
        """Close the descriptor, once no thread uses it any more. No task may be waiting on the iterator."""
        self._watches.clear()
        with self._lock:
            self._is_closed = True
            self._close_unused()

    @contextmanager
    def _in_use(self) -> Iterator[int]:
        """The descriptor, which stays open meanwhile: another file could get its number. Raises OSError if it is closed."""
        with self._lock:
            if self._is_closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._users += 1
        try:
            yield self._descriptor
        finally:
            with self._lock:
                self._users -= 1
                self._close_unused()

    def _close_unused(self) -> None:
        if self._is_closed and not self._users and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> FileEvent:
        await self._wait_unread()
        return self._unread.popleft()

    async def get_all(self, deadline: float = inf) -> list[FileEvent]:
        """Wait until there is at least one event, and take all, oldest first. Raises Overdue at `deadline`, event loop time."""
        await self._wait_unread(deadline)
        for _ in range(_MORE_READS):
            if not self._read():
                break
        events = [*self._unread]
        self._unread.clear()
        return events

    async def _wait_unread(self, deadline: float = inf) -> None:
        while not self._unread:
            await wait_ready(self._descriptor, deadline=deadline)
            self._read()

    def _read(self) -> bool:
        """Read the events that are available now, as far as they have space in one read. Returns whether there were any."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        at = 0
        while at < len(data):
            watch, mask, cookie, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            name = data[at : at + length].rstrip(b"\0")
            at += length
            kinds = EventKind(mask & _REPORTED.value)
            self._unread.append(FileEvent(self._path(watch, kinds), os.fsdecode(name), kinds, cookie))
        return True

    def _path(self, watch: int, kinds: EventKind) -> str:
        """The path that was given to `add` for a watch. IGNORED also removes the watch."""
        path = next((asked for asked, known in self._watches.items() if known == watch), None)
        if EventKind.IGNORED not in kinds:
            return self._removed.get(watch, "") if path is None else path
        if path is None:
            return self._removed.pop(watch, "")
        del self._watches[path]
        return path
