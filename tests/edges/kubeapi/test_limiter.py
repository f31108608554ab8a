"""Requests a second: bursts, order, waiters that give up, and how long a queue may become. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.edges.kubeapi.limiter import Limiter, QueueFull

pytestmark = pytest.mark.looptime


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


async def waits(limiter: Limiter, number: int) -> list[float]:
    """When so many that come now are let through, in seconds from now."""
    began = now()

    async def wait() -> float:
        await limiter.take()
        return round(now() - began, 3)

    return await asyncio.gather(*(wait() for _ in range(number)))


async def crowd(limiter: Limiter, number: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(limiter.take()) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks


async def test_a_burst_is_free_and_then_each_waits_longer() -> None:
    assert await waits(Limiter(10, 3), 5) == [0.0, 0.0, 0.0, 0.1, 0.2]


async def test_rest_fills_the_bucket_again_but_not_beyond_the_burst() -> None:
    limiter = Limiter(10, 3)
    await waits(limiter, 3)
    await asyncio.sleep(0.1)
    assert await waits(limiter, 2) == [0.0, 0.1]
    await asyncio.sleep(3600)
    assert await waits(limiter, 4) == [0.0, 0.0, 0.0, 0.1]


async def test_no_limit() -> None:
    assert await waits(Limiter(0, 1, longest_s=0.0), 1000) == [0.0] * 1000


async def test_who_gives_up_leaves_the_queue_to_those_behind() -> None:
    limiter = Limiter(10, 1)
    impatient = await crowd(limiter, 1001)
    last = asyncio.create_task(waits(limiter, 2))
    await asyncio.sleep(0.05)
    for task in impatient[1:]:
        task.cancel()
    assert await last == [0.1, 0.2]
    assert impatient[0].done() and not impatient[0].cancelled()


async def test_a_request_cancelled_when_it_may_be_sent_leaves_its_token_to_the_next() -> None:
    limiter = Limiter(10, 1)
    first, second, third = await crowd(limiter, 3)
    loop = asyncio.get_running_loop()
    loop.call_at(loop.time() + 0.1, second.cancel)
    await asyncio.sleep(0.105)
    assert first.done() and second.done()
    await third
    assert now() <= 0.2


async def test_the_queue_is_no_longer_than_it_may_be() -> None:
    limiter = Limiter(50, 100, longest_s=2.0)
    tasks = await crowd(limiter, 1000)
    refused = [task for task in tasks if task.done() and isinstance(task.exception(), QueueFull)]
    assert 800 <= len(refused) <= 801
    await asyncio.sleep(2.0)
    assert all(task.done() for task in tasks)
    assert (await waits(limiter, 1))[0] <= 0.1


async def test_a_flood_of_a_minute_is_over_when_it_ends() -> None:
    """Each gives up after half a second, as clients do that the server cuts off."""
    limiter = Limiter(50, 100)

    async def other_client() -> None:
        try:
            async with asyncio.timeout(0.5):
                await limiter.take()
        except TimeoutError:
            return

    async with asyncio.TaskGroup() as group:
        for _ in range(60 * 20):
            for _ in range(10):
                group.create_task(other_client())
            await asyncio.sleep(0.05)
        began = now()
        await limiter.take()
        assert now() - began <= 0.6
