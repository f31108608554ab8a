"""How many probes of a sort may run at once, so that a crowd of them neither starves the node nor makes each other slow.

A probe that waits for its turn has not begun: its time-out does not run. A place is given back when the probe ends, or
a moment after it began if it is still running then: one that hangs costs the others a moment and no more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class Bulkhead:
    """`async with bulkhead.place():` waits for one of `places`, first come, first served."""

    def __init__(self, places: int, hold_s: float) -> None:
        self._free = places
        self._hold_s = hold_s
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._queue)

    def place(self) -> Place:
        return Place(self, self._hold_s)

    def take(self) -> asyncio.Future[None] | None:
        """None when a place was free and is taken now; else what to await."""
        if self._free > 0:
            self._free -= 1
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        return turn

    def give_up(self, turn: asyncio.Future[None]) -> None:
        """Wait no longer; a turn that has come already goes to the next."""
        if turn.done() and not turn.cancelled():
            self.give_back()
        elif turn in self._queue:
            self._queue.remove(turn)

    def give_back(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Place:
    """One probe's place."""

    __slots__ = ("_bulkhead", "_hold_s", "_timer")

    def __init__(self, bulkhead: Bulkhead, hold_s: float) -> None:
        self._bulkhead = bulkhead
        self._hold_s = hold_s
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        turn = self._bulkhead.take()
        if turn is not None:
            try:
                await turn
            except asyncio.CancelledError:
                self._bulkhead.give_up(turn)
                raise
        self._timer = asyncio.get_running_loop().call_later(self._hold_s, self._leave)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._leave()

    def _leave(self) -> None:
        self._timer = None
        self._bulkhead.give_back()
