"""Places: how many at once, who comes next, and what one that hangs costs."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from pykubelet.base.kit.bulkhead import Bulkhead

pytestmark = pytest.mark.looptime


class Crowd:
    def __init__(self, bulkhead: Bulkhead) -> None:
        self.bulkhead = bulkhead
        self.inside = 0
        self.most = 0
        self.entered: list[tuple[int, float]] = []

    async def visit(self, number: int, stay_s: float) -> None:
        async with self.bulkhead.slot():
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.entered.append((number, round(asyncio.get_running_loop().time(), 3)))
            try:
                await asyncio.sleep(stay_s)
            finally:
                self.inside -= 1


async def test_no_more_than_the_places_and_in_order() -> None:
    crowd = Crowd(Bulkhead(3, hold_s=10.0))
    await asyncio.gather(*(crowd.visit(n, 0.1) for n in range(9)))
    assert crowd.most == 3
    assert [number for number, _ in crowd.entered] == list(range(9))
    assert crowd.entered[-1][1] == pytest.approx(0.2)


async def test_one_that_stays_gives_its_place_up_but_goes_on() -> None:
    crowd = Crowd(Bulkhead(1, hold_s=0.25))
    await asyncio.gather(*(crowd.visit(n, 5.0) for n in range(4)))
    assert [at for _, at in crowd.entered] == pytest.approx([0, 0.25, 0.5, 0.75])
    await asyncio.wait_for(crowd.visit(9, 0.0), 0.1)


async def test_fewer_slots_end_no_running_work() -> None:
    bulkhead = Bulkhead(3, hold_s=0.25)
    crowd = Crowd(bulkhead)
    visits = asyncio.gather(*(crowd.visit(n, 0.1 if n < 3 else 5.0) for n in range(6)))
    await asyncio.sleep(0)
    bulkhead.slots = 1
    await visits
    assert [at for _, at in crowd.entered] == pytest.approx([0, 0, 0, 0.1, 0.35, 0.6])
    bulkhead.slots = 2
    late = Crowd(bulkhead)
    await asyncio.gather(*(late.visit(n, 0.1) for n in range(4)))
    assert late.most == 2


async def test_cancelled_ones_lose_no_place() -> None:
    bulkhead = Bulkhead(2, hold_s=10.0)
    crowd = Crowd(bulkhead)
    tasks = [asyncio.create_task(crowd.visit(n, 1.0)) for n in range(6)]
    await asyncio.sleep(0.1)
    assert bulkhead.waiting == 4
    for task in (tasks[0], tasks[2], tasks[3]):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert bulkhead.waiting == 0
    assert [number for number, _ in crowd.entered] == [0, 1, 4, 5]
    later = Crowd(bulkhead)
    await asyncio.gather(*(later.visit(n, 0.1) for n in range(4)))
    assert later.most == 2


async def test_a_slot_that_comes_with_the_cancellation_goes_to_the_next() -> None:
    bulkhead = Bulkhead(1, hold_s=10.0)
    crowd = Crowd(bulkhead)
    tasks = [asyncio.create_task(crowd.visit(n, 1.0)) for n in range(3)]
    await asyncio.sleep(0.1)
    tasks[0].cancel()
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [number for number, _ in crowd.entered] == [0, 2]


async def test_a_closed_one_lets_in_who_is_urgent_and_who_has_waited_too_long() -> None:
    bulkhead = Bulkhead(1, hold_s=10.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    entered: dict[str, float] = {}

    async def visit(name: str, *, urgent: bool = False) -> None:
        async with bulkhead.slot(urgent=urgent):
            entered[name] = loop.time() - began

    await visit("before")
    bulkhead.close(began + 30, longest_s=4.0)
    visits = [asyncio.create_task(visit(name)) for name in ("one", "two")]
    await asyncio.sleep(1)
    await visit("urgent", urgent=True)
    await asyncio.gather(*visits)
    assert entered == pytest.approx({"before": 0, "urgent": 1, "one": 5, "two": 9})
    bulkhead.close(loop.time() + 30, longest_s=40.0)
    opened = asyncio.create_task(visit("opened"))
    await asyncio.sleep(1)
    assert "opened" not in entered
    bulkhead.close(loop.time(), longest_s=40.0)
    await opened
    assert entered["opened"] == pytest.approx(10)


async def test_how_long_until_a_slot_is_free_at_most() -> None:
    bulkhead = Bulkhead(2, hold_s=1.0)
    slots = [bulkhead.slot() for _ in range(7)]
    assert slots[0].waits_at_most_s() == 0.0, "no work is running"
    at: dict[int, float] = {}
    began = asyncio.get_running_loop().time()

    async def visit(number: int) -> None:
        async with slots[number]:
            at[number] = asyncio.get_running_loop().time() - began
            await asyncio.sleep(5)

    visits = [asyncio.create_task(visit(number)) for number in range(6)]
    await asyncio.sleep(0)
    within = {number: slots[number].waits_at_most_s() for number in range(7)}
    await asyncio.gather(*visits)
    assert within == {0: 0.0, 1: 0.0, 2: 1.0, 3: 1.0, 4: 2.0, 5: 2.0, 6: 3.0}
    assert {number: within[number] for number in at} == pytest.approx(at)
    bulkhead.rest_s = 3.0
    await asyncio.sleep(5)
    assert slots[6].waits_at_most_s() == 0.0, "the last has left long ago"
    async with slots[0]:
        pass
    assert slots[6].waits_at_most_s() == pytest.approx(3.0)


def test_a_pause_of_less_than_a_millisecond() -> None:
    """On the agent's own event loop, whose timers of less than one are none."""

    async def course() -> None:
        bulkhead = Bulkhead(1, hold_s=0.0003)
        async with bulkhead.slot():
            crowd = Crowd(bulkhead)
            visit = asyncio.create_task(crowd.visit(1, 0.0))
            await asyncio.sleep(0)
            bulkhead.close(asyncio.get_running_loop().time() + 0.0003, 10.0)
            await visit
        assert [number for number, _ in crowd.entered] == [1]

    uvloop.run(course())
