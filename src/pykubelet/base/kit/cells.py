"""Cells and mailboxes: the two ways in which components exchange data.

A cell holds one frozen snapshot. The wiring gives the writing end (`CellWriter`) to exactly one component; all others hold
the reading end (`Cell`). A reader may look (`get`), wait for a condition (`wait_for`), or be woken on every change of one
cell (`changes`) or of several (`set_on_change`). Of a snapshot that maps all pods, a reader that waits for one of them waits
for its entry (`entry`): among a thousand that wait so, a change of one pod wakes one. Nothing in here calls a reader back: a
subscription only sets a flag that the reader's own task awaits. A slow reader therefore costs the writer nothing and skips the
values in between.

A lazy cell (`LazyCell`) is for state that is only shown to users: its writer makes the snapshot when it is read, so a
snapshot that no user wants costs nothing. It wakes no reader.

An event in a `Mailbox` only wakes its reader; the state is in cells. A lost wake-up costs time, never correctness. A mailbox
has no limit, and is small in practice, because the reader takes all events at once (`get_all`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from pykubelet.base.kit.values import changed_keys

K = TypeVar("K")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")


async def within(seconds: float | None, wait: Awaitable[object]) -> bool:
    """Await `wait`, for so many seconds at most; None: without a limit. Returns whether it has ended."""
    try:
        async with asyncio.timeout(seconds):
            await wait
    except TimeoutError:
        return False
    return True


class Waitable(Protocol[T_co]):
    """What a reader looks at and waits for: a cell, or an entry of one."""

    def get(self) -> T_co:
        """The newest value."""

    async def wait_for(self, condition: Callable[[T_co], bool]) -> T_co:
        """Wait for a value for which `condition` holds, and return it. The current one may be it."""


class Cell(Generic[T]):
    """The reading end. `version` grows by one with every published snapshot."""

    def __init__(self, name: str, initial: T) -> None:
        self.name = name
        self._value = initial
        self._version = 0
        self._wakeups: dict[asyncio.Event, None] = {}  # readers are woken in the order of subscription
        self._entries: dict[Callable[[T], Mapping[Any, Any]], _EntryReaders[T]] = {}

    @property
    def version(self) -> int:
        """The number of published snapshots, without the initial one."""
        return self._version

    def get(self) -> T:
        """The newest snapshot."""
        return self._value

    async def wait_for(self, condition: Callable[[T], bool]) -> T:
        """Wait for a snapshot for which `condition` holds, and return it. The current one may be it."""
        if condition(self._value):
            return self._value
        wakeup = asyncio.Event()
        self._wakeups[wakeup] = None
        try:
            while not condition(self._value):
                await wakeup.wait()
                wakeup.clear()
            return self._value
        finally:
            self._wakeups.pop(wakeup, None)

    def entry(self, mapping: Callable[[T], Mapping[K, V]], key: K) -> CellEntry[T, V]:
        """One entry of a mapping in the snapshots. `mapping`: reads it from a snapshot; a function of a module, which all readers share."""
        return CellEntry(self, mapping, key)

    async def changes(self) -> AsyncIterator[T]:
        """Yield the current snapshot, then the newest one after each change. Values between two reads are skipped."""
        wakeup = asyncio.Event()
        self._wakeups[wakeup] = None
        try:
            yield self._value
            while True:
                await wakeup.wait()
                wakeup.clear()
                yield self._value
        finally:
            self._wakeups.pop(wakeup, None)

    def _publish(self, value: T, wake_readers: bool) -> None:
        self._value = value
        self._version += 1
        if not wake_readers:
            return
        for wakeup in self._wakeups:
            wakeup.set()
        for readers in self._entries.values():
            readers.wake(value)


class CellEntry(Generic[T, V]):
    """One entry of a mapping in a cell's snapshots; None while there is none. A reader is woken only when this entry changes."""

    def __init__(self, cell: Cell[T], mapping: Callable[[T], Mapping[Any, V]], key: object) -> None:
        self._cell = cell
        self._mapping = mapping
        self._key = key

    def get(self) -> V | None:
        """The entry in the newest snapshot."""
        return self._mapping(self._cell.get()).get(self._key)

    async def wait_for(self, condition: Callable[[V | None], bool]) -> V | None:
        """As of a cell: wait until `condition` holds for the entry, and return that."""
        if condition(entry := self.get()):
            return entry
        entries, wakeup = self._cell._entries, asyncio.Event()
        readers = entries.get(self._mapping)
        if readers is None:
            readers = entries[self._mapping] = _EntryReaders(self._mapping, self._cell.get())
        readers.add(self._key, wakeup)
        try:
            while not condition(entry := self.get()):
                await wakeup.wait()
                wakeup.clear()
            return entry
        finally:
            readers.remove(self._key, wakeup)
            if not readers.by_key:
                entries.pop(self._mapping, None)


class _EntryReaders(Generic[T]):
    """Those that wait for entries of one mapping, by key."""

    def __init__(self, mapping: Callable[[T], Mapping[Any, Any]], snapshot: T) -> None:
        self._mapping = mapping
        self._before = mapping(snapshot)
        self.by_key: dict[object, dict[asyncio.Event, None]] = {}

    def add(self, key: object, wakeup: asyncio.Event) -> None:
        self.by_key.setdefault(key, {})[wakeup] = None

    def remove(self, key: object, wakeup: asyncio.Event) -> None:
        of_key = self.by_key[key]
        del of_key[wakeup]
        if not of_key:
            del self.by_key[key]

    def wake(self, snapshot: T) -> None:
        """Wake those of the entries in which the snapshot differs from the last one."""
        before, self._before = self._before, self._mapping(snapshot)
        for key in changed_keys(before, self._before):
            for wakeup in self.by_key.get(key, ()):
                wakeup.set()


class CellWriter(Generic[T]):
    """The writing end: one per cell."""

    def __init__(self, cell: Cell[T]) -> None:
        self._cell = cell

    @property
    def cell(self) -> Cell[T]:
        """The reading end of the same cell."""
        return self._cell

    def get(self) -> T:
        """The snapshot that was published last."""
        return self._cell.get()

    def publish(self, value: T, *, wake_readers: bool = True) -> None:
        """Replace the snapshot and wake all readers. `value` must not be changed afterwards.

        `wake_readers=False` wakes no reader: for a change that matters only to readers that look on demand.
        """
        self._cell._publish(value, wake_readers)


@contextmanager
def set_on_change(wakeup: asyncio.Event, *cells: Cell[Any]) -> Iterator[None]:
    """Set `wakeup` at the start of the block and on each change of any of the cells within it.

    The event belongs to the reader, which clears it before it reads. One event for all cells saves one task per cell.
    """
    for cell in cells:
        cell._wakeups[wakeup] = None
    wakeup.set()
    try:
        yield
    finally:
        for cell in cells:
            cell._wakeups.pop(wakeup, None)


def make_cell(name: str, initial: T) -> tuple[Cell[T], CellWriter[T]]:
    """A cell and its only writing end."""
    cell = Cell(name, initial)
    return cell, CellWriter(cell)


class LazyCell(Generic[T]):
    """The reading end of a lazy cell: each `get` has its writer make a snapshot. `initial`: the one before there is a writer."""

    def __init__(self, name: str, initial: T) -> None:
        self.name = name
        self._make: Callable[[], T] = lambda: initial

    def get(self) -> T:
        """A snapshot of this moment."""
        return self._make()


class LazyCellWriter(Generic[T]):
    """The writing end: one per lazy cell."""

    def __init__(self, cell: LazyCell[T]) -> None:
        self._cell = cell

    def answer_with(self, make: Callable[[], T]) -> None:
        """Have `make` return the snapshot for each read. It must change nothing, and return an immutable value."""
        self._cell._make = make


def make_lazy_cell(name: str, initial: T) -> tuple[LazyCell[T], LazyCellWriter[T]]:
    """A lazy cell and its only writing end."""
    cell = LazyCell(name, initial)
    return cell, LazyCellWriter(cell)


# Mailboxes

P = TypeVar("P", contravariant=True)


class Post(Protocol[P]):
    """The posting end of a mailbox."""

    def post(self, event: P) -> None:
        """Add an event and wake the reader. Never blocks."""


class Mailbox(Generic[T]):
    """A queue of typed events with one reader.

    `wakeup`: an `asyncio.Event` that the reader awaits itself, with other things that set it.
    """

    def __init__(self, name: str, wakeup: asyncio.Event | None = None) -> None:
        self.name = name
        self._events: deque[T] = deque()
        self._wakeup = wakeup if wakeup is not None else asyncio.Event()

    @property
    def wakeup(self) -> asyncio.Event:
        """What each event sets. A reader that awaits other things with it clears it before it calls `take_all`."""
        return self._wakeup

    def __len__(self) -> int:
        return len(self._events)

    def post(self, event: T) -> None:
        """Add an event and wake the reader. Never blocks, never fails."""
        self._events.append(event)
        self._wakeup.set()

    async def get(self) -> T:
        """Wait for an event, and take the oldest one."""
        while not self._events:
            self._wakeup.clear()
            await self._wakeup.wait()
        return self._events.popleft()

    async def get_all(self) -> list[T]:
        """Wait until there is at least one event, and take all, oldest first."""
        while not self._events:
            self._wakeup.clear()
            await self._wakeup.wait()
        return self.take_all()

    def take_all(self) -> list[T]:
        """Take all waiting events, oldest first; there may be none."""
        events = list(self._events)
        self._events.clear()
        return events


class Sink(Generic[T]):
    """A posting end that nothing reads: for tests and for components that do not run."""

    def __init__(self) -> None:
        self.events: list[T] = []

    def post(self, event: T) -> None:
        """Append the event to `events`."""
        self.events.append(event)
