"""File-system notifications as an async stream.

Owns: one inotify instance and the translation of its events. An event is a hint: the reader looks at the directory
again. An overflow is an event too (`EventKind.OVERFLOW`): everything must be looked at again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag
from types import TracebackType

from asyncinotify import Inotify, Mask, Watch

from pykubelet.edges.host.errors import translating


class EventKind(Flag):
    """What can be watched (`add`) and what is told. OVERFLOW and IGNORED are always told, and need not be asked for."""

    ATTRIB = Mask.ATTRIB.value
    CLOSE_WRITE = Mask.CLOSE_WRITE.value
    MODIFY = Mask.MODIFY.value
    MOVED_FROM = Mask.MOVED_FROM.value
    MOVED_TO = Mask.MOVED_TO.value
    CREATE = Mask.CREATE.value
    DELETE = Mask.DELETE.value
    DELETE_SELF = Mask.DELETE_SELF.value
    MOVE_SELF = Mask.MOVE_SELF.value
    UNMOUNT = Mask.UNMOUNT.value
    OVERFLOW = Mask.Q_OVERFLOW.value
    IGNORED = Mask.IGNORED.value
    DIRECTORY = Mask.ISDIR.value


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
_TOLD = EventKind(0)
for _kind in EventKind:
    _TOLD |= _kind
_ASKABLE = _TOLD & ~(EventKind.OVERFLOW | EventKind.IGNORED | EventKind.UNMOUNT | EventKind.DIRECTORY)


@dataclass(frozen=True, slots=True)
class FileEvent:
    """`path`: what was given to `add` (empty on overflow). `name`: the entry in that directory, empty for itself.

    `kinds` may hold several; IGNORED means that the watch is gone (removed, deleted or unmounted): add it again.
    """

    path: str
    name: str
    kinds: EventKind


class Watcher:
    """Watches files and directories, not recursively. Use as an async iterator; `close` when done."""

    def __init__(self) -> None:
        with translating("inotify_init", ""):
            self._inotify = Inotify()
        self._watches: dict[str, Watch] = {}

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, path: str, mask: EventKind = DIRECTORY_CHANGES) -> None:
        """Watch `path`; a second call replaces its mask. HostError when there is nothing, or watches have run out."""
        with translating("watch", path):
            watch = self._inotify.add_watch(path, Mask((mask & _ASKABLE).value))
        if self._watches.get(path) not in (None, watch):
            self.remove(path)  # another directory took the place of the one watched before
        self._watches[path] = watch

    def remove(self, path: str) -> None:
        """Stop watching `path`; nothing happens when it was not watched."""
        watch = self._watches.pop(path, None)
        if watch is None:
            return
        try:
            self._inotify.rm_watch(watch)
        except OSError:
            return  # the kernel dropped it already, with the file

    def is_watched(self, path: str) -> bool:
        return path in self._watches

    def close(self) -> None:
        """Give the descriptor back. Nobody may be waiting on the iterator."""
        self._watches.clear()
        self._inotify.close()

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> FileEvent:
        event = await self._inotify.get()
        kinds = EventKind(event.mask.value & _TOLD.value)
        watch = event.watch
        path = "" if watch is None else str(watch.path)
        if watch is not None:
            path = next((asked for asked, known in self._watches.items() if known is watch), path)
            if EventKind.IGNORED in kinds and self._watches.get(path) is watch:
                del self._watches[path]
        return FileEvent(path, "" if event.name is None else str(event.name), kinds)
