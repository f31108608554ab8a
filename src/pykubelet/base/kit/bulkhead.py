"""Limits how many pieces of work of one kind run at once, so that they neither starve the node nor slow each other down.

Work that waits for a slot has not begun, so its time-out does not run yet. A slot becomes free when the work ends, or
`hold_s` after the work began. Work that hangs therefore delays the others by `hold_s` at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf


class Bulkhead:
    """`async with bulkhead.slot():` waits for one of `slots`: urgent work first, then first come, first served.

    `rest_s`: for this long after a slot was given back, only urgent work is admitted. `slots`, `hold_s` and `rest_s` may be
    changed at any time. Work that holds a slot keeps it; added slots are filled when work next arrives or leaves. After
    `close`, only urgent work is admitted for a while.
    """

    def __init__(self, slots: int, hold_s: float) -> None:
        self.slots = slots
        self.hold_s = hold_s
        self.rest_s = 0.0
        self._left_at = -inf
        self._closed_until = self._closed_longest_s = 0.0
        self._inside: dict[BulkheadSlot, float] = {}
        self._queue: deque[Waiting] = deque()
        self._urgent: deque[Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def waiting(self) -> int:
        """How many pieces of work wait for a slot."""
        return sum(1 for _, admitted in (*self._urgent, *self._queue) if not admitted.done())

    def close(self, until: float, longest_s: float) -> None:
        """Admit only urgent work until `until` (seconds of the loop's clock).

        Other work is admitted earlier once `longest_s` has passed since the end of `rest_s`. A later call replaces this one;
        a time in the past opens the bulkhead.
        """
        self._closed_until, self._closed_longest_s = until, longest_s
        if self._queue:
            self._move_up()

    def slot(self, *, urgent: bool = False) -> BulkheadSlot:
        """A slot for one piece of work, to be entered with `async with`. `urgent`: the work goes before work that is not."""
        return BulkheadSlot(self, urgent)

    async def enter(self, slot: BulkheadSlot) -> None:
        """Wait until the work may begin. A cancelled wait leaves the queue."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        is_open = slot.urgent or now >= self._opens_at()
        if is_open and len(self._inside) < self.slots and not self._queue and not self._urgent:
            self._inside[slot] = now
            return
        admitted: asyncio.Future[None] = loop.create_future()
        (self._urgent if slot.urgent else self._queue).append((slot, admitted))
        self._move_up()
        try:
            await admitted
        except asyncio.CancelledError:
            self.leave(slot)  # it may have been admitted in the moment of the cancellation
            raise

    def waits_at_most_s(self, slot: BulkheadSlot) -> float:
        """An upper bound, in seconds, for the wait of a slot that is in the queue or about to join it.

        Urgent work that arrives later is not taken into account.
        """
        if slot in self._inside:
            return 0.0
        queue = [waiting for waiting, admitted in (*self._urgent, *self._queue) if not admitted.done()]
        before = queue.index(slot) if slot in queue else len(queue)
        opens_s = 0.0 if slot.urgent else max(0.0, self._opens_at() - asyncio.get_running_loop().time())
        if not before and len(self._inside) < self.slots:
            return opens_s
        return opens_s + (before // max(1, self.slots) + 1) * (self.hold_s + (0.0 if slot.urgent else self.rest_s))

    def leave(self, slot: BulkheadSlot) -> None:
        """Give the slot back. Does nothing if `hold_s` has ended it already."""
        if self._inside.pop(slot, None) is None:
            return
        self._left_at = asyncio.get_running_loop().time()
        if self._queue or self._urgent:
            self._move_up()

    def _opens_at(self) -> float:
        """When (loop time) work that is not urgent may be admitted."""
        rested_at = self._left_at + self.rest_s
        return max(rested_at, min(self._closed_until, rested_at + self._closed_longest_s))

    def _move_up(self) -> None:
        """Admit the work that may begin. While work waits, a timer frees slots that are held for too long."""
        now = asyncio.get_running_loop().time()
        while queue := self._urgent or self._queue:
            if queue[0][1].done():
                queue.popleft()  # cancelled
                continue
            if len(self._inside) >= self.slots:
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
            slot, admitted = queue.popleft()
            self._inside[slot] = now
            admitted.set_result(None)

    def _set_timer(self, left_s: float) -> None:
        loop = asyncio.get_running_loop()
        timer_at = loop.time() + left_s
        if self._timer is not None:
            if self._timer_at <= timer_at:  # not `when()`: uvloop's handles for less than a millisecond lack it
                return
            self._timer.cancel()
        self._timer, self._timer_at = loop.call_later(left_s, self._on_timer), timer_at

    def _on_timer(self) -> None:
        self._timer = None
        self._move_up()


class BulkheadSlot:
    """The slot of one piece of work, an asynchronous context manager. `urgent`: goes before work that is not."""

    __slots__ = ("_bulkhead", "urgent")

    def __init__(self, bulkhead: Bulkhead, urgent: bool) -> None:
        self._bulkhead = bulkhead
        self.urgent = urgent

    def waits_at_most_s(self) -> float:
        """As `Bulkhead.waits_at_most_s`, for this slot."""
        return self._bulkhead.waits_at_most_s(self)

    async def __aenter__(self) -> None:
        await self._bulkhead.enter(self)

    async def __aexit__(self, *_: object) -> None:
        self._bulkhead.leave(self)


Waiting = tuple[BulkheadSlot, asyncio.Future[None]]
