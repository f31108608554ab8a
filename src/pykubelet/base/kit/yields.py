"""Lets other tasks of the event loop go on between the parts of work that may be long."""

from __future__ import annotations

import asyncio


class Yields:
    """Counts pieces of work; other tasks go on after each `number` of them."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._left = number

    async def done(self, pieces: int = 1) -> None:
        """Note that so many pieces are done. May let other tasks go on."""
        self._left -= pieces
        if self._left <= 0:
            self._left = self._number
            await asyncio.sleep(0)
