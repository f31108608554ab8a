"""Long work lets other tasks go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise

import pytest
from support.cost import count_instructions

from pykubelet.base.kit.yields import IterationSlots, Yields, gather_staggered


async def test_others_go_on_after_each_number_of_pieces() -> None:
    order: list[str] = []

    async def work() -> None:
        yields = Yields(3)
        for number in (1, 1, 1, 1, 5):
            order.append(str(number))
            await yields.done(number)

    async def other() -> None:
        for _ in range(3):
            order.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(work(), other())
    assert order == ["1", "1", "1", "other", "1", "5", "other", "other"]


@pytest.mark.looptime
async def test_calls_begin_a_few_at_a_time_and_run_in_parallel() -> None:
    begun: list[int] = []
    seen: list[int] = []

    async def call(number: int) -> int:
        begun.append(number)
        await asyncio.sleep(1)
        if number == 3:
            raise ValueError("three")
        return number

    async def watch() -> None:
        for _ in range(6):
            seen.append(len(begun))
            await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    before = loop.time()
    results, _ = await asyncio.gather(gather_staggered([partial(call, number) for number in range(10)], 4), watch())
    assert loop.time() - before == 1, "all run at the same time"
    assert max(after - earlier for earlier, after in pairwise(seen)) == 4 and begun == list(range(10))
    assert [result for result in results if not isinstance(result, ValueError)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert isinstance(results[3], ValueError)


def test_the_cost_of_many_calls_grows_with_their_number() -> None:
    async def call() -> None:
        pass

    def spent(number: int) -> int:
        return count_instructions(lambda: asyncio.run(_gathered([call] * number)))

    assert spent(1600) < 2.3 * spent(800)


async def _gathered(calls: list[Callable[[], Awaitable[None]]]) -> None:
    assert await gather_staggered(calls, 32) == [None] * len(calls)


async def test_few_pieces_of_work_are_done_in_one_iteration_of_the_event_loop() -> None:
    loop, done = asyncio.get_running_loop(), list[tuple[int, int]]()
    slots, iteration = IterationSlots(3), 0

    def count() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(count)

    async def work(number: int) -> None:
        for _ in range(2):
            await slots.take()
            done.append((iteration, number))

    count()
    await asyncio.gather(*map(work, range(10)))
    in_iterations = Counter(at for at, _ in done)
    assert len(done) == 20 and max(in_iterations.values()) == 3
    assert list(dict.fromkeys(number for _, number in done)) == [*range(10)], "first come, first served"


async def test_a_task_that_is_cancelled_takes_no_slot() -> None:
    slots = IterationSlots(1)
    await slots.take()
    waiting = asyncio.create_task(slots.take())
    await asyncio.sleep(0)
    waiting.cancel()
    for _ in range(3):
        async with asyncio.timeout(60):
            await slots.take()
