"""Records which pod a piece of synchronous work is for, so that the agent's end can be traced to a pod.

Owns: `WORK`. Like a log line, a record is made where something happens, and no decision of that place reads it:

    with WORK.on(uid):
        state, commands = step(state, event)

The records are kept in a buffer that `attach` replaces with memory that outlives the process (`edges/host/services/run_record.py`). A block
costs about a microsecond. It must not await anything: its time counts as the event loop's. An exception that leaves the block gets a note.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from struct import Struct
from types import TracebackType

from pykubelet.base.kit.causes import causes
from pykubelet.base.kit.values import Value

#: The pieces of work that can be recorded at a time: one of the event loop, those within it, and one in each of a few threads.
SLOTS = 16
SLOT_BYTES = 512
SIZE = SLOTS * SLOT_BYTES
#: Whether the work is under way, whether it is in the main thread, the length of the key, and when it began (monotonic seconds).
_HEAD = Struct("<BBHxxxxd")
MAX_KEY_BYTES = SLOT_BYTES - _HEAD.size
_NOTE = "while it worked on "


class OpenWork(Value):
    """A piece of work that is under way, or was when the process ended. `key`: a pod's UID, or another text that names its source.

    `since`: monotonic seconds. `is_main`: in the thread of the event loop.
    """

    key: str
    since: float
    is_main: bool


class WorkRecord:
    """The pieces of work that are under way. `on` may be called in any thread."""

    def __init__(self) -> None:
        self._buffer: bytearray | memoryview = bytearray(SIZE)
        self._free = [number * SLOT_BYTES for number in range(SLOTS)]
        self._main = threading.main_thread().ident

    def attach(self, buffer: memoryview) -> None:
        """Keep the records in `buffer`, of `SIZE` bytes, from now on. No work may be under way."""
        self._buffer = buffer

    def on(self, key: str) -> _Block:
        """A context manager for work that is for a pod, or for the source `key` of pods. It may be used again after its end."""
        return _Block(self, record_key(key))

    @property
    def is_idle(self) -> bool:
        """Whether no work is under way."""
        return len(self._free) == SLOTS

    def current(self) -> OpenWork | None:
        """The innermost piece of work that the event loop is at; None: none is recorded."""
        works = [work for work in open_works(self._buffer) if work.is_main]
        return max(works, key=lambda work: work.since, default=None)

    def _begin(self, key: bytes) -> int:
        """Record a piece of work. Returns its slot; -1 if there is none."""
        try:
            at = self._free.pop()
        except IndexError:
            return -1
        start = at + _HEAD.size
        self._buffer[start : start + len(key)] = key
        is_main = threading.get_ident() == self._main
        _HEAD.pack_into(self._buffer, at, 1, is_main, len(key), time.monotonic())
        return at

    def _end(self, at: int) -> None:
        if at >= 0:
            self._buffer[at] = 0
            self._free.append(at)


class _Block:
    """One piece of work as a context manager."""

    __slots__ = ("_at", "_key", "_record")

    def __init__(self, record: WorkRecord, key: bytes) -> None:
        self._record = record
        self._key = key

    def __enter__(self) -> None:
        self._at = self._record._begin(self._key)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._record._end(self._at)
        if isinstance(error, Exception):
            error.add_note(_NOTE + key_text(self._key))


WORK = WorkRecord()


def record_key(key: str) -> bytes:
    """The bytes by which work is recorded. The end of a key that is too long is replaced by a checksum."""
    data = key.encode("utf-8", "surrogateescape")
    if len(data) <= MAX_KEY_BYTES:
        return data
    digest = hashlib.sha256(data).hexdigest().encode()
    return data[: MAX_KEY_BYTES - len(digest)] + digest


def key_text(key: bytes) -> str:
    """The key that was recorded, as text."""
    return key.decode("utf-8", "surrogateescape")


def open_works(buffer: bytes | bytearray | memoryview) -> Iterator[OpenWork]:
    """The pieces of work that are under way by a buffer, which may be damaged. Pure."""
    for at in range(0, min(len(buffer), SIZE) - SLOT_BYTES + 1, SLOT_BYTES):
        is_open, is_main, length, since = _HEAD.unpack_from(buffer, at)
        if is_open and 0 < length <= MAX_KEY_BYTES:
            start = at + _HEAD.size
            yield OpenWork(key_text(bytes(buffer[start : start + length])), since, bool(is_main))


def noted_key(error: BaseException) -> str:
    """The key of the work in which an exception, or one that led to it, was raised; empty if there is none."""
    for cause in causes(error):
        for note in getattr(cause, "__notes__", ()):
            if isinstance(note, str) and note.startswith(_NOTE):
                return note.removeprefix(_NOTE)
    return ""
