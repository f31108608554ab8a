"""Cells: how one component publishes state to the others.

A cell holds one frozen snapshot. The wiring gives the writing end (`CellWriter`) to exactly one component; all others hold
the reading end (`Cell`). A reader may look (`get`), wait for a condition (`wait_for`), or be woken on every change of one
cell (`changes`) or of several (`set_on_change`). Nothing in here calls a reader back: a subscription only sets a flag that
the reader's own task awaits. A slow reader therefore costs the writer nothing and skips the values in between.

A lazy cell (`LazyCell`) is for state that is only shown to users: its writer makes the snapshot when it is read, so a
snapshot that no user wants costs nothing. It wakes no reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Cell(Generic[T]):
    """The reading end. `version` grows by one with every published snapshot."""

    def __init__(self, name: str, initial: T) -> None:
        self.name = name
        self._value = initial
        self._version = 0
        self._wakeups: dict[asyncio.Event, None] = {}  # readers are woken in the order of subscription

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
        for wakeup in self._wakeups if wake_readers else ():
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
