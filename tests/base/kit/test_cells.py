"""Cells: one writer, any readers; a reader gets to the newest value and never holds up the writer. Mailboxes: posting never fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import pytest

from pykubelet.base.kit.cells import Cell, Mailbox, Sink, make_cell, make_lazy_cell, set_on_change
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, VersionedMap, edited, field, replace


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


# Entries


class Numbers(Value):
    by_name: Mapping[str, int] = field(default_factory=dict)
    version: int = 0


def by_name(numbers: Numbers) -> Mapping[str, int]:
    return numbers.by_name


@pytest.mark.parametrize("made", [dict, VersionedMap])
async def test_a_change_of_one_entry_wakes_only_those_that_wait_for_it(
    made: type[dict[str, int]] | type[VersionedMap[str, int]],
) -> None:
    cell, writer = make_cell("numbers", Numbers(made({"a": 1, "b": 1})))
    looks: list[str] = []

    def is_two(name: str, value: int | None) -> bool:
        looks.append(name)
        return value == 2

    async with Supervisor("test") as supervisor:
        waits = {
            name: supervisor.start_child(name, cell.entry(by_name, name).wait_for(partial(is_two, name)))
            for name in ("a", "b", "c")
        }
        await settle()
        looks.clear()
        for entries in ({"a": 5}, {"a": 6}, {"a": 2}):
            numbers = edited(cell.get().by_name) if made is VersionedMap else made(cell.get().by_name)
            numbers["a"] = entries["a"]
            writer.publish(Numbers(numbers))
            await settle()
        assert looks == ["a", "a", "a"]
        assert [name for name, wait in waits.items() if wait.done()] == ["a"]
        writer.publish(Numbers({"b": 2, "c": 2}))
        await settle()
        assert looks[3:] == ["b", "c"]
        assert all(wait.done() for wait in waits.values())


async def test_an_entry_that_is_there_is_not_waited_for_and_one_that_goes_is_none() -> None:
    cell, writer = make_cell("numbers", Numbers({"a": 1}))
    entry = cell.entry(by_name, "a")
    assert await entry.wait_for(lambda value: value == 1) == 1
    async with Supervisor("test") as supervisor:
        wait = supervisor.start_child("wait", entry.wait_for(lambda value: value is None))
        await settle()
        writer.publish(Numbers({"a": 3}))
        await settle()
        assert not wait.done()
        writer.publish(Numbers())
        await settle()
        assert wait.done()
        assert entry.get() is None


async def test_a_change_without_wake_up_is_seen_with_the_next_one() -> None:
    cell, writer = make_cell("numbers", Numbers({"a": 1}))
    async with Supervisor("test") as supervisor:
        wait = supervisor.start_child("wait", cell.entry(by_name, "a").wait_for(lambda value: value == 2))
        await settle()
        writer.publish(Numbers({"a": 2}), wake_readers=False)
        await settle()
        assert not wait.done()
        writer.publish(replace(cell.get(), version=1))
        await settle()
        assert wait.done()


async def test_a_wait_for_an_entry_that_is_given_up_leaves_the_others() -> None:
    cell, writer = make_cell("numbers", Numbers())
    async with Supervisor("test") as supervisor:
        given_up, kept = (
            supervisor.start_child("wait", cell.entry(by_name, "a").wait_for(lambda value: value == 1))
            for _ in range(2)
        )
        await settle()
        given_up.cancel()
        await settle()
        writer.publish(Numbers({"a": 1}))
        await settle()
        assert given_up.cancelled()
        assert await kept == 1


async def test_events_come_out_in_order_one_by_one() -> None:
    mailbox: Mailbox[int] = Mailbox("test")
    for number in range(3):
        mailbox.post(number)
    assert [await mailbox.get() for _ in range(3)] == [0, 1, 2]
    assert len(mailbox) == 0


async def test_get_all_takes_what_waits_so_that_the_reader_can_conflate() -> None:
    mailbox: Mailbox[int] = Mailbox("test")
    mailbox.post(1)
    mailbox.post(2)
    assert await mailbox.get_all() == [1, 2]
    assert len(mailbox) == 0


async def test_a_reader_may_wait_for_more_than_events() -> None:
    wakeup = asyncio.Event()
    mailbox: Mailbox[int] = Mailbox("test", wakeup)
    assert mailbox.take_all() == []
    mailbox.post(1)
    mailbox.post(2)
    assert wakeup.is_set()
    wakeup.clear()
    assert mailbox.take_all() == [1, 2]
    assert mailbox.take_all() == []


async def test_a_waiting_reader_is_woken() -> None:
    mailbox: Mailbox[str] = Mailbox("test")
    async with Supervisor("test") as supervisor:
        single = supervisor.start_child("one", mailbox.get())
        await asyncio.sleep(0)
        assert not single.done()
        mailbox.post("a")
        assert await single == "a"
        many = supervisor.start_child("many", mailbox.get_all())
        await asyncio.sleep(0)
        mailbox.post("b")
        mailbox.post("c")
        assert await many == ["b", "c"]


async def test_a_reader_that_was_cancelled_takes_nothing_with_it() -> None:
    mailbox: Mailbox[str] = Mailbox("test")
    async with Supervisor("test") as supervisor:
        reader = supervisor.start_child("reader", mailbox.get_all())
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    mailbox.post("kept")
    assert await mailbox.get_all() == ["kept"]


def test_a_sink_keeps_what_was_posted() -> None:
    sink: Sink[int] = Sink()
    sink.post(1)
    sink.post(2)
    assert sink.events == [1, 2]
