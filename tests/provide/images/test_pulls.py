"""The running of pulls in virtual time: sharing, order, limits, cancellation."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from provide.images.stand import FakeRuntime, LoopClock, pod

from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.provide.images.keyring import Auth, Credential
from pykubelet.provide.images.model import ImageSettings, PullStage, WaitingPod
from pykubelet.provide.images.pulls import PullDone, PullFailed, PullOrder, PullQueue, PullRunner
from pykubelet.provide.images.record_store import RecordStore

pytestmark = pytest.mark.looptime


class Desk:
    """A runner without records (they are written by threads, which virtual time cannot wait for)."""

    def __init__(self, runtime: FakeRuntime, **limits: Any) -> None:
        values = {"serialize": False, "qps": 0.0, **limits}
        settings = ImageSettings("/nowhere", ensure_secret_pulled=False, **values)
        clock = LoopClock()
        self.runner = PullRunner(runtime, RecordStore("/nowhere", clock), clock, settings)
        self.tasks = Supervisor("test")
        self.arrivals = itertools.count()

    async def pull(self, image: str, name: str = "web", *users: str, priority: int = 0) -> PullDone | PullFailed:
        credentials = tuple(Credential(Auth(user, f"pw-{user}")) for user in users)
        auths = tuple(c.auth for c in credentials)
        order = PullOrder(pb.ImageSpec(image=image), auths, next(self.arrivals), priority=priority)
        return await self.runner.run(order, WaitingPod(pod(name), "main", LoopClock().wall()), credentials)

    def start(
        self, image: str, name: str = "web", *users: str, priority: int = 0
    ) -> asyncio.Task[PullDone | PullFailed]:
        return self.tasks.start_child(f"{name} {image}", self.pull(image, name, *users, priority=priority))

    def view(self) -> list[tuple[str, str, int, list[str]]]:
        return [(p.image, p.stage, p.position, [w.pod.name for w in p.pods]) for p in self.runner.active()]


async def test_many_pods_share_one_pull() -> None:
    runtime = FakeRuntime()
    runtime.seconds = 5
    desk = Desk(runtime)
    tasks = [desk.start("a", f"pod-{n}") for n in range(5)]
    await asyncio.sleep(1)
    assert desk.view() == [("a", PullStage.PULLING, 0, [f"pod-{n}" for n in range(5)])]
    results = await asyncio.gather(*tasks)
    assert runtime.pulls == [("a", "")]
    assert {type(result) for result in results} == {PullDone}
    assert desk.runner.active() == ()


async def test_other_credentials_are_another_pull() -> None:
    runtime = FakeRuntime()
    runtime.seconds = 1
    desk = Desk(runtime)
    await asyncio.gather(desk.pull("a", "x", "ann"), desk.pull("a", "y", "bob"), desk.pull("a", "z", "ann"))
    assert sorted(runtime.pulls) == [("a", "ann"), ("a", "bob")]


async def test_a_later_request_pulls_again() -> None:
    desk = Desk(runtime := FakeRuntime())
    await desk.pull("a")
    await desk.pull("a")
    assert runtime.pulls == [("a", ""), ("a", "")]


async def test_a_request_of_a_higher_priority_brings_a_shared_pull_forward() -> None:
    runtime = FakeRuntime()
    runtime.seconds = 10
    desk = Desk(runtime, serialize=True)
    tasks = [desk.start("a"), desk.start("b"), desk.start("c")]
    await asyncio.sleep(1)
    tasks.append(desk.start("c", "urgent", priority=1))
    await asyncio.sleep(1)
    assert desk.view()[1:] == [("b", PullStage.QUEUED, 2, ["web"]), ("c", PullStage.QUEUED, 1, ["web", "urgent"])]
    tasks.append(desk.start("b", "later", priority=-1))
    await asyncio.gather(*tasks)
    assert runtime.pulls == [("a", ""), ("c", ""), ("b", "")]


async def test_serialised_pulls_go_one_at_a_time_in_order_of_arrival() -> None:
    runtime = FakeRuntime()
    runtime.seconds = 10
    desk = Desk(runtime, serialize=True, max_parallel=None)
    tasks = [desk.start(f"image-{n}", f"pod-{n}") for n in range(5)]
    await asyncio.sleep(11)
    assert desk.view() == [
        ("image-1", PullStage.PULLING, 0, ["pod-1"]),
        ("image-2", PullStage.QUEUED, 1, ["pod-2"]),
        ("image-3", PullStage.QUEUED, 2, ["pod-3"]),
        ("image-4", PullStage.QUEUED, 3, ["pod-4"]),
    ]
    assert all(pull.since == pytest.approx(LoopClock().wall() - 11) for pull in desk.runner.active())
    await asyncio.gather(*tasks)
    assert [image for image, _ in runtime.pulls] == [f"image-{n}" for n in range(5)]
    assert runtime.most_running == 1
    assert LoopClock().monotonic() == pytest.approx(50)


async def test_the_cap_holds_and_is_used() -> None:
    runtime = FakeRuntime()
    runtime.seconds = 10
    desk = Desk(runtime, max_parallel=3)
    await asyncio.gather(*(desk.pull(f"image-{n}") for n in range(7)))
    assert runtime.most_running == 3
    assert LoopClock().monotonic() == pytest.approx(30)


async def test_the_rate_makes_pulls_wait_never_fail() -> None:
    runtime = FakeRuntime()
    desk = Desk(runtime, qps=2.0, burst=2)
    results = await asyncio.gather(*(desk.pull(f"image-{n}") for n in range(6)))
    assert {type(result) for result in results} == {PullDone}
    assert LoopClock().monotonic() == pytest.approx(2.0, abs=0.01)


async def test_each_further_attempt_counts_for_the_rate() -> None:
    runtime = FakeRuntime()
    runtime.passwords["a"] = "pw-third"
    desk = Desk(runtime, qps=1.0, burst=1)
    assert isinstance(await desk.pull("a", "web", "first", "second", "third"), PullDone)
    assert [user for _, user in runtime.pulls] == ["first", "second", "third"]
    assert LoopClock().monotonic() == pytest.approx(2.0, abs=0.01)


async def test_all_attempts_failed() -> None:
    runtime = FakeRuntime()
    runtime.passwords["a"] = "secret"
    failed = await Desk(runtime).pull("a", "web", "first", "second")
    assert failed == PullFailed("failed to authorize a: 401 Unauthorized", False)


async def test_a_failed_pull_gives_its_place_to_the_next() -> None:
    runtime = FakeRuntime()
    runtime.failures["a"] = CriError(CriCode.NOT_FOUND, "no such image", "PullImage")
    desk = Desk(runtime, serialize=True)
    bad, good = await asyncio.gather(desk.pull("a"), desk.pull("b"))
    assert bad == PullFailed("rpc error: code = NotFound desc = no such image", False)
    assert isinstance(good, PullDone)


async def test_a_runtime_that_is_away_is_distinguished() -> None:
    runtime = FakeRuntime()
    runtime.failures["a"] = CriError(CriCode.UNAVAILABLE, "connection refused", "PullImage")
    result = await Desk(runtime).pull("a")
    assert isinstance(result, PullFailed)
    assert result.runtime_away


async def test_a_pull_without_waiting_pods_is_cancelled_and_the_next_starts() -> None:
    runtime = FakeRuntime()
    runtime.seconds = 100
    desk = Desk(runtime, serialize=True)
    first, second, third = desk.start("a", "one"), desk.start("a", "two"), desk.start("b", "three")
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.sleep(1)
    assert runtime.cancelled == []
    assert desk.view()[0] == ("a", PullStage.PULLING, 0, ["two"])
    second.cancel()
    await asyncio.sleep(1)
    assert runtime.cancelled == ["a"]
    assert desk.view() == [("b", PullStage.PULLING, 0, ["three"])]
    await third
    assert LoopClock().monotonic() == pytest.approx(102)


async def test_a_queued_pull_that_is_given_up_never_reaches_the_runtime() -> None:
    runtime = FakeRuntime()
    runtime.seconds = 10
    desk = Desk(runtime, serialize=True)
    first, second = desk.start("a"), desk.start("b")
    await asyncio.sleep(1)
    second.cancel()
    await first
    await asyncio.sleep(1)
    assert runtime.pulls == [("a", "")]


async def test_who_comes_right_after_a_cancellation_gets_a_new_pull() -> None:
    runtime = FakeRuntime()
    runtime.seconds = 10
    desk = Desk(runtime)
    first = desk.start("a")
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.sleep(0)
    assert isinstance(await desk.pull("a"), PullDone)
    assert len(runtime.pulls) == 2


async def test_stopping_cancels_all_pulls() -> None:
    runtime = FakeRuntime()
    runtime.seconds = 1000
    desk = Desk(runtime)
    tasks = [desk.start("a"), desk.start("b")]
    await asyncio.sleep(1)
    await desk.runner.stop()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(runtime.cancelled) == ["a", "b"]
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)


def line(limit: int | None = None, rate: float = 0.0, burst: int = 1) -> PullQueue:
    return PullQueue(limit, TokenBucket(rate, burst))


def join(to: PullQueue, *tickets: int) -> None:
    for ticket in tickets:
        to.join(ticket, ticket)


def test_without_limits_all_go_at_once() -> None:
    free = line()
    join(free, 1, 2, 3)
    assert free.admit(0.0) == ([1, 2, 3], None)


def test_a_cap_admits_in_order_of_arrival_as_others_leave() -> None:
    capped = line(limit=2)
    join(capped, 1, 2, 3, 4)
    assert capped.admit(0.0) == ([1, 2], None)
    assert [capped.position(t) for t in (1, 2, 3, 4)] == [0, 0, 1, 2]
    capped.leave(2)
    assert capped.admit(1.0) == ([3], None)
    assert capped.position(4) == 1


def test_who_asked_first_overtakes_who_came_to_the_line_first() -> None:
    single = line(limit=1)
    join(single, 1, 3)
    single.admit(0.0)
    join(single, 2)
    assert [single.position(t) for t in (2, 3)] == [1, 2]
    single.leave(1)
    assert single.admit(0.0) == ([2], None)


def test_one_who_gives_up_frees_its_place_in_the_queue() -> None:
    single = line(limit=1)
    join(single, 1, 2, 3)
    single.admit(0.0)
    single.leave(2)
    single.leave(1)
    assert single.admit(0.0) == ([3], None)


def test_the_rate_makes_pulls_wait_for_a_known_time() -> None:
    slow = line(rate=2.0, burst=2)
    join(slow, 1, 2, 3, 4)
    assert slow.admit(0.0) == ([1, 2], 0.5)
    assert slow.admit(0.25) == ([], 0.25)
    assert slow.admit(0.5) == ([3], 0.5)
    assert slow.admit(1.0) == ([4], None)


def test_saved_tokens_are_limited_by_the_burst() -> None:
    slow = line(rate=1.0, burst=2)
    join(slow, 1, 2, 3)
    assert slow.admit(1000.0)[0] == [1, 2]


@given(
    limit=st.one_of(st.none(), st.integers(1, 3)),
    rate=st.sampled_from([0.0, 0.5, 3.0]),
    burst=st.integers(0, 4),
    steps=st.lists(st.sampled_from(["join", "leave", "tick"]), max_size=60),
)
def test_order_cap_and_rate_always_hold(limit: int | None, rate: float, burst: int, steps: list[str]) -> None:
    under_test = PullQueue(limit, TokenBucket(rate, burst))
    now, made = 0.0, 0
    running: list[int] = []
    admitted: list[int] = []
    for step in steps:
        if step == "join":
            made += 1
            under_test.join(made, made)
        elif step == "leave" and running:
            under_test.leave(running.pop(0))
        else:
            now += 0.3
        got, wait_s = under_test.admit(now)
        running += got
        admitted += got
        assert wait_s is None or wait_s > 0
        assert limit is None or len(running) <= limit
        if rate:
            assert len(admitted) <= max(1, burst) + rate * now + 1e-6
        if limit is None and not rate:
            assert len(admitted) == made
    assert admitted == sorted(admitted)


def test_no_pull_waits_for_ever() -> None:
    slow = line(limit=1, rate=0.1)
    join(slow, *range(5))
    now, served = 0.0, []
    for _ in range(100):
        got, wait_s = slow.admit(now)
        served += got
        for ticket in got:
            slow.leave(ticket)
        now += wait_s or 0.0
    assert served == [0, 1, 2, 3, 4]
    assert now == pytest.approx(40.0)
