"""Work that comes to its end although its waiter is cancelled, and work beside other work."""

from __future__ import annotations

import asyncio
import time

import pytest

from pykubelet.base.kit.supervise import beside, finish

pytestmark = pytest.mark.virtual_time


async def work(log: list[str], seconds: float) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        log.append("cut off")
        raise
    log.append("done")
    return "result"


async def test_the_result_is_handed_on() -> None:
    assert await finish(work([], 0.0), 1.0) == "result"


async def test_an_error_is_handed_on() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await finish(fail(), 1.0)


async def test_a_cancellation_waits_for_the_end() -> None:
    log: list[str] = []
    waiter = asyncio.ensure_future(finish(work(log, 0.1), 1.0))
    await asyncio.sleep(0.01)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert log == ["done"]


async def test_but_not_for_ever() -> None:
    log: list[str] = []
    waiter = asyncio.ensure_future(finish(work(log, 60.0), 0.05))
    await asyncio.sleep(0.01)
    began = time.monotonic()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert log == ["cut off"]
    assert time.monotonic() - began < 5


async def test_and_a_second_cancellation_ends_it() -> None:
    log: list[str] = []
    waiter = asyncio.ensure_future(finish(work(log, 60.0), 60.0))
    for _ in range(2):
        await asyncio.sleep(0.01)
        waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert log == ["cut off"]


async def test_work_and_what_runs_beside_it_are_both_awaited() -> None:
    log: list[str] = []
    assert await beside(work(log, 0.2), work(log, 0.1)) == "result"
    assert log == ["done", "done"]


async def test_an_error_of_the_work_waits_for_what_runs_beside_it() -> None:
    async def fail() -> None:
        raise ValueError("no")

    log: list[str] = []
    with pytest.raises(ValueError, match="no"):
        await beside(work(log, 0.1), fail())
    assert log == ["done"]


async def test_an_error_of_what_runs_beside_the_work_is_handed_on() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await beside(fail(), work([], 0.1))


async def test_a_cancellation_ends_the_work_and_what_runs_beside_it() -> None:
    log: list[str] = []
    waiter = asyncio.ensure_future(beside(work(log, 60.0), work(log, 60.0)))
    await asyncio.sleep(0.01)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await asyncio.sleep(0)
    assert log == ["cut off", "cut off"]
