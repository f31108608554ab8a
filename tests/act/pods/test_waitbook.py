"""What a pod waits for, from its state: names, owners, reasons, and what comes next when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from act.pods.playbook import RULES, Playbook
from act.pods.scenes import WALL, box, container, created, exited, pod, probes, running
from support.virtual_time import virtual_clock

from pykubelet.act.pods.waitbook import SHOW_AFTER_S, LifecycleChanged, WaitBook, general_wait, waits_of
from pykubelet.base.kit.cells import Mailbox, Sink, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import KillReason
from pykubelet.base.model.probes import ProbeResult
from pykubelet.base.model.waits import Owner, Wait

T = TypeVar("T")
pytestmark = pytest.mark.virtual_time


def waits_now(play: Playbook) -> list[Wait]:
    return waits_of(play.state, RULES.crash, play.now, play.wall)


def in_general(play: Playbook) -> str:
    wait = general_wait(play.state, play.wall)
    assert wait is None or (wait.owner and wait.next_step)
    return wait.what if wait is not None else ""


def test_before_the_first_read_the_runtime_is_waited_for() -> None:
    (wait,) = waits_now(Playbook(pod()))
    assert (wait.what, wait.owner, wait.next_step) == ("container runtime", Owner.PLEG, "list them")


def test_a_crash_loop_shows_how_the_container_ended_and_when_it_goes_on() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended("app")
    play.sees(box(), exited(code=1, ended=WALL))
    play.sync_ended("app")
    play.passes(2)
    ended = replace(exited(code=137, attempt=1, ended=play.wall), reason="OOMKilled")
    play.sees(box(), exited(code=1), ended)
    play.passes(4)
    (wait,) = waits_now(play)
    assert (wait.what, wait.subject, wait.reason) == ("container start", "app", "CrashLoopBackOff")
    assert wait.detail.endswith("; it ended with 137 (OOMKilled)")
    assert wait.next_step == "start again"
    assert wait.next_at == pytest.approx(play.wall + 6)
    play.passes(7)
    play.sees(box(), exited(code=1), ended)
    play.passes(3)
    (wait,) = waits_now(play)
    assert (wait.next_step, wait.next_at) == ("being started again", None), "not at a time that is past"


def crashing(play: Playbook, times: int, delay_s: float = 2) -> None:
    """Container `app` starts and ends as often, and has waited for its back-off before it starts each time."""
    for attempt in range(times):
        play.sync_ended("app")
        play.passes(delay_s)
        play.sees(box(), exited(code=1, attempt=attempt, ended=play.wall))
        while play.state.work == "none":
            play.passes(1)
            play.wakes()


def in_back_off(play: Playbook) -> None:
    crashing(play, 3)
    play.sync_ended("app")
    play.sees(box(), exited(code=1, attempt=3, ended=play.wall))


def refused_by_the_runtime(play: Playbook) -> None:
    crashing(play, 3)
    play.start_refused(3)
    play.sees(box(), exited(code=128, attempt=3, ended=play.wall))


def created_and_not_started(play: Playbook) -> None:
    """The pause after the failed start is shorter than the back-off that this start has raised."""
    crashing(play, 3)
    play.start_refused(3)
    play.sees(box(), created(attempt=3), exited(code=1, attempt=2, ended=play.wall - 20))


def not_created_after_a_long_run(play: Playbook) -> None:
    """The long run has ended the series of crashes: only the failed start is waited for."""
    crashing(play, 4)
    play.sync_ended("app")
    play.passes(700)
    ended = exited(code=1, attempt=4, ended=play.wall)
    play.sees(box(), ended)
    play.sync_ended(app="CreateContainerError")
    play.sees(box(), ended)


def not_created_with_a_new_image(play: Playbook) -> None:
    """The back-off of the container with the old image does not count."""
    in_back_off(play)
    play.spec_changed(pod(container("app", image="busybox:2")))
    play.sync_ended(app="CreateContainerError")
    play.sees(box(), exited(code=1, attempt=3, ended=play.wall))


@pytest.mark.parametrize(
    "happens",
    [
        in_back_off,
        refused_by_the_runtime,
        created_and_not_started,
        not_created_after_a_long_run,
        not_created_with_a_new_image,
    ],
    ids=lambda happens: happens.__name__,
)
def test_a_container_starts_at_the_time_that_is_shown(happens: Callable[[Playbook], None]) -> None:
    play = Playbook(pod())
    play.sees()
    happens(play)
    (wait,) = waits_now(play)
    assert wait.next_at is not None
    play.passes(wait.next_at - play.wall - 0.01)
    assert not any("start app" in word for word in play.wakes()), "not before"
    play.passes(0.02)
    assert play.wakes() == ["sync: start app"]


def test_an_init_container_that_was_oom_killed_and_exits_with_0_waits_in_back_off() -> None:
    play = Playbook(pod(init=(container("eater"),), restart="OnFailure"))
    play.sees()
    play.sync_ended("eater")
    play.sees(box(), exited("eater", ended=play.wall, reason="OOMKilled"))
    play.sync_ended("eater")
    play.passes(2)
    ended = exited("eater", attempt=1, ended=play.wall, reason="OOMKilled")
    play.sees(box(), ended)
    play.sees(box(), ended)
    (wait,) = waits_now(play)
    assert (wait.subject, wait.reason) == ("eater", "CrashLoopBackOff")
    assert wait.detail.endswith("; it ended with 0 (OOMKilled)")


def test_a_container_that_a_probe_gave_up_reports_it_while_it_is_held_back() -> None:
    play = Playbook(pod(container(livenessProbe={"exec": {"command": ["true"]}})))
    play.sees()
    play.sync_ended("app")
    play.sees(box(), exited(code=1, ended=WALL))
    play.sync_ended("app")
    play.passes(1)
    play.sees(box(), exited(code=1), running(attempt=1))
    assert play.probes_changed(probes(liveness_app_1=ProbeResult.FAILURE))[-1].startswith("sync: kill app-1 (liveness)")
    play.sync_ended()
    play.passes(1)
    play.sees(box(), exited(code=1), exited(code=143, attempt=1, ended=play.wall))
    (wait,) = waits_now(play)
    assert wait.detail.endswith("; it ended with 143 (Error), killed: its liveness probe failed")
    play.sees(box(), exited(code=1))
    assert play.state.killed == {}, "forgotten with the instance"


def test_a_container_that_could_not_be_started_reports_why_while_it_is_held_back() -> None:
    play = Playbook(pod())
    play.sees()
    for attempt in (0, 1):
        play.start_refused(attempt)
        refused = exited(code=128, attempt=attempt, ended=play.wall, reason="StartError")
        play.sees(box(), replace(refused, message="exec: not found"))
    (wait,) = waits_now(play)
    assert wait.reason == "CrashLoopBackOff"
    assert wait.detail.endswith("; it ended with 128 (StartError): exec: not found")


def test_a_container_whose_hook_failed_reports_it_while_it_is_held_back() -> None:
    play = Playbook(pod())
    play.sees()
    for attempt in (0, 1):
        play.hook_failed(attempt)
        play.sees(box(), exited(code=137, attempt=attempt, ended=play.wall))
    (wait,) = waits_now(play)
    assert wait.reason == "CrashLoopBackOff"
    assert wait.detail.endswith("; it ended with 137 (Error), killed: the hook failed")


def test_a_sandbox_that_cannot_be_made_is_reported_during_the_next_try_too() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(pod_error="CreatePodSandboxError")
    (wait,) = waits_now(play)
    assert (wait.what, wait.reason, wait.detail, wait.next_step) == (
        "sandbox",
        "CreatePodSandboxError",
        "no",
        "try again",
    )
    assert wait.next_at == pytest.approx(play.wall + 1)
    play.passes(2)
    play.sees()
    assert play.wakes() == [] or play.state.work != "none"
    (wait,) = waits_now(play)
    assert (wait.what, wait.reason, wait.next_step, wait.next_at) == (
        "sandbox",
        "CreatePodSandboxError",
        "being tried again",
        None,
    )


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("FailedCreatePodContainer", "pod cgroup"),
        ("KillContainerError", "containers to end"),
        ("InternalError", "retry"),
    ],
)
def test_what_fails_for_the_whole_pod_has_a_name(reason: str, what: str) -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(pod_error=reason)
    assert [(wait.what, wait.reason) for wait in waits_now(play)] == [(what, reason)]


def test_an_end_that_fails_reports_what_is_tried_again() -> None:
    play = Playbook(pod())
    play.runs(box(), running())
    play.killed(KillReason.REMOVED)
    assert in_general(play) == "containers to end"
    play.stop_ended("it does not end")
    assert [(w.what, w.reason, w.detail) for w in waits_now(play)] == [
        ("containers to end", "FailedKillPod", "it does not end")
    ]
    play.passes(1)
    play.wakes()
    play.stop_ended()
    assert in_general(play) == "clean-up"
    play.clean_ended("busy")
    assert [(w.what, w.reason, w.detail) for w in waits_now(play)] == [("clean-up", "FailedCleanUp", "busy")]


def test_work_and_reads_are_waited_for_in_general() -> None:
    play = Playbook(pod())
    play.sees()
    assert in_general(play) == "sync"
    play.sync_ended("app")
    assert in_general(play) == "container runtime", "what was done is to be seen first"
    play.passes(0.1)
    play.sees(box(), running())
    assert in_general(play) == ""


async def test_short_waits_are_not_shown_and_long_ones_keep_their_beginning() -> None:
    clock, changes = ManualClock(wall=WALL), Sink[object]()
    book = WaitBook(clock, changes)
    play = Playbook(pod(), now=clock.monotonic())
    play.sees()
    assert not book.follow(play.state, RULES.crash)
    assert book.snapshot() == ()
    clock.advance(SHOW_AFTER_S)
    (wait,) = book.snapshot()
    assert (wait.what, wait.since) == ("sync", WALL)
    clock.advance(5)
    assert not book.follow(play.state, RULES.crash)
    assert book.snapshot() == (wait,)
    play.now = clock.monotonic()
    play.sync_ended(pod_error="CreatePodSandboxError")
    assert book.follow(play.state, RULES.crash)
    (failed,) = book.snapshot()
    clock.advance(30)
    assert book.follow(play.state, RULES.crash)
    (still,) = book.snapshot()
    assert (still.since, still.reason) == (failed.since, "CreatePodSandboxError")
    assert changes.events == []


async def test_the_work_under_way_is_shown_when_it_has_taken_a_while_and_no_longer_than_it_takes() -> None:
    book, play = WaitBook(virtual_clock(), Sink()), Playbook(pod())
    book.follow(play.state, RULES.crash)

    def shown() -> list[str]:
        return [wait.what for wait in book.snapshot()]

    with book.waiting(Wait("sandbox", Owner.CONTAINER, 0.0)):
        await asyncio.sleep(SHOW_AFTER_S / 2)
        assert "sandbox" not in shown()
        await asyncio.sleep(SHOW_AFTER_S / 2)
        assert "sandbox" in shown()
    assert "sandbox" not in shown()


async def test_the_lifecycle_is_published_again_only_for_a_failure_that_lasts() -> None:
    changes: Mailbox[LifecycleChanged] = Mailbox("waits")
    book, play = WaitBook(virtual_clock(), changes), Playbook(pod())
    play.sees()
    failure = Wait("volumes", Owner.VOLUME_MANAGER, 0.0, reason="FailedMount")

    async def is_failing() -> bool:
        async with asyncio.timeout(1):
            assert len(await changes.get_all()) == 1
        return book.follow(play.state, RULES.crash)

    with book.waiting(Wait("volumes", Owner.VOLUME_MANAGER, 0.0)):
        await asyncio.sleep(10)
    assert not book.follow(play.state, RULES.crash) and changes.take_all() == []
    with book.waiting(failure):
        await asyncio.sleep(SHOW_AFTER_S / 3)
    with book.waiting(failure):
        assert not await is_failing(), "this one has just begun"
        assert await is_failing()
    with book.waiting(failure):
        assert await is_failing(), "the next try fails alike"
    assert not await is_failing()
    book.close()


async def test_a_wait_for_a_cell_shows_what_is_missing_now_and_since_when_anything_is() -> None:
    book, play = WaitBook(virtual_clock(), Sink()), Playbook(pod())
    book.follow(play.state, RULES.crash)
    cell, writer = make_cell("left", 2)
    began: set[float] = set()

    def missing(left: int) -> Wait | None:
        return Wait("claims", Owner.CLAIM_MANAGER, 0.0, detail=f"{left} are left") if left else None

    async with Supervisor("test") as supervisor:
        waiting = supervisor.start_child("waiting", book.until(cell, missing))
        for left in (2, 1):
            writer.publish(left)
            await asyncio.sleep(SHOW_AFTER_S)
            (wait,) = [wait for wait in book.snapshot() if wait.what == "claims"]
            assert wait.detail == f"{left} are left"
            began.add(wait.since)
        writer.publish(0)
        await waiting
        assert all(wait.what != "claims" for wait in book.snapshot())
    assert len(began) == 1
    await book.until(cell, missing)  # nothing is missing


async def test_a_wait_for_a_cell_can_be_interrupted() -> None:
    book, play = WaitBook(virtual_clock(), Sink()), Playbook(pod())
    book.follow(play.state, RULES.crash)
    cell, _ = make_cell("left", 1)

    async def at_most_a_second(work: Awaitable[T]) -> T:
        async with asyncio.timeout(1):
            return await work

    with pytest.raises(TimeoutError):
        await book.until(cell, lambda _: Wait("claims", Owner.CLAIM_MANAGER, 0.0), at_most_a_second)
    assert all(wait.what != "claims" for wait in book.snapshot())
