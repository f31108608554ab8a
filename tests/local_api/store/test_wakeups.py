"""Readers are woken after changes: few at once, many together, and none is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet_local_api.store.wakeups import FEW_READERS, LONGEST_PACE_S, PACE_S, Wakeups

pytestmark = pytest.mark.virtual_time
MANY = 200


def reading(wakeups: Wakeups, number: int, resource: str = "pods") -> list[asyncio.Event]:
    events = [asyncio.Event() for _ in range(number)]
    for event in events:
        wakeups.add(resource, event)
    return events


async def test_few_readers_are_woken_at_each_change() -> None:
    wakeups = Wakeups()
    readers = reading(wakeups, FEW_READERS)
    for _ in range(3):
        wakeups.wake({"pods"})
        assert all(event.is_set() for event in readers)
        for event in readers:
            event.clear()


async def test_many_readers_get_the_changes_of_a_short_while_together() -> None:
    wakeups = Wakeups()
    readers, woken = reading(wakeups, MANY), 0
    start = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < start + 1:
        wakeups.wake({"pods"})
        await asyncio.sleep(0.005)
        if all(event.is_set() for event in readers):
            woken += 1
            for event in readers:
                event.clear()
    assert 0.8 / (MANY * PACE_S) <= woken <= 1 / (MANY * PACE_S) + 1


async def test_the_last_change_of_many_wakes_all_of_many_readers() -> None:
    wakeups = Wakeups()
    readers = reading(wakeups, 5 * MANY)
    for _ in range(3):
        wakeups.wake({"pods"})
        await asyncio.sleep(2 * LONGEST_PACE_S)
        assert all(event.is_set() for event in readers)
        for event in readers:
            event.clear()


async def test_a_reader_of_all_resources_is_woken_at_once_beside_many() -> None:
    wakeups = Wakeups()
    reading(wakeups, MANY)
    (reader,) = reading(wakeups, 1, "")
    for _ in range(2):
        wakeups.wake({"pods"})
        assert reader.is_set()
        reader.clear()


async def test_other_tasks_run_while_many_readers_are_woken() -> None:
    wakeups = Wakeups()
    readers = reading(wakeups, MANY)
    wakeups.wake({"pods"})
    seen = []
    while not all(event.is_set() for event in readers):
        await asyncio.sleep(0.001)
        seen.append(sum(event.is_set() for event in readers))
    assert len(seen) >= 1


async def test_a_reader_that_has_left_is_not_counted() -> None:
    wakeups = Wakeups()
    readers = reading(wakeups, MANY)
    for event in readers:
        wakeups.discard("pods", event)
    assert wakeups.count("pods") == 0
    wakeups.wake({"pods"})
    await asyncio.sleep(1)
    assert not any(event.is_set() for event in readers)
