"""Mailboxes: how one room wakes another.

An event wakes, a cell tells: a room that loses a wake-up may lose time, never truth. A mailbox is unbounded in
principle and small in practice, because the events are hints that the reader conflates (`get_all`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
P = TypeVar("P", contravariant=True)


class Post(Protocol[P]):
    """The posting end of a mailbox."""

    def post(self, event: P) -> None: ...


class Mailbox(Generic[T]):
    """A queue of typed events with one reader. `bell`: one that the reader waits for, who then uses `take_all` alone."""

    def __init__(self, name: str, bell: asyncio.Event | None = None) -> None:
        self.name = name
        self._events: deque[T] = deque()
        self._bell = bell if bell is not None else asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def post(self, event: T) -> None:
        """Leave an event; never blocks, never fails."""
        self._events.append(event)
        self._bell.set()

    async def get(self) -> T:
        """The oldest event."""
        while not self._events:
            self._bell.clear()
            await self._bell.wait()
        return self._events.popleft()

    async def get_all(self) -> list[T]:
        """All waiting events, oldest first; waits until there is at least one."""
        while not self._events:
            self._bell.clear()
            await self._bell.wait()
        return self.take_all()

    def take_all(self) -> list[T]:
        """All waiting events, oldest first; there may be none."""
        events = list(self._events)
        self._events.clear()
        return events


class Sink(Generic[T]):
    """A posting end nobody reads: for tests and for parts of the ring that are not there."""

    def __init__(self) -> None:
        self.events: list[T] = []

    def post(self, event: T) -> None:
        self.events.append(event)
