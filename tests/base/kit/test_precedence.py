"""Who tells goes after those who act, also where they wake one another."""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.mailbox import Mailbox
from pykubelet.base.kit.precedence import let_others_act


async def test_a_chain_that_a_change_has_set_off_is_seen_in_one_look() -> None:
    first: Mailbox[int] = Mailbox("first")
    second: Mailbox[int] = Mailbox("second")
    told: list[list[int]] = []
    done: list[int] = []
    bell = asyncio.Event()

    async def tell() -> None:
        await bell.wait()
        await let_others_act()
        told.append(list(done))

    async def act(mine: Mailbox[int], next_one: Mailbox[int] | None) -> None:
        done.append(await mine.get())
        bell.set()
        if next_one is not None:
            next_one.post(done[-1] + 1)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tell())
        tasks.create_task(act(first, second))
        tasks.create_task(act(second, None))
        await asyncio.sleep(0)
        bell.set()
        first.post(1)
    assert told == [[1, 2]]
