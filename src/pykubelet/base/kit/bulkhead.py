"""How many pieces of work of a sort may run at once, so that a crowd neither starves the node nor slows itself down.

Work that waits for its turn has not begun: its time-out does not run. A place is given back when the work ends, or a
moment after it began if it is still running then: one that hangs costs the others a moment and no more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from types import TracebackType


class Bulkhead:
    """`async with bulkhead.place():` waits for one of `places`, first come, first served, but urgent work comes first.

    `rest_s`: so long after somebody has left only urgent work is let in. `places`, `hold_s` and `rest_s` may be changed at
    any time. Nobody is turned out; new places are filled as soon as somebody comes or goes. `close` shuts the door to all but
    urgent work for a moment.
    """

    def __init__(self, places: int, hold_s: float) -> None:
        self.places = places
        self.hold_s = hold_s
        self.rest_s = 0.0
        self._left_at = -inf
        self._closed_until = self._closed_longest_s = 0.0
        self._inside: dict[Place, float] = {}
        self._queue: deque[Waiting] = deque()
        self._urgent: deque[Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return sum(1 for _, turn in (*self._urgent, *self._queue) if not turn.done())

    def close(self, until: float, longest_s: float) -> None:
        """Until then only urgent work is let in, but others too when their rest has been over for `longest_s`. A later call
        replaces this one: one with a time that is past opens."""
        self._closed_until, self._closed_longest_s = until, longest_s
        if self._queue:
            self._move_up()

    def place(self, *, urgent: bool = False) -> Place:
        return Place(self, urgent)

    async def enter(self, place: Place) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        is_open = place.urgent or now >= self._opens_at()
        if is_open and len(self._inside) < self.places and not self._queue and not self._urgent:
            self._inside[place] = now
            return
        turn: asyncio.Future[None] = loop.create_future()
        (self._urgent if place.urgent else self._queue).append((place, turn))
        self._move_up()
        try:
            await turn
        except asyncio.CancelledError:
            self.leave(place)  # its turn may have come together with the cancellation
            raise

    def turn_within_s(self, place: Place) -> float:
        """How long it takes at most until the turn of work that waits or is about to, as long as no urgent work comes."""
        if place in self._inside:
            return 0.0
        queue = [waiting for waiting, turn in (*self._urgent, *self._queue) if not turn.done()]
        before = queue.index(place) if place in queue else len(queue)
        opens_s = 0.0 if place.urgent else max(0.0, self._opens_at() - asyncio.get_running_loop().time())
        if not before and len(self._inside) < self.places:
            return opens_s
        return opens_s + (before // max(1, self.places) + 1) * (self.hold_s + (0.0 if place.urgent else self.rest_s))

    def leave(self, place: Place) -> None:
        """Harmless when the place was taken away already."""
        if self._inside.pop(place, None) is None:
            return
        self._left_at = asyncio.get_running_loop().time()
        if self._queue or self._urgent:
            self._move_up()

    def _opens_at(self) -> float:
        """To work that is not urgent."""
        rested_at = self._left_at + self.rest_s
        return max(rested_at, min(self._closed_until, rested_at + self._closed_longest_s))

    def _move_up(self) -> None:
        """Let in who may come in; while somebody waits, a timer looks after those that stay too long."""
        now = asyncio.get_running_loop().time()
        while queue := self._urgent or self._queue:
            if queue[0][1].done():
                queue.popleft()  # cancelled
                continue
            if len(self._inside) >= self.places:
                eldest = next(iter(self._inside))
                left_s = self._inside[eldest] + self.hold_s - now
                if left_s > 0:
                    self._set_timer(left_s)
                    return
                del self._inside[eldest]
                self._left_at = now
                continue
            if queue is self._queue and (closed_s := self._opens_at() - now) > 0:
                self._set_timer(closed_s)
                return
            place, turn = queue.popleft()
            self._inside[place] = now
            turn.set_result(None)

    def _set_timer(self, left_s: float) -> None:
        loop = asyncio.get_running_loop()
        rings_at = loop.time() + left_s
        if self._timer is not None:
            if self._rings_at <= rings_at:  # not `when()`: uvloop's handle of less than a millisecond has none
                return
            self._timer.cancel()
        self._timer, self._rings_at = loop.call_later(left_s, self._rang), rings_at

    def _rang(self) -> None:
        self._timer = None
        self._move_up()


class Place:
    """The place of one piece of work."""

    __slots__ = ("_bulkhead", "urgent")

    def __init__(self, bulkhead: Bulkhead, urgent: bool) -> None:
        self._bulkhead = bulkhead
        self.urgent = urgent

    def turn_within_s(self) -> float:
        return self._bulkhead.turn_within_s(self)

    async def __aenter__(self) -> None:
        await self._bulkhead.enter(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bulkhead.leave(self)


Waiting = tuple[Place, asyncio.Future[None]]
