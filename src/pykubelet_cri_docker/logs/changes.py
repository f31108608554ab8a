"""Waits for the first change in each of many directories.

Owns: an inotify instance of its own kind. A watch ends with its first event (`IN_ONESHOT`), so a container that writes a million lines
makes one event, and events may wait to be read. `edges/host/fs/inotify.py` reports every change.
"""

from __future__ import annotations

import asyncio
import os
import struct
from contextlib import suppress

from pykubelet.edges.host.fs import libc
from pykubelet.edges.host.fs.errors import Translating
from pykubelet.edges.host.fs.inotify import EventKind

_ONESHOT = 0x8000_0000
_MASK = (EventKind.MODIFY | EventKind.CREATE | EventKind.MOVED_TO).value | _ONESHOT
_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 << 10


class Changes:
    """The directories that are watched, each by a key. All methods but `watch` are for the event loop."""

    def __init__(self) -> None:
        with Translating("inotify_init", ""):
            self._descriptor = libc.inotify_init()
        self._keys: dict[int, str] = {}
        self._watches: dict[str, int] = {}

    def watch(self, key: str, folder: str) -> None:
        """Watch a directory for its next change. For any thread, because it waits for the file system. Raises HostError."""
        with Translating("watch", folder):
            watch = libc.inotify_add_watch(self._descriptor, folder, _MASK)
        before = self._watches.get(key, watch)
        self._watches[key] = watch
        self._keys[watch] = key
        if before != watch:
            self._keys.pop(before, None)

    def forget(self, key: str) -> None:
        """Watch the directory no longer."""
        watch = self._watches.pop(key, None)
        if watch is not None and self._keys.pop(watch, None) is not None:
            with suppress(OSError):  # it has ended
                libc.inotify_rm_watch(self._descriptor, watch)

    async def wait(self) -> None:
        """Wait until there are changes."""
        loop, found = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, found.set)
        try:
            await found.wait()
        finally:
            loop.remove_reader(self._descriptor)

    def take(self) -> set[str]:
        """The keys of the directories that have changed. All, if some of them are not known: events were lost, or came too early."""
        changed: set[str] = set()
        while True:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return changed
            at = 0
            while at < len(data):
                watch, mask, _, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size + length
                if not mask & EventKind.IGNORED.value:
                    key = self._keys.pop(watch, None)
                    changed |= set(self._watches) if key is None else {key}

    def close(self) -> None:
        """Close the descriptor. No thread may use it any more."""
        os.close(self._descriptor)
