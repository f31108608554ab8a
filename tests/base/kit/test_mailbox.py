"""Mailboxes: posting never blocks and never fails; the reader gets everything in order."""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.mailbox import Mailbox, Sink
from pykubelet.base.kit.supervise import Supervisor


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
