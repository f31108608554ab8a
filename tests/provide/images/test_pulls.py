"""The running of pulls in virtual time: sharing, order, limits, cancellation."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from provide.images.stand import FakeRuntime, LoopClock, pod

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.provide.images.keyring import Auth, Credential
from pykubelet.provide.images.model import ImageSettings, PullStage, WaitingPod
from pykubelet.provide.images.pulls import PullDone, PullFailed, PullOrder, PullRunner
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

    async def pull(self, image: str, name: str = "web", *users: str) -> PullDone | PullFailed:
        credentials = tuple(Credential(Auth(user, f"pw-{user}")) for user in users)
        order = PullOrder(pb.ImageSpec(image=image), tuple(c.auth for c in credentials), next(self.arrivals))
        return await self.runner.run(order, WaitingPod(pod(name), "main", LoopClock().wall()), credentials)

    def start(self, image: str, name: str = "web", *users: str) -> asyncio.Task[PullDone | PullFailed]:
        return self.tasks.start_child(f"{name} {image}", self.pull(image, name, *users))

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
