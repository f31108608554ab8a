"""Cells: one writer, any readers; a reader always gets to the newest value and never holds up the writer."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.base.kit.cells import Cell, make_cell, make_lazy_cell, set_on_change
from pykubelet.base.kit.supervise import Supervisor


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_reader_sees_the_initial_value_and_then_the_published_one() -> None:
    cell, writer = make_cell("answer", 1)
    assert (cell.get(), cell.version) == (1, 0)
    writer.publish(2)
    assert (cell.get(), writer.get(), cell.version) == (2, 2, 1)
    assert writer.cell is cell


async def test_wait_for_returns_at_once_when_the_condition_holds_already() -> None:
    cell, _ = make_cell("answer", 7)
    assert await cell.wait_for(lambda value: value == 7) == 7


async def test_wait_for_sleeps_through_values_that_do_not_fit() -> None:
    cell, writer = make_cell("answer", 0)
    async with Supervisor("test") as supervisor:
        task = supervisor.start_child("wait", cell.wait_for(lambda value: value > 2))
        for value in (1, 2):
            writer.publish(value)
            await settle()
            assert not task.done()
        writer.publish(3)
        await settle()
        assert task.done()
        assert await task == 3


async def test_a_condition_that_came_and_went_between_two_looks_is_not_reported() -> None:
    cell, writer = make_cell("answer", 0)
    async with Supervisor("test") as supervisor:
        task = supervisor.start_child("wait", cell.wait_for(lambda value: value == 1))
        await settle()
        writer.publish(1)
        writer.publish(2)
        await settle()
        assert not task.done()


async def test_changes_give_the_present_value_and_skip_what_a_slow_reader_missed() -> None:
    cell, writer = make_cell("answer", 0)
    changes = cell.changes()
    assert await anext(changes) == 0
    for value in range(1, 100):
        writer.publish(value)
    assert await anext(changes) == 99
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(changes), 0.01)
    await changes.aclose()  # type: ignore[attr-defined]


async def test_a_change_while_the_reader_works_on_the_last_one_is_not_lost() -> None:
    cell, writer = make_cell("answer", 0)
    seen: list[int] = []

    async def read() -> None:
        async for value in cell.changes():
            seen.append(value)
            await asyncio.sleep(0)
            if value == 0:
                writer.publish(1)

    async with Supervisor("test") as supervisor:
        supervisor.start_root("read", read())
        await settle()
        await settle()
    assert seen == [0, 1]


async def test_one_bell_for_several_cells() -> None:
    (first, write_first), (second, write_second) = make_cell("first", 0), make_cell("second", 0)
    wakeup = asyncio.Event()
    with set_on_change(wakeup, first, second):
        assert wakeup.is_set(), "so that the reader looks once at the beginning"
        for write in (write_first, write_second):
            wakeup.clear()
            write.publish(1)
            assert wakeup.is_set()
        wakeup.clear()
    write_first.publish(2)
    assert not wakeup.is_set()


async def test_readers_that_left_are_forgotten() -> None:
    cell: Cell[int]
    cell, _ = make_cell("answer", 0)
    async with Supervisor("test") as supervisor:
        tasks = [supervisor.start_child("wait", cell.wait_for(lambda value: value == 1)) for _ in range(3)]
        await settle()
        assert len(cell._wakeups) == 3
        for task in tasks:
            task.cancel()
        await settle()
    assert not cell._wakeups


def test_a_lazy_cell_has_the_snapshot_of_the_moment_at_which_it_is_read() -> None:
    cell, writer = make_lazy_cell("answer", 0)
    assert cell.get() == 0, "before there is a writer"
    asked: list[int] = []

    def make() -> int:
        asked.append(1)
        return len(asked)

    writer.answer_with(make)
    assert asked == [], "it is not made before"
    assert (cell.get(), cell.get()) == (1, 2)
