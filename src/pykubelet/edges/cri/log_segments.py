"""Tracks the files of a followed log across rotations: their order, and which of them have no writer any more.

Owns: the order of a log's rotations, as inotify reports it. The runtime writes to a rotated file until shortly after it has
opened the new one. So the end of a rotated file is known only after the runtime has closed it.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque

from msgspec import Struct

from pykubelet.edges.host.fs.inotify import EventKind, FileEvent

CHANGES = EventKind.CREATE | EventKind.MOVED_FROM | EventKind.MOVED_TO | EventKind.MODIFY | EventKind.CLOSE_WRITE
#: The most seconds to wait until the writer closes a rotated file.
LEFT_S = 5.0


class _Segment(Struct):
    """A file that had the log's name. `name`: its current name; "" if unknown.

    `replaced_at`: the loop time at which another file got the log's name. `is_left`: the file has no writer any more.
    """

    name: str
    replaced_at: float | None = None
    is_left: bool = False


class LogSegments:
    """The segments of the log at `path` since construction. Sets `wake` when there may be more to read or a file to switch to."""

    def __init__(self, path: str, wake: asyncio.Event) -> None:
        self._path = path
        self._folder, self._name = os.path.split(path)
        self._wake = wake
        self._segments: deque[_Segment] = deque()
        self._moving = ""
        self._is_closed = False

    def take(self, event: FileEvent) -> None:
        """Process an event of the log's directory. Events must come in their order."""
        kinds, moved = event.kinds, self._moving
        self._moving = event.name if EventKind.MOVED_FROM in kinds else ""
        if event.name == self._name or EventKind.OVERFLOW in kinds:
            self._take_own(kinds, moved)
        elif EventKind.MOVED_TO in kinds and moved == self._name:
            self._segments.append(_Segment(event.name, is_left=self._is_closed))
        else:
            segment = next((segment for segment in self._segments if segment.name == event.name), None)
            if segment is None:
                return
            segment.is_left = segment.is_left or EventKind.CLOSE_WRITE in kinds
        self._wake.set()

    def _take_own(self, kinds: EventKind, moved: str) -> None:
        """Process an event about the log's own name. `moved`: the previous name of a file that was renamed to it."""
        self._is_closed = EventKind.CLOSE_WRITE in kinds or (self._is_closed and EventKind.MOVED_FROM in kinds)
        if kinds & (EventKind.CREATE | EventKind.MOVED_TO | EventKind.OVERFLOW):
            last = self._segments[-1] if self._segments else None
            if last is not None and last.replaced_at is None and moved and last.name == moved:
                self._segments.pop()  # the rotation was undone: the file has the log's name again
                return
            if last is None or last.replaced_at is not None:
                last = _Segment("", is_left=True)
                self._segments.append(last)
            last.replaced_at = asyncio.get_running_loop().time()

    @property
    def is_due(self) -> bool:
        """Whether the oldest file is complete and another one follows."""
        return self.wait_s is not None and self.wait_s <= 0

    @property
    def wait_s(self) -> float | None:
        """The most seconds to wait until the oldest file is due; None if no file follows it."""
        segment = self._segments[0] if self._segments else None
        if segment is None or segment.replaced_at is None:
            return None
        left = segment.replaced_at + LEFT_S - asyncio.get_running_loop().time()
        return 0.0 if segment.is_left else max(0.0, left)

    def drop_oldest(self) -> str:
        """Forget the oldest file. Returns its current name; "" if that is not known."""
        return self._segments.popleft().name

    def begin(self, name: str, *, is_left: bool) -> None:
        """Record that the rotated file `name` is read from now on; "": the log itself.

        Events may have been lost, so the file may be unknown. `is_left`: it has no writer any more.
        """
        if not name:
            return
        if name in [segment.name for segment in self._segments]:
            while self._segments[0].name != name:
                self._segments.popleft()
        else:
            self._segments.appendleft(_Segment(name, replaced_at=asyncio.get_running_loop().time(), is_left=is_left))
