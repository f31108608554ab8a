"""Waiting for sockets: the one that is meant wakes, and nobody is left behind when one is given up."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from pykubelet.edges.probing.sockets import READABLE, WRITABLE, Overdue, until, wait_for

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


async def test_a_socket_is_readable_when_something_came(pair: Pair) -> None:
    ours, theirs = pair
    async with asyncio.timeout(30):
        await wait_for(ours, WRITABLE)
        for word in (b"one", b"two"):
            waiting = asyncio.create_task(wait_for(ours, READABLE))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            theirs.send(word)
            await waiting
            assert ours.recv(10) == word


async def test_a_peer_that_leaves_is_heard(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    async with asyncio.timeout(30):
        await wait_for(ours, READABLE)
    assert ours.recv(10) == b""


async def test_a_wait_that_was_given_up_does_not_harm_the_next_with_its_number(pair: Pair) -> None:
    ours, _ = pair
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wait_for(ours, READABLE)
    number = ours.fileno()
    ours.close()
    again, peer = socket.socketpair()
    with again, peer:
        again.setblocking(False)
        if again.fileno() != number:
            again, peer = peer, again
        waiting = asyncio.create_task(wait_for(again, READABLE))
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
            await wait_for(ours, READABLE, began + deadline_s)
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
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


async def test_many_wait_at_once() -> None:
    pairs = [socket.socketpair() for _ in range(50)]
    waiting = [asyncio.create_task(wait_for(ours, READABLE)) for ours, _ in pairs]
    await asyncio.sleep(0)
    for _, theirs in pairs[::2]:
        theirs.send(b"x")
    await asyncio.gather(*waiting[::2])
    assert [task.done() for task in waiting] == [number % 2 == 0 for number in range(50)]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


async def test_a_socket_that_is_always_ready_has_its_deadline_too(pair: Pair) -> None:
    ours, theirs = pair
    theirs.send(b"x")
    deadline = asyncio.get_running_loop().time() + 0.05

    async def look_again_and_again() -> None:
        while True:
            await wait_for(ours, READABLE, deadline)  # nothing is read, so it is readable at once

    async with asyncio.timeout(60):
        with pytest.raises(Overdue):
            await look_again_and_again()


async def test_work_that_never_waits_has_its_deadline_too() -> None:
    deadline = asyncio.get_running_loop().time() - 1.0
    with pytest.raises(Overdue):
        async with until(deadline):
            raise AssertionError("it must not begin")
