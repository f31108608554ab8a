"""Which files have had the name of a log that is followed, in which order, and which of them nobody writes to any more.

Owns: the order of a log's rotations, as inotify tells it. A file that is rotated is written to until its writer has opened
another one, and for a moment longer: what was read of it is all only when the writer has closed it.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque

from msgspec import Struct

from pykubelet.edges.host.fs.inotify import EventKind, FileEvent

CHANGES = EventKind.CREATE | EventKind.MOVED_FROM | EventKind.MOVED_TO | EventKind.MODIFY | EventKind.CLOSE_WRITE
#: A writer that does not close what it has left is not waited for any longer.
LEFT_S = 5.0


class _Turn(Struct):
    """A file that had the log's name, and what it is called now; "" where nobody knows.

    `replaced_at`: when another one had the log's name, in the loop's time. `is_left`: nobody writes to it.
    """

    name: str
    replaced_at: float | None = None
    is_left: bool = False


class LogSegments:
    """Of the log at `path`, from the making on. `wake` is set when there is something to read or to be done."""

    def __init__(self, path: str, wake: asyncio.Event) -> None:
        self._path = path
        self._folder, self._name = os.path.split(path)
        self._wake = wake
        self._turns: deque[_Turn] = deque()
        self._moving = ""
        self._is_closed = False

    def take(self, event: FileEvent) -> None:
        """Events of the log's folder, in their order."""
        kinds, moved = event.kinds, self._moving
        self._moving = event.name if EventKind.MOVED_FROM in kinds else ""
        if event.name == self._name or EventKind.OVERFLOW in kinds:
            self._take_own(kinds, moved)
        elif EventKind.MOVED_TO in kinds and moved == self._name:
            self._turns.append(_Turn(event.name, is_left=self._is_closed))
        else:
            turn = next((turn for turn in self._turns if turn.name == event.name), None)
            if turn is None:
                return
            turn.is_left = turn.is_left or EventKind.CLOSE_WRITE in kinds
        self._wake.set()

    def _take_own(self, kinds: EventKind, moved: str) -> None:
        """`moved`: the name that the file had just now which takes the log's."""
        self._is_closed = EventKind.CLOSE_WRITE in kinds or (self._is_closed and EventKind.MOVED_FROM in kinds)
        if kinds & (EventKind.CREATE | EventKind.MOVED_TO | EventKind.OVERFLOW):
            last = self._turns[-1] if self._turns else None
            if last is not None and last.replaced_at is None and moved and last.name == moved:
                self._turns.pop()  # it has its name back
                return
            if last is None or last.replaced_at is not None:
                last = _Turn("", is_left=True)
                self._turns.append(last)
            last.replaced_at = asyncio.get_running_loop().time()

    @property
    def is_due(self) -> bool:
        """Whether the oldest file has all it will ever have, and another one follows."""
        return self.patience_s is not None and self.patience_s <= 0

    @property
    def patience_s(self) -> float | None:
        """How long to wait at most until the oldest file is due; None when nothing follows it."""
        turn = self._turns[0] if self._turns else None
        if turn is None or turn.replaced_at is None:
            return None
        left = turn.replaced_at + LEFT_S - asyncio.get_running_loop().time()
        return 0.0 if turn.is_left else max(0.0, left)

    def go_on(self) -> str:
        """Forget the oldest file; what it is called now, "" where that is not known."""
        return self._turns.popleft().name

    def begin(self, name: str, *, is_left: bool) -> None:
        """The rotated file of this name is read from now on; "": the log itself. Rotations may have gone unheard.

        `is_left`: nobody writes to it any more.
        """
        if not name:
            return
        if name in [turn.name for turn in self._turns]:
            while self._turns[0].name != name:
                self._turns.popleft()
        else:
            self._turns.appendleft(_Turn(name, replaced_at=asyncio.get_running_loop().time(), is_left=is_left))
