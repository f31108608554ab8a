"""Deadlines, and waiting for descriptors: only the right one wakes, deadlines hold, and nothing is left behind by a cancelled wait."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from pykubelet.base.kit.readiness import Overdue, until, wait_ready

pytestmark = pytest.mark.virtual_time

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


async def test_a_descriptor_is_readable_when_data_has_come(pair: Pair) -> None:
    ours, theirs = pair
    async with asyncio.timeout(30):
        await wait_ready(ours.fileno(), writable=True)
        for word in (b"one", b"two"):
            waiting = asyncio.create_task(wait_ready(ours.fileno()))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            theirs.send(word)
            await waiting
            assert ours.recv(10) == word


async def test_the_end_of_the_peer_wakes(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    async with asyncio.timeout(30):
        await wait_ready(ours.fileno())
    assert ours.recv(10) == b""


async def test_a_cancelled_wait_does_not_harm_the_next_one_with_its_number(pair: Pair) -> None:
    ours, _ = pair
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wait_ready(ours.fileno())
    number = ours.fileno()
    ours.close()
    again, peer = socket.socketpair()
    with again, peer:
        again.setblocking(False)
        if again.fileno() != number:
            again, peer = peer, again
        waiting = asyncio.create_task(wait_ready(again.fileno()))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        peer.send(b"x")
        async with asyncio.timeout(30):
            await waiting


async def test_each_waits_until_its_own_deadline() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    pairs = [socket.socketpair() for _ in range(4)]

    async def ends_after(ours: socket.socket, deadline_s: float) -> float:
        try:
            await wait_ready(ours.fileno(), deadline=began + deadline_s)
        except Overdue:
            return loop.time() - began
        return 0.0

    deadlines = (600.0, 0.1, 30.0, 0.2)
    last, *waiting = [
        asyncio.create_task(ends_after(ours, after)) for (ours, _), after in zip(pairs, deadlines, strict=True)
    ]
    pairs[2][1].send(b"in time")
    first, in_time, second = await asyncio.gather(*waiting)
    assert (round(first, 1) >= 0.1, in_time, round(second, 1) >= 0.2) == (True, 0.0, True)
    assert not last.done()
    last.cancel()
    await asyncio.gather(last, return_exceptions=True)
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


async def test_a_descriptor_that_is_always_ready_has_its_deadline_too(pair: Pair) -> None:
    ours, theirs = pair
    theirs.send(b"x")
    deadline = asyncio.get_running_loop().time() + 0.05

    async def look_again_and_again() -> None:
        while True:
            await wait_ready(ours.fileno(), deadline=deadline)  # nothing is read, so it is readable at once

    async with asyncio.timeout(60):
        with pytest.raises(Overdue):
            await look_again_and_again()


async def test_work_that_never_waits_has_its_deadline_too() -> None:
    deadline = asyncio.get_running_loop().time() - 1.0
    with pytest.raises(Overdue):
        async with until(deadline):
            raise AssertionError("it must not begin")
