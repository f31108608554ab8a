"""The order of probes, and time-outs that do not count because the node was slow."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from pykubelet.edges.probing.outcome import Outcome, errored, failed, passed
from pykubelet.observe.probes.decide import counts
from pykubelet.observe.probes.limiter import ProbeLimiter, ProbeLimits

TIMED_OUT = failed("command timed out", timed_out=True)


def judged(limiter: ProbeLimiter, outcome: Outcome, took_s: float, now: float = 100.0, key: str = "k") -> Outcome:
    return limiter.judge(key, outcome, took_s, timeout_s=1.0, now=now)


def test_a_command_that_ran_out_of_time_counts_on_a_node_of_good_pace() -> None:
    limiter = ProbeLimiter(ProbeLimits())
    for _ in range(5):
        judged(limiter, passed(), 0.05)
    assert counts(judged(limiter, TIMED_OUT, 1.0))


def test_it_does_not_count_on_a_node_that_has_become_slow() -> None:
    limiter = ProbeLimiter(ProbeLimits())
    judged(limiter, passed(), 0.05, now=60.0)
    for took_s in (0.3, 0.4, 0.2, 0.5, 0.3):
        judged(limiter, passed(), took_s)
    assert not counts(judged(limiter, TIMED_OUT, 1.0))
    assert counts(limiter.judge("k", TIMED_OUT, 5.0, timeout_s=5.0, now=100.0)), "five seconds are enough even so"


def test_it_does_not_count_if_one_in_four_commands_has_become_slow() -> None:
    limiter = ProbeLimiter(ProbeLimits())
    for took_s in (0.05, 0.12, 0.14, 0.12, 0.11, 0.9, 0.4, 0.6):
        judged(limiter, passed(), took_s)
    assert not counts(judged(limiter, TIMED_OUT, 1.0))


def test_it_does_not_count_if_there_are_more_commands_than_the_node_can_run() -> None:
    limiter = ProbeLimiter(ProbeLimits(exec_at_once=4))
    for number in range(20):
        limiter.add(number, period_s=1.0)
        judged(limiter, passed(), 0.3, key=str(number))
    assert not counts(judged(limiter, TIMED_OUT, 1.0))


def test_commands_that_always_take_long_do_not_hide_one_that_hangs() -> None:
    limiter = ProbeLimiter(ProbeLimits())
    for name in ("well", "hung"):
        limiter.add(name, period_s=10.0)
        judged(limiter, passed(), 0.6, now=90.0, key=name)
    judged(limiter, passed(), 0.7, now=100.0, key="well")
    assert counts(judged(limiter, TIMED_OUT, 1.0, now=101.0, key="hung"))


def test_what_is_usual_follows_a_command_that_takes_longer_for_good() -> None:
    limiter = ProbeLimiter(ProbeLimits())
    for number in range(300):
        judged(limiter, passed(), 0.6 if number else 0.1, now=10.0 * number, key="grown")
    assert counts(judged(limiter, TIMED_OUT, 1.0, now=3000.0, key="hung"))


def test_a_command_that_fails_by_itself_always_counts_and_is_part_of_the_pace() -> None:
    limiter = ProbeLimiter(ProbeLimits())
    for took_s in (0.05, 0.4, 0.4, 0.4, 0.4):
        assert counts(judged(limiter, failed("exit 1"), took_s))
    assert not counts(judged(limiter, TIMED_OUT, 1.0))


def test_when_nothing_ends_in_time_it_counts() -> None:
    limiter = ProbeLimiter(ProbeLimits())
    assert counts(judged(limiter, TIMED_OUT, 1.0))
    judged(limiter, passed(), 0.05, now=60.0)
    judged(limiter, passed(), 0.5, now=100.0)
    judged(limiter, errored("no such container"), 9.0, now=101.0)
    assert not counts(judged(limiter, TIMED_OUT, 1.0, now=102.0))
    assert counts(judged(limiter, TIMED_OUT, 1.0, now=140.0)), "what was half a minute ago does not count now"


@pytest.mark.looptime
async def test_one_that_was_never_asked_comes_first() -> None:
    limiter = ProbeLimiter(ProbeLimits(exec_at_once=1, hold_s=10.0))
    order: list[str] = []

    async def probe(name: str, is_first: bool) -> None:
        async with limiter.slot(name, is_exec=True, is_first=is_first):
            order.append(name)
            await asyncio.sleep(1)

    await asyncio.gather(probe("a", False), probe("b", False), probe("c", False), probe("new", True))
    assert order == ["a", "new", "b", "c"]


@pytest.mark.looptime
async def test_few_run_beside_pods_that_come_and_go() -> None:
    limiter = ProbeLimiter(ProbeLimits(exec_at_once=3, exec_few=1, hold_s=10.0))
    loop = asyncio.get_running_loop()

    async def probe(number: int) -> float:
        async with limiter.slot(number, is_exec=True, is_first=False):
            entered = loop.time()
            await asyncio.sleep(0.4)
        limiter.judge(number, passed(), 0.4, timeout_s=1.0, now=loop.time())
        return entered

    began = loop.time()
    limiter.pods_changed(began, at_work=False)
    entered = await asyncio.gather(*(probe(n) for n in range(8)))
    assert [at - began for at in entered] == pytest.approx([0, 0.4, 0.8, 1.2, 1.6, 1.6, 1.6, 2.0]), "then all places"


@pytest.mark.looptime
async def test_more_than_can_ever_be_carried_out_hardly_run_beside_pods_that_come_and_go() -> None:
    limiter = ProbeLimiter(ProbeLimits(exec_at_once=2, exec_few=1, hold_s=10.0))
    loop = asyncio.get_running_loop()

    async def probe(name: str, is_first: bool = False) -> float:
        async with limiter.slot(name, is_exec=True, is_first=is_first):
            entered = loop.time()
            await asyncio.sleep(0.05)
        limiter.judge(name, passed(), 0.05, timeout_s=1.0, now=loop.time())
        return entered

    async def pods_come_and_go(until: float) -> None:
        while loop.time() < until:
            limiter.pods_changed(loop.time(), at_work=False)
            await asyncio.sleep(0.1)

    for n in range(30):
        limiter.add(f"k{n}", period_s=1.0)
    await asyncio.gather(*(probe(f"k{n}") for n in range(4)))
    began = loop.time()
    moving = asyncio.create_task(pods_come_and_go(began + 2.5))
    await asyncio.sleep(0.1)
    entered = [asyncio.create_task(probe(f"k{n}")) for n in range(4)]
    await asyncio.sleep(0.4)
    assert await probe("new", is_first=True) == pytest.approx(began + 0.5), "it does not wait for a rest"
    times = [at - began for at in await asyncio.gather(*entered)]
    assert [round(later - earlier, 1) for earlier, later in pairwise(times[:3])] == [1.0, 1.0], (
        "a twentieth of the time"
    )
    for n in range(30):
        limiter.forget(f"k{n}")
    limiter.pods_changed(loop.time(), at_work=False)
    few = [at - loop.time() for at in await asyncio.gather(*(probe(f"k{n}") for n in range(3)))]
    assert max(few) - min(few) == pytest.approx(0.1), "those that can be carried out go on"
    await moving


@pytest.mark.looptime
async def test_more_than_can_ever_be_carried_out_wait_for_a_moment_in_which_no_pod_is_made() -> None:
    limiter = ProbeLimiter(ProbeLimits(exec_at_once=2, exec_few=1, hold_s=10.0))
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def entry(name: str) -> float:
        async with limiter.slot(name, is_exec=True, is_first=False):
            entered = loop.time() - began
        limiter.judge(name, passed(), 0.01, timeout_s=1.0, now=loop.time())
        return round(entered, 2)

    for n in range(300):
        limiter.add(f"k{n}", period_s=1.0)
    limiter.judge("k0", passed(), 0.01, timeout_s=1.0, now=loop.time())
    await entry("k0")
    await asyncio.sleep(2)
    limiter.pods_changed(loop.time(), at_work=True)
    waiting = asyncio.create_task(entry("k1"))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    limiter.pods_changed(loop.time(), at_work=False)
    assert await waiting == 2.6, "a moment after the last has moved"
    several = [asyncio.create_task(entry(f"k{n}")) for n in range(2, 6)]
    for _ in range(100):
        limiter.pods_changed(loop.time(), at_work=True)
        await asyncio.sleep(0.1)
    entered = [await task for task in several]
    assert entered[:2] == pytest.approx([6.8, 11.0], abs=0.1), "but some go on however long pods are made"
    assert max(entered) < 14.5, "and all when it is over"


@pytest.mark.looptime
@pytest.mark.parametrize(("asked", "at_once"), [(10, 3), (100, 1)])
async def test_more_than_all_places_can_carry_out_leave_processors_free(asked: int, at_once: int) -> None:
    limiter = ProbeLimiter(ProbeLimits(exec_at_once=3, exec_few=1, hold_s=10.0))
    inside, most = 0, 0

    async def probe(name: str) -> None:
        nonlocal inside, most
        async with limiter.slot(name, is_exec=True, is_first=False):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.1)
            inside -= 1
        limiter.judge(name, passed(), 0.1, timeout_s=1.0, now=asyncio.get_running_loop().time())

    for n in range(asked):
        limiter.add(f"k{n}", period_s=1.0)
    await probe("k0")
    await asyncio.gather(*(probe(f"k{n}") for n in range(9)))
    assert most == at_once


@pytest.mark.looptime
async def test_those_whose_commands_hang_rest_beside_pods_that_come_and_go() -> None:
    """However few they are; without such pods, and for a command that ends, there is no rest."""
    limiter = ProbeLimiter(ProbeLimits(exec_at_once=4, exec_few=1, hold_s=0.25))
    loop = asyncio.get_running_loop()
    for n in range(2):
        judged(limiter, TIMED_OUT, 1.0, key=f"hung-{n}")

    async def entries(key: str, count: int) -> list[float]:
        times = []
        for _ in range(count):
            async with limiter.slot(key, is_exec=True, is_first=False):
                times.append(loop.time())
                await asyncio.sleep(0.1)
            limiter.judge(key, TIMED_OUT if key.startswith("hung") else passed(), 0.1, 1.0, loop.time())
        return times

    async def pauses(key: str) -> list[float]:
        return [round(later - earlier, 2) for earlier, later in pairwise(await entries(key, 3))]

    assert await pauses("hung-0") == [0.1, 0.1]
    limiter.pods_changed(loop.time(), at_work=False)
    assert await pauses("healthy") == [0.1, 0.1]
    limiter.pods_changed(loop.time(), at_work=False)
    hung = asyncio.gather(entries("hung-0", 1), entries("hung-1", 1))
    for _ in range(5):
        await asyncio.sleep(0.5)
        limiter.pods_changed(loop.time(), at_work=False)
    first, second = sorted(time for [time] in await hung)
    assert second - first == pytest.approx(2.1), "two seconds after the other has ended"


@pytest.mark.looptime
async def test_those_whose_commands_hang_share_places_of_their_own() -> None:
    limiter = ProbeLimiter(ProbeLimits(exec_at_once=2, hold_s=10.0))
    loop = asyncio.get_running_loop()
    for n in range(4):
        judged(limiter, TIMED_OUT, 1.0, key=f"hung-{n}")

    async def probe(name: str, stay_s: float) -> float:
        async with limiter.slot(name, is_exec=True, is_first=False):
            entered = loop.time()
            await asyncio.sleep(stay_s)
            return entered

    hung = [asyncio.create_task(probe(f"hung-{n}", 5)) for n in range(4)]
    await asyncio.sleep(0.1)
    assert await probe("well", 0.1) == pytest.approx(0.1), "no hanging probe delays it"
    assert await asyncio.gather(*hung) == pytest.approx([0, 5, 10, 15])
    judged(limiter, passed(), 0.05, key="hung-0")
    assert await probe("hung-0", 0) == pytest.approx(20), "it is well again"
