"""Cells: how one room tells the others what is so.

A cell holds one frozen snapshot. Exactly one room holds its writing end (`CellWriter`), handed out by the wiring;
everybody else holds the reading end (`Cell`). A reader may look (`get`), wait for a condition (`wait_for`) or be woken
on every change, of one cell (`changes`) or of several (`ringing`). Nothing in here calls a reader back: a subscription only
sets a flag that its own task awaits, so a slow reader costs the writer nothing and skips the values in between.
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
        self._bells: dict[asyncio.Event, None] = {}  # rung in the order in which the readers came

    @property
    def version(self) -> int:
        return self._version

    def get(self) -> T:
        """The newest snapshot."""
        return self._value

    async def wait_for(self, condition: Callable[[T], bool]) -> T:
        """The first snapshot, from the present one on, for which `condition` holds."""
        if condition(self._value):
            return self._value
        bell = asyncio.Event()
        self._bells[bell] = None
        try:
            while not condition(self._value):
                await bell.wait()
                bell.clear()
            return self._value
        finally:
            self._bells.pop(bell, None)

    async def changes(self) -> AsyncIterator[T]:
        """The present snapshot, then the newest one after each change; values between two looks are skipped."""
        bell = asyncio.Event()
        self._bells[bell] = None
        try:
            yield self._value
            while True:
                await bell.wait()
                bell.clear()
                yield self._value
        finally:
            self._bells.pop(bell, None)

    def _publish(self, value: T, is_news: bool) -> None:
        self._value = value
        self._version += 1
        for bell in self._bells if is_news else ():
            bell.set()


class CellWriter(Generic[T]):
    """The writing end: one per cell."""

    def __init__(self, cell: Cell[T]) -> None:
        self._cell = cell

    @property
    def cell(self) -> Cell[T]:
        """The reading end of the same cell."""
        return self._cell

    def get(self) -> T:
        return self._cell.get()

    def publish(self, value: T, *, is_news: bool = True) -> None:
        """Replace the snapshot and wake all readers. `value` must not be changed afterwards.

        Not `is_news`: what differs is only for those who look when somebody asks; nobody is woken for it.
        """
        self._cell._publish(value, is_news)


@contextmanager
def ringing(bell: asyncio.Event, *cells: Cell[Any]) -> Iterator[None]:
    """Within the block, each change of any of the cells sets `bell`, which is set at its beginning too.

    The bell is its reader's, who clears it before looking; one bell for all cells spares a task for each.
    """
    for cell in cells:
        cell._bells[bell] = None
    bell.set()
    try:
        yield
    finally:
        for cell in cells:
            cell._bells.pop(bell, None)


def make_cell(name: str, initial: T) -> tuple[Cell[T], CellWriter[T]]:
    """A cell and its only writing end."""
    cell = Cell(name, initial)
    return cell, CellWriter(cell)
