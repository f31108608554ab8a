"""Long work lets other tasks go on."""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.yields import Yields


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
