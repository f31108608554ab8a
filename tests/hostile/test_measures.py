"""The measures themselves: what is slow is found slow, and what stays is found."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.cost import bytes_in_use, check_cost, measure


async def work() -> int:
    return sum(i & 7 for i in range(2_500_000))


async def work_in_pieces() -> None:
    for _ in range(100):
        sum(i & 7 for i in range(25_000))
        await asyncio.sleep(0)


def test_one_long_piece_of_work_is_found() -> None:
    with pytest.raises(AssertionError, match="a sum: one iteration of the event loop takes"):
        check_cost("a sum", work)


def test_work_in_pieces_is_no_pause() -> None:
    assert check_cost("pieces", work_in_pieces).pause_s > 0


@pytest.mark.parametrize("size", [100, 100_000])
def test_what_stays_is_found_whatever_its_size_and_thread(size: int) -> None:
    kept: list[bytes] = []

    def keep() -> None:
        kept.extend(bytes([1]) * size for _ in range(8_000_000 // size))

    async def attack() -> None:
        thread = threading.Thread(target=keep)
        thread.start()
        thread.join()

    with pytest.raises(AssertionError, match=r"a list: .* KiB stay in memory"):
        check_cost("a list", attack)
    held = bytes_in_use()
    kept.clear()
    assert held - bytes_in_use() > 15_000_000


def test_what_goes_is_not_counted() -> None:
    async def attack() -> int:
        return len([bytes([1]) * 100 for _ in range(80_000)])

    assert measure(attack).kept_bytes < 1 << 19
