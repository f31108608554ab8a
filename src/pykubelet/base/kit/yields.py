"""Lets other tasks of the event loop go on between the parts of work that may be long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
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


class IterationSlots:
    """Limits how many pieces of work, of any tasks, are done in one iteration of the event loop; the others are done in the next ones."""

    def __init__(self, number: int) -> None:
        self._slots = asyncio.Semaphore(number)

    async def take(self) -> None:
        """Wait for a slot, first come, first served. It is for what the task does until it awaits something else."""
        await self._slots.acquire()
        asyncio.get_running_loop().call_soon(self._slots.release)


async def gather_staggered(calls: Iterable[Callable[[], Awaitable[T]]], at_once: int) -> list[T | BaseException]:
    """Make all calls in parallel, each to its end; return their results and errors. `at_once`: so many begin before other tasks go on."""

    gates: list[asyncio.Event] = []

    async def make(gate: asyncio.Event, call: Callable[[], Awaitable[T]]) -> T:
        await gate.wait()
        return await call()

    def gated() -> Iterator[Awaitable[T]]:
        for number, call in enumerate(calls):
            if number % at_once == 0:
                gates.append(asyncio.Event())
            yield make(gates[-1], call)

    async def open_gates() -> None:
        for gate in gates:
            gate.set()
            await asyncio.sleep(0)

    results, _ = await asyncio.gather(asyncio.gather(*gated(), return_exceptions=True), open_gates())
    return results
