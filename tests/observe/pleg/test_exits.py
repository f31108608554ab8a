"""Exits of containers and sandboxes as the PLEG sees them: events before statuses, statuses that lag, and stops by the agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from observe.pleg.stand import EXITED, RUNNING, FedHints, pods, ref, run_pleg

from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import (
    ContainerEnd,
    ObservedState,
    PodReadWanted,
    Removed,
    StopInProgress,
)
from pykubelet.edges.cri.events import HintKind
from pykubelet.observe.pleg.decide import RelistPeriods
from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.fake_handles import RuntimeFault

pytestmark = pytest.mark.virtual_time

STREAMS = [
    pytest.param(FakeFeatures(cri_events=False), id="containerd events"),
    pytest.param(FakeFeatures(cri_events=True), id="CRI events"),
]


@pytest.mark.parametrize("lag_s", [0.04, 0.7])
async def test_a_status_that_lags_behind_the_event_is_read_again(tmp_path: Path, lag_s: float) -> None:
    """Also far behind, as on a machine whose disk is busy."""
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints, before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        container = stand.fake.container("app")
        hints.say(HintKind.STOPPED, container.id)
        await asyncio.sleep(lag_s)
        assert stand.view("web").newest("app").state is RUNNING  # type: ignore[union-attr]
        stand.fake.state.end(container, 1)
        await stand.wait_state("web", "app", EXITED)


async def test_a_pending_exit_is_published_before_the_runtime_shows_it(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints, before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        container = stand.fake.container("app")
        end = ContainerEnd(ContainerID(container.id), 3, 1_700_000_000_000_000_000)
        hints.say(HintKind.STOPPED, container.id, end=end)
        view = (await stand.wait(lambda now: bool(now.pods[ref("web").uid].pending_exits))).pods[ref("web").uid]
        app, exited = view.newest("app"), view.with_pending_exits().newest("app")
        assert app is not None and app.state is RUNNING
        assert exited is not None and (exited.state, exited.exit_code, exited.reason) == (EXITED, 3, "Error")
        assert exited.finished_at == end.finished_at
        stand.touch("web")  # a read that still shows it running does not drop the pending exit
        read = await stand.wait(lambda now: now.pods[ref("web").uid].read_at > view.read_at)
        assert read.pods[ref("web").uid].pending_exits == (end,)
        stand.fake.state.end(container, 3)
        assert not (await stand.wait_state("web", "app", EXITED)).pending_exits


async def test_an_oom_kill_that_the_runtime_notes_after_the_exit_is_seen(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints, before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        container = stand.fake.container("app")
        stand.fake.state.end(container, 137)
        hints.say(HintKind.STOPPED, container.id)
        await stand.wait_state("web", "app", EXITED)
        hints.say(HintKind.OOM, container.id)
        await asyncio.sleep(0.05)
        stand.touch("web")  # as the next container is started
        container.reason = "OOMKilled"
        await stand.wait(lambda now: now.pods[ref("web").uid].newest("app").reason == "OOMKilled")  # type: ignore[union-attr]
        stand.touch("web")
        await stand.wait(lambda now: now.pods[ref("web").uid].newest("app").reason == "OOMKilled")  # type: ignore[union-attr]


@pytest.mark.parametrize("is_known", [True, False])
async def test_exit_code_0_after_memory_ran_out_is_not_acted_on_before_the_status(
    tmp_path: Path, is_known: bool
) -> None:
    """Only the status shows whether the container counts as OOM-killed, which is a failure for an init container."""
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints) as stand:
        await stand.listed()
        container = stand.start(stand.make_pod("web"), "app")
        end = ContainerEnd(ContainerID(container.id), 0, 1_700_000_000_000_000_000)
        if is_known:
            stand.touch("web")
            await stand.wait_state("web", "app", RUNNING)
        hints.say(HintKind.OOM, container.id)
        hints.say(HintKind.STOPPED, container.id, end=end)
        await asyncio.sleep(0.02)
        stand.touch("web")
        await stand.wait_state("web", "app", RUNNING)
        stand.fake.state.end(container, 0, "OOMKilled")
        await stand.wait_state("web", "app", EXITED)
        views = [seen.pods[ref("web").uid] for seen in stand.published if ref("web").uid in seen.pods]
        assert not any(view.pending_exits for view in views)


async def test_an_exit_before_the_first_read_of_a_container_is_in_that_read(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints) as stand:
        await stand.listed()
        container = stand.start(stand.make_pod("web"), "app")
        hints.say(
            HintKind.STOPPED, container.id, end=ContainerEnd(ContainerID(container.id), 1, 1_700_000_000_000_000_000)
        )
        await asyncio.sleep(0.02)
        stand.touch("web")
        view = await stand.wait_state("web", "app", RUNNING)
        assert [end.id for end in view.pending_exits] == [container.id]


async def test_what_is_being_stopped_is_read_once_when_the_runtime_has_answered(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints, before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        container = stand.fake.container("app")
        before = len(stand.fake.calls)
        stand.mailbox.post(StopInProgress(ref("web"), container.id))
        await asyncio.sleep(0)
        hints.say(HintKind.STOPPED, container.id)
        hints.say(HintKind.REAPED, container.id)
        await asyncio.sleep(0.2)
        assert len(stand.fake.calls) == before
        stand.fake.state.end(container, 1)
        stand.mailbox.post(StopInProgress(ref("web"), container.id, is_over=True))
        await stand.wait_state("web", "app", EXITED)
        await asyncio.sleep(0.2)
        assert len(stand.fake.calls) == before + 1


async def test_the_exit_is_not_read_when_the_container_is_removed_next(tmp_path: Path) -> None:
    feed = FedHints()
    async with run_pleg(tmp_path, hints=feed, before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        container = stand.fake.container("app")
        calls = len(stand.fake.called("ContainerStatus"))
        stand.mailbox.post(StopInProgress(ref("web"), container.id))
        stand.fake.state.end(container, 0)
        stand.mailbox.post(StopInProgress(ref("web"), container.id, is_over=True, for_good=True))
        await asyncio.sleep(0.1)
        assert len(stand.fake.called("ContainerStatus")) == calls
        stand.mailbox.post(PodReadWanted(ref("web"), "removed", answer=Removed(stand.clock.monotonic())))
        await stand.wait(lambda now: now.pods[ref("web").uid].is_gone)


async def test_the_end_of_what_is_being_stopped_is_seen_also_when_that_call_hangs(tmp_path: Path) -> None:
    hints = FedHints()
    periods = RelistPeriods(300.0, 300.0, first_s=300.0, stopper_s=0.3)
    async with run_pleg(tmp_path, hints=hints, periods=periods, before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        container = stand.fake.container("app")
        stand.mailbox.post(StopInProgress(ref("web"), container.id))
        await asyncio.sleep(0)
        hints.say(HintKind.STOPPED, container.id)
        stand.fake.state.end(container, 1)
        await stand.wait_state("web", "app", EXITED)


async def test_an_exit_is_not_missed_while_the_start_is_still_being_read(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints) as stand:
        await stand.listed()
        container = stand.create(stand.make_pod("web"), "app")
        stand.touch("web")
        await stand.wait_state("web", "app", ObservedState.CREATED)
        stand.fake.state.start(container)
        slow = stand.fake.inject(RuntimeFault("ContainerStatus", pod="web", delay_s=0.06, after=True))
        hints.say(HintKind.STARTED, container.id)
        await asyncio.sleep(0.02)
        stand.fake.withdraw(slow)
        hints.say(HintKind.STOPPED, container.id)
        stand.fake.state.end(container, 1)
        await stand.wait_state("web", "app", EXITED)


async def test_the_end_of_a_container_not_seen_before_is_kept_until_it_is(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints) as stand:
        await stand.listed()
        container = stand.start(stand.make_pod("web"), "app")
        hints.say(HintKind.STOPPED, container.id)
        await asyncio.sleep(0.02)
        stand.touch("web")
        await stand.wait_state("web", "app", RUNNING)
        stand.fake.state.end(container, 1)
        await stand.wait_state("web", "app", EXITED)


@pytest.mark.parametrize("after_s", [0.25, 0.29])
async def test_an_exit_hint_just_before_other_unknown_ids_lead_to_a_relist_is_kept_too(
    tmp_path: Path, after_s: float
) -> None:
    hints = FedHints()
    async with run_pleg(
        tmp_path, hints=hints, periods=RelistPeriods(300.0, 300.0, first_s=300.0, unknown_s=0.3)
    ) as stand:
        await stand.listed()
        hints.say(HintKind.STARTED, "of-another")
        await asyncio.sleep(after_s)
        container = stand.start(stand.make_pod("web"), "app")
        hints.say(HintKind.STOPPED, container.id)
        await asyncio.sleep(0.1)
        stand.touch("web")
        await stand.wait_state("web", "app", RUNNING)
        await asyncio.sleep(0.3)
        stand.fake.state.end(container, 1)
        await stand.wait_state("web", "app", EXITED)
