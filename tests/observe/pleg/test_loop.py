"""The PLEG: sees a change at once with an event, soon without one, and never takes an old read for a new one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from observe.pleg.stand import EXITED, NO_EVENTS, RUNNING, FedHints, Stand, pods, ref, run_pleg

from pykubelet.base.model.ids import ContainerID, SandboxID
from pykubelet.base.model.observed import (
    ObservedState,
    PodReadWanted,
    PodView,
    Removed,
    Started,
    Stopped,
)
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.events import HintKind
from pykubelet.observe.pleg.decide import RelistPeriods
from pykubelet.observe.pleg.exits import READS_OF_POD
from pykubelet.observe.pleg.loop import LAST_SEEN, READ_DURATIONS, SUBSCRIPTIONS
from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.fake_handles import RuntimeFault

pytestmark = pytest.mark.virtual_time

STREAMS = [
    pytest.param(FakeFeatures(cri_events=False), id="containerd events"),
    pytest.param(FakeFeatures(cri_events=True), id="CRI events"),
]


# The first relist


async def test_the_first_relist_shows_what_is_there(tmp_path: Path) -> None:
    def before(stand: Stand) -> None:
        stand.make_pod("web", "app", "mesh")
        stand.fake.state.end(stand.start(stand.make_pod("job"), "work"), 3)

    async with run_pleg(tmp_path, before=before) as stand:
        assert stand.cell.get().listed_at is None, "before that it is not known"
        observed = await stand.listed()
        assert set(observed.pods) == {ref("web").uid, ref("job").uid}
        web, job = observed.pods[ref("web").uid], observed.pods[ref("job").uid]
        assert web.ref == ref("web")
        assert [c.name for c in web.running] == ["mesh", "app"], "newest first"
        assert web.sandboxes[0].ready
        assert web.sandboxes[0].ips[0].startswith("10.88.")
        work = job.newest("work")
        assert work is not None
        assert (work.state, work.exit_code, work.reason) == (EXITED, 3, "Error")
        assert not observed.unread


async def test_metrics_show_that_it_is_active(tmp_path: Path) -> None:
    def with_web(stand: Stand) -> None:
        stand.make_pod("web", "app")

    subscribed, read = SUBSCRIPTIONS.value(), READ_DURATIONS.count()
    async with run_pleg(tmp_path, before=with_web) as stand:
        await stand.wait(lambda observed: ref("web").uid in observed.pods and SUBSCRIPTIONS.value() > subscribed)
        assert LAST_SEEN.value() > 0
        assert READ_DURATIONS.count() > read


async def test_an_empty_runtime_is_an_answer_too(tmp_path: Path) -> None:
    async with run_pleg(tmp_path) as stand:
        assert (await stand.listed()).pods == {}


async def test_a_runtime_that_comes_late_is_seen_when_it_comes(tmp_path: Path) -> None:
    async with run_pleg(tmp_path) as stand:
        await stand.listed()
        stand.fake.stop()
        stand.make_pod("web", "app")
        await asyncio.sleep(0.2)
        stand.fake.start()
        await stand.wait_state("web", "app", RUNNING)


async def test_what_no_agent_made_is_left_out(tmp_path: Path) -> None:
    def before(stand: Stand) -> None:
        meta = pb.PodSandboxMetadata(name="foreign", uid="x", namespace="moby")
        stand.fake.state.run_sandbox(pb.PodSandboxConfig(metadata=meta), "")

    async with run_pleg(tmp_path, before=before) as stand:
        assert (await stand.listed()).pods == {}


# Events


@pytest.mark.parametrize("features", STREAMS)
async def test_an_exit_is_seen_within_a_moment(features: FakeFeatures, tmp_path: Path) -> None:
    async with run_pleg(tmp_path, features=features) as stand:
        await stand.followed()
        container = stand.start(stand.make_pod("web"), "app")
        await stand.wait_state("web", "app", RUNNING)
        stand.fake.state.end(container, 7)
        view = await stand.wait_state("web", "app", EXITED)  # long before the next relist
        assert view.containers[0].exit_code == 7


@pytest.mark.parametrize("features", STREAMS)
async def test_a_sandbox_that_dies_is_seen(features: FakeFeatures, tmp_path: Path) -> None:
    async with run_pleg(tmp_path, features=features, before=lambda stand: pods(stand, "web")) as stand:
        view = (await stand.followed()).pods[ref("web").uid]
        address = view.sandboxes[0].ips
        stand.fake.state.stop_sandbox(next(iter(stand.fake.state.sandboxes.values())))
        observed = await stand.wait(lambda now: not now.pods[ref("web").uid].is_alive)
        assert observed.pods[ref("web").uid].sandboxes[0].ips == address, "the last address is kept"


async def test_ids_of_others_cost_one_relist_and_are_forgotten(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(
        tmp_path, hints=hints, periods=RelistPeriods(300.0, 300.0, first_s=300.0, unknown_s=0.5)
    ) as stand:
        await stand.followed()
        before = len(stand.fake.called("ListContainers"))
        for number in range(3):
            hints.say(HintKind.STARTED, f"of-another-{number}")
        await stand.until("reading", lambda: len(stand.fake.called("ListContainers")) > before)
        await asyncio.sleep(0.8)
        assert len(stand.fake.called("ListContainers")) == before + 1


async def test_an_unknown_id_leads_to_a_relist(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints) as stand:
        await stand.listed()
        sandbox = stand.make_pod("web")
        hints.say(HintKind.STARTED, sandbox.id)
        await stand.wait(lambda now: ref("web").uid in now.pods)


async def test_events_of_containers_known_to_run_cost_no_call(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints, before=lambda stand: pods(stand, "web")) as stand:
        await stand.followed()
        before = len(stand.fake.calls)
        for _ in range(3):
            hints.say(HintKind.STARTED, stand.fake.container("app").id)
        await asyncio.sleep(0.1)
        assert len(stand.fake.calls) == before


async def test_an_idle_node_makes_no_calls(tmp_path: Path) -> None:
    async with run_pleg(tmp_path, before=lambda stand: pods(stand, "a", "b", "c")) as stand:
        await stand.followed()
        before = len(stand.fake.calls)
        await asyncio.sleep(290.0)
        assert len(stand.fake.calls) == before


# The stream is lost


async def test_after_a_lost_stream_it_subscribes_again_and_relists(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(tmp_path, hints=hints, before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        stand.fake.state.end(stand.fake.container("app"), 1)  # without an event
        hints.lose()
        await stand.wait_state("web", "app", EXITED)
        await stand.until("subscribed again", lambda: hints.subscriptions == 2)


async def test_an_end_whose_event_came_before_the_subscription_is_seen_a_moment_later(tmp_path: Path) -> None:
    hints = FedHints()
    periods = RelistPeriods(with_events_s=300.0, without_events_s=300.0)
    async with run_pleg(tmp_path, periods, hints=hints, before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        stand.fake.state.end(stand.fake.container("app"), 1)  # the status of the runtime lags behind its event
        await stand.wait_state("web", "app", EXITED)


@pytest.mark.parametrize("features", STREAMS)
async def test_what_happens_while_the_runtime_restarts_is_seen_afterwards(
    features: FakeFeatures, tmp_path: Path
) -> None:
    async with run_pleg(tmp_path, features=features, before=lambda stand: pods(stand, "web", "gone")) as stand:
        await stand.followed()
        stand.fake.stop()
        stand.fake.state.end(stand.fake.container("app", "web"), 1)
        sandbox = stand.fake.container("app", "gone").sandbox
        stand.fake.state.remove_sandbox(sandbox)
        await asyncio.sleep(0.1)
        assert stand.view("web") is not None, "a runtime that is away has not lost its pods"
        stand.fake.start()
        await stand.wait_state("web", "app", EXITED)
        await stand.wait(lambda now: ref("gone").uid not in now.pods or now.pods[ref("gone").uid].is_gone)
        stand.start(stand.make_pod("new"), "app")
        await stand.wait_state("new", "app", RUNNING)


# Without events


async def test_without_events_it_relists_periodically(tmp_path: Path) -> None:
    periods = RelistPeriods(with_events_s=300.0, without_events_s=0.05)
    async with run_pleg(tmp_path, periods, NO_EVENTS, before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        stand.fake.state.end(stand.fake.container("app"), 1)
        await stand.wait_state("web", "app", EXITED)
        stand.make_pod("new", "app")
        await stand.wait_state("new", "app", RUNNING)


async def test_a_relist_reads_only_the_statuses_that_changed(tmp_path: Path) -> None:
    periods = RelistPeriods(with_events_s=300.0, without_events_s=0.05)
    async with run_pleg(tmp_path, periods, NO_EVENTS, before=lambda stand: pods(stand, "a", "b")) as stand:
        await stand.listed()
        await asyncio.sleep(0.1)
        stand.fake.calls.clear()
        stand.fake.state.end(stand.fake.container("app", "b"), 1)
        await stand.wait_state("b", "app", EXITED)
        await asyncio.sleep(0.15)
        asked = [call.request.container_id for call in stand.fake.called("ContainerStatus")]
        assert asked == [stand.fake.container("app", "b").id]
        assert not stand.fake.called("PodSandboxStatus")


# Pods that go


async def test_a_pod_that_vanished_is_first_shown_empty_and_then_forgotten(tmp_path: Path) -> None:
    periods = RelistPeriods(with_events_s=300.0, without_events_s=0.05)
    async with run_pleg(tmp_path, periods, NO_EVENTS, before=lambda stand: pods(stand, "web", "other")) as stand:
        await stand.listed()
        stand.fake.state.remove_sandbox(stand.fake.container("app", "web").sandbox)
        observed = await stand.wait(lambda now: ref("web").uid not in now.pods)
        assert ref("other").uid in observed.pods
        shown = [now.pods[ref("web").uid].is_gone for now in stand.published if ref("web").uid in now.pods]
        assert shown[-1], "readers get to see that it has gone"


@pytest.mark.parametrize("features", STREAMS)
async def test_a_removed_pod_is_seen_to_be_gone(features: FakeFeatures, tmp_path: Path) -> None:
    async with run_pleg(tmp_path, features=features, before=lambda stand: pods(stand, "web")) as stand:
        await stand.followed()
        stand.fake.state.remove_sandbox(stand.fake.container("app").sandbox)
        stand.touch("web")
        await stand.wait(lambda now: ref("web").uid not in now.pods or now.pods[ref("web").uid].is_gone)


# Touches


async def test_a_touched_pod_is_read_even_when_nothing_changed(tmp_path: Path) -> None:
    async with run_pleg(tmp_path, before=lambda stand: pods(stand, "web")) as stand:
        first = (await stand.listed()).pods[ref("web").uid]
        touched_at = stand.clock.monotonic()
        stand.touch("web")
        observed = await stand.wait(lambda now: now.pods[ref("web").uid].read_at >= touched_at)
        assert observed.pods[ref("web").uid].containers == first.containers


async def test_a_touched_pod_that_the_runtime_does_not_have_is_published_empty(tmp_path: Path) -> None:
    async with run_pleg(tmp_path) as stand:
        await stand.listed()
        stand.touch("never-started")
        observed = await stand.wait(lambda now: ref("never-started").uid in now.pods)
        assert observed.pods[ref("never-started").uid].is_gone


async def test_a_touch_during_a_read_leads_to_another_one(tmp_path: Path) -> None:
    async with run_pleg(tmp_path, hints=FedHints(), before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        slow = stand.fake.inject(RuntimeFault("ListContainers", delay_s=0.1, after=True))
        stand.touch("web")
        await asyncio.sleep(0.03)
        stand.fake.withdraw(slow)
        touched_at = stand.clock.monotonic()
        stand.touch("web")
        await stand.wait(lambda now: now.pods[ref("web").uid].read_at >= touched_at)


async def test_what_was_started_is_asked_for_by_id(tmp_path: Path) -> None:
    async with run_pleg(tmp_path, hints=FedHints()) as stand:
        await stand.listed()
        sandbox = stand.make_pod("web", "init")
        first = stand.fake.container("init")
        stand.mailbox.post(
            PodReadWanted(ref("web"), "test", answer=Started(SandboxID(sandbox.id), (ContainerID(first.id),)))
        )
        before = await stand.wait_state("web", "init", ObservedState.RUNNING)
        second = stand.start(sandbox, "app")
        stand.mailbox.post(
            PodReadWanted(ref("web"), "test", answer=Started(SandboxID(sandbox.id), (ContainerID(second.id),)))
        )
        view = await stand.wait_state("web", "app", ObservedState.RUNNING)
        assert len(stand.fake.called("ListContainers")) == len(stand.fake.called("PodSandboxStatus")) == 1
        assert view.sandboxes == before.sandboxes
        assert view.sandboxes[0].ips
        stand.touch("web")
        listed = await stand.wait(lambda now: now.pods[ref("web").uid].read_at > view.read_at)
        reported = listed.pods[ref("web").uid]
        assert (reported.sandboxes, reported.containers) == (view.sandboxes, view.containers)


@pytest.mark.parametrize("is_read", [True, False])
async def test_the_successor_of_a_stopped_container_is_asked_for_by_id_once_its_end_was_read(
    tmp_path: Path, *, is_read: bool
) -> None:
    async with run_pleg(tmp_path, hints=FedHints(), before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        old = stand.fake.container("app")
        stand.fake.state.end(old, 137)
        if is_read:
            stand.touch("web")
            await stand.wait_state("web", "app", ObservedState.EXITED)
        new = stand.start(old.sandbox, "app", attempt=1)
        lists = len(stand.fake.called("ListContainers"))
        answer = Started(SandboxID(old.sandbox.id), (ContainerID(new.id),), ended=(ContainerID(old.id),))
        stand.mailbox.post(PodReadWanted(ref("web"), "test", answer=answer))
        view = (await stand.wait(lambda now: len(now.pods[ref("web").uid].containers) == 2)).pods[ref("web").uid]
        assert {c.id: c.state for c in view.containers} == {
            old.id: ObservedState.EXITED,
            new.id: ObservedState.RUNNING,
        }
        assert len(stand.fake.called("ListContainers")) - lists == (0 if is_read else 1)


async def test_what_was_started_and_is_gone_already_is_not_shown(tmp_path: Path) -> None:
    async with run_pleg(tmp_path, hints=FedHints(), before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        sandbox = stand.fake.container("app").sandbox
        gone = stand.start(sandbox, "short")
        stand.fake.state.remove(gone)
        touched_at = stand.clock.monotonic()
        stand.mailbox.post(
            PodReadWanted(ref("web"), "test", answer=Started(SandboxID(sandbox.id), (ContainerID(gone.id),)))
        )
        observed = await stand.wait(lambda now: now.pods[ref("web").uid].read_at >= touched_at)
        assert [c.name for c in observed.pods[ref("web").uid].containers] == ["app"]


async def test_a_stopped_pod_is_read_only_when_its_exits_are_not_known(tmp_path: Path) -> None:
    async with run_pleg(tmp_path, hints=FedHints(), before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        app = stand.fake.container("app")
        stand.fake.state.end(app, 0)
        stand.mailbox.post(PodReadWanted(ref("web"), "stopped", answer=Stopped(stand.clock.monotonic())))
        view = await stand.wait_state("web", "app", ObservedState.EXITED)
        assert view.sandboxes[0].ready
        lists = len(stand.fake.called("ListContainers"))
        stand.mailbox.post(PodReadWanted(ref("web"), "stopped", answer=Stopped(stand.clock.monotonic())))
        await stand.wait(lambda now: not now.pods[ref("web").uid].sandboxes[0].ready)
        assert len(stand.fake.called("ListContainers")) == lists


async def test_a_removed_pod_is_gone_without_a_read_and_an_older_read_does_not_bring_it_back(
    tmp_path: Path,
) -> None:
    async with run_pleg(tmp_path, hints=FedHints(), before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        slow = stand.fake.inject(RuntimeFault("ListContainers", delay_s=0.2, after=True, times=1))
        stand.touch("web")
        lists = ("ListContainers", "ListPodSandbox")
        await stand.until("reading", lambda: [len(stand.fake.called(method)) for method in lists] == [2, 2])
        assert slow.met
        calls = len(stand.fake.calls)
        stand.mailbox.post(PodReadWanted(ref("web"), "removed", answer=Removed(stand.clock.monotonic())))
        await stand.wait(lambda now: now.pods[ref("web").uid].is_gone)
        await asyncio.sleep(0.3)
        view = stand.view("web")
        assert view is not None and view.is_gone
        assert len(stand.fake.calls) == calls, "the runtime was not asked for what it has reported already"


# Older reads and newer ones


async def test_an_older_read_never_replaces_a_newer_one(tmp_path: Path) -> None:
    hints = FedHints()
    async with run_pleg(tmp_path, RelistPeriods(0.05, 0.05), hints=hints, before=lambda s: pods(s, "web")) as stand:
        await stand.listed()
        container = stand.fake.container("app")
        for _ in range(5):
            stand.fake.inject(RuntimeFault("ListContainers", delay_s=0.03, after=True, times=1))
            stand.touch("web")
            await asyncio.sleep(0.02)
            hints.say(HintKind.STOPPED, container.id)
        stand.fake.state.end(container, 1)
        await stand.wait_state("web", "app", EXITED)
        await asyncio.sleep(0.2)
        seen = [now.pods[ref("web").uid] for now in stand.published if ref("web").uid in now.pods]
        assert [view.read_at for view in seen] == sorted(view.read_at for view in seen)
        states = [view.newest("app").state for view in seen]  # type: ignore[union-attr]
        assert states == sorted(states, key=[RUNNING, EXITED].index)


async def test_a_slow_read_does_not_bring_back_a_pod_that_has_gone_meanwhile(tmp_path: Path) -> None:
    periods = RelistPeriods(0.15, 0.15)
    async with run_pleg(tmp_path, periods, hints=FedHints(), before=lambda stand: pods(stand, "web")) as stand:
        await stand.listed()
        sandbox = stand.fake.container("app").sandbox
        fault = stand.fake.inject(RuntimeFault("ContainerStatus", delay_s=0.5, after=True, times=1))
        stand.start(sandbox, "late")
        stand.touch("web")
        await stand.until("reading the new container", lambda: fault.met)
        stand.fake.state.remove_sandbox(sandbox)
        await stand.wait(lambda now: ref("web").uid not in now.pods or now.pods[ref("web").uid].is_gone)
        stand.published.clear()
        await asyncio.sleep(0.6)
        seen = [now.pods.get(ref("web").uid) for now in (*stand.published, stand.cell.get())]
        assert all(view is None or view.is_gone for view in seen)


async def test_a_touch_reads_what_changed_in_a_running_container(tmp_path: Path) -> None:
    async with run_pleg(tmp_path, before=lambda stand: pods(stand, "web")) as stand:
        first = (await stand.listed()).pods[ref("web").uid]
        (made,) = stand.fake.state.containers.values()
        made.resources.CopyFrom(pb.LinuxContainerResources(cpu_shares=77))
        stand.touch("web")
        await stand.wait(lambda now: now.pods[ref("web").uid] is not first)
        assert stand.fake.called("ContainerStatus")[1:] == [], "that it runs is known from the list"
        stand.touch("web", made.id)
        view = (await stand.wait(lambda now: _shares(now.pods[ref("web").uid]) == 77)).pods[ref("web").uid]
        assert view.containers[0].id == made.id


def _shares(view: PodView) -> int:
    resources = view.containers[0].resources
    return resources.cpu_shares if resources is not None else 0


async def test_the_containers_of_one_pod_are_read_a_few_at_a_time_and_others_meanwhile(tmp_path: Path) -> None:
    async with run_pleg(tmp_path) as stand:
        await stand.followed()
        sandbox = stand.make_pod("many")
        many = [stand.start(sandbox, f"c{number}") for number in range(3 * READS_OF_POD)]
        other = stand.start(stand.make_pod("web"), "app")
        await stand.wait_state("many", "c0", RUNNING)
        await stand.wait_state("web", "app", RUNNING)
        stand.fake.inject(RuntimeFault("ContainerStatus", pod="many", hang=True))
        stand.fake.calls.clear()
        for container in many:
            stand.fake.state.end(container, 1)
        await stand.until("a read", lambda: stand.fake.called("ContainerStatus"))
        stand.fake.state.end(other, 1)
        await stand.wait_state("web", "app", EXITED)
        assert sum(call.pod == "many" for call in stand.fake.called("ContainerStatus")) == READS_OF_POD
