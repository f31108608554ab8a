"""Mailboxes: how one component wakes another.

An event only wakes its reader; the state is in cells. A lost wake-up costs time, never correctness. A mailbox has no
limit, and is small in practice, because the reader takes all events at once (`get_all`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
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
