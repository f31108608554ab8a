"""Lets other tasks of the event loop go on between the parts of work that may be long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


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


async def gather_staggered(calls: Iterable[Callable[[], Awaitable[T]]], at_once: int) -> list[T | BaseException]:
    """Make all calls in parallel, each to its end; return their results and errors. `at_once`: so many begin before other tasks go on."""

    async def make(iterations: int, call: Callable[[], Awaitable[T]]) -> T:
        for _ in range(iterations):
            await asyncio.sleep(0)
        return await call()

    staggered = (make(number // at_once, call) for number, call in enumerate(calls))
    return await asyncio.gather(*staggered, return_exceptions=True)
