"""What the detector of sleeps in real time finds, and what it leaves alone."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from support.real_time import ALLOWED, ROOT, SLEEPS, TESTS, is_virtual
from support.virtual_time import VirtualLoop


async def test_a_sleep_of_a_test_is_found() -> None:
    with SLEEPS.observed() as found:
        await asyncio.sleep(0.001)
        time.sleep(0.001)  # noqa: ASYNC251 - this is what is tested
    here = [line.partition(" ")[2] for line in found if line.startswith("test_real_time.py:")]
    assert here == ["asyncio.sleep(0.001)", "time.sleep(0.001)"]


async def test_a_sleep_in_a_thread_is_found() -> None:
    def work() -> None:
        time.sleep(0.001)

    with SLEEPS.observed() as found:
        await asyncio.to_thread(work)
    assert len(found) == 1


async def test_letting_others_go_on_is_no_sleep() -> None:
    with SLEEPS.observed() as found:
        await asyncio.sleep(0)
    assert found == []


@pytest.mark.virtual_time
async def test_a_sleep_on_the_virtual_loop_is_left_alone() -> None:
    began = time.monotonic()
    with SLEEPS.observed() as found:
        await asyncio.sleep(3600)
    assert found == [] and time.monotonic() - began < 60


@pytest.mark.looptime
async def test_a_sleep_under_looptime_is_left_alone() -> None:
    with SLEEPS.observed() as found:
        await asyncio.sleep(3600)
    assert found == []


async def test_a_loop_that_looptime_has_not_activated_has_real_time() -> None:
    assert not is_virtual(asyncio.get_running_loop())
    virtual = VirtualLoop()
    virtual.close()
    assert is_virtual(virtual)


@pytest.mark.parametrize("place", ALLOWED)
def test_files_that_may_sleep_exist_and_do_so(place: str) -> None:
    path = Path(f"{ROOT}/{place}" if place.startswith("src/") else f"{TESTS}{place}")
    assert "sleep(" in path.read_text()
