"""The pod worker: events that cross each other lose nothing and never lead to two things at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
from act.pods.playbook import RULES
from act.pods.scenes import REF, WALL, box, pod, running, view
from support.virtual_time import clock_of_loop

from pykubelet.act.pods.execute import PodExecution
from pykubelet.act.pods.metrics import PullTime
from pykubelet.act.pods.model import (
    CleanEnded,
    CleanUp,
    KillRequested,
    PodWorkerState,
    RuntimeChanged,
    SpecChanged,
    StopPod,
    Sync,
    SyncEnded,
)
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.pods.worker import PodWorker, WorkerCrashed
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.clock import Clock, ManualClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage
from pykubelet.base.model.observed import PodReadWanted

pytestmark = pytest.mark.virtual_time
REMOVED = KillReason.REMOVED


@dataclass
class Work:
    """What the worker asks for, as it begins and ends; each waits for its gate."""

    log: list[str] = field(default_factory=list)
    sync_gate: asyncio.Event = field(default_factory=asyncio.Event)
    stop_gate: asyncio.Event = field(default_factory=asyncio.Event)
    attention: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Clock = field(default_factory=clock_of_loop)
    recorder: Sink[KubeEvent] = field(default_factory=Sink)
    running: Mapping[str, int] = field(default_factory=dict)
    is_stopped: bool = False
    is_held: bool = False
    pulled: PullTime = field(default_factory=PullTime)
    ahead: frozenset[str] = frozenset()

    @property
    def ending(self) -> Work:
        return self

    @property
    def hooks(self) -> Work:
        return self

    def begin_sync(self, unhooked: Mapping[str, int]) -> None:
        self.attention.clear()

    def interrupt(self, *, is_outdated: bool = False) -> None:
        self.attention.set()

    async def sync(self, command: Sync, waits: WaitBook) -> SyncEnded:
        self.log.append("sync")
        if self.attention.is_set():
            self.log.append("interrupted at once")
            return SyncEnded(unfinished=True)
        await self.sync_gate.wait()
        self.log.append("synced")
        return SyncEnded(command.plan.starts)

    async def stop(self, command: StopPod, waits: WaitBook, *, for_good: bool) -> str:
        self.log.append(f"stop {command.grace_s}")
        await self.stop_gate.wait()
        self.log.append("stopped")
        return ""

    async def wait_ends_reported(self, waits: WaitBook) -> None:
        return None

    async def after_stop(self, waits: WaitBook) -> None:
        return None

    async def clean(self, command: CleanUp, waits: WaitBook) -> CleanEnded:
        self.log.append("clean and remove" if command.remove else "clean")
        return CleanEnded()


@asynccontextmanager
async def worker(
    work: Work, of: Pod | None = None, since: float = 0.0, touched: Sink[PodReadWanted] | None = None
) -> AsyncIterator[PodWorker]:
    lifecycles: Sink[PodLifecycle | WorkerCrashed] = Sink()
    touched = touched if touched is not None else Sink()
    async with Supervisor("test") as supervisor:
        state = PodWorkerState(REF, of or pod(), Stage.SYNCING, WALL, since)
        made = PodWorker(state, lambda: RULES, cast(PodExecution, work), lifecycles, touched, supervisor)
        task = supervisor.start_root("worker", made.run())
        yield made
        assert not task.done()
        made.close()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def look(*views: object, ago: float = 0.0) -> RuntimeChanged:
    now = clock_of_loop().monotonic()
    return RuntimeChanged(view(*views, read_at=now - ago), WALL)  # type: ignore[arg-type]


async def test_a_pod_that_is_killed_in_the_moment_it_is_taken_up_is_stopped() -> None:
    work = Work()
    async with worker(work) as pod_worker:
        pod_worker.mailbox.post(look())
        pod_worker.mailbox.post(KillRequested(KillReason.REJECTED, "rejected"))
        await settle()
        assert work.log == ["stop 30"], "the sync was abandoned before its first step, and its end was noticed"
        work.stop_gate.set()
        await settle()
        assert pod_worker.state.stage is Stage.FINISHED


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_removed_pod_is_read_when_it_has_stopped_only_if_volumes_wait_for_that(is_held: bool) -> None:
    """Volumes are unmounted once the pod's view shows that nothing runs."""
    work, touched = Work(is_held=is_held), Sink[PodReadWanted]()
    async with worker(work, touched=touched) as pod_worker:
        pod_worker.mailbox.post(KillRequested(REMOVED, "removed"))
        await settle()
        work.stop_gate.set()
        await settle()
        assert pod_worker.state.stage is Stage.FINISHED
    assert ("stopped" in [event.cause for event in touched.events]) == is_held


async def test_a_shorter_grace_that_crosses_the_end_of_the_stop_stops_nothing_twice() -> None:
    work = Work()
    async with worker(work) as pod_worker:
        pod_worker.mailbox.post(KillRequested(REMOVED, "removed"))
        await settle()
        work.stop_gate.set()
        pod_worker.mailbox.post(KillRequested(REMOVED, "in a hurry", 1))
        await settle()
        assert work.log in (
            ["stop 30", "stopped", "clean and remove"],
            ["stop 30", "stop 1", "stopped", "clean and remove"],
        )
        assert pod_worker.state.stage is Stage.FINISHED


async def test_a_shorter_grace_after_the_stop_has_ended_unseen_begins_no_other() -> None:
    work = Work()
    async with worker(work) as pod_worker:
        pod_worker.mailbox.post(KillRequested(REMOVED, "removed"))
        await settle()
        work.stop_gate.set()
        while "stopped" not in work.log:
            await asyncio.sleep(0)
            pod_worker.mailbox.post(KillRequested(REMOVED, "in a hurry", 29 - len(pod_worker.mailbox)))
        await settle()
        assert work.log.count("stopped") == 1
        assert work.log[-1] == "clean and remove"
        assert pod_worker.state.stage is Stage.FINISHED


async def test_a_shorter_grace_hurries_the_stop() -> None:
    work = Work()
    async with worker(work) as pod_worker:
        pod_worker.mailbox.post(KillRequested(REMOVED, "removed"))
        await settle()
        pod_worker.mailbox.post(KillRequested(REMOVED, "in a hurry", 1))
        await settle()
        assert work.log == ["stop 30", "stop 1"]
        work.stop_gate.set()
        await settle()
        assert work.log == ["stop 30", "stop 1", "stopped", "clean and remove"]


async def test_an_event_between_a_decision_and_its_first_step_is_not_lost() -> None:
    work = Work()
    async with worker(work) as pod_worker:
        pod_worker.mailbox.post(look(ago=1.0))
        await asyncio.sleep(0)
        pod_worker.mailbox.post(SpecChanged(pod(metadata={"labels": {"a": "b"}}), "labels"))
        pod_worker.mailbox.post(look(box()))
        await settle()
        assert pod_worker.state.view is not None
        assert pod_worker.state.view.sandboxes
        assert work.attention.is_set() or "interrupted at once" in work.log


async def test_an_interruption_is_over_with_the_sync_it_was_meant_for() -> None:
    work = Work()
    async with worker(work) as pod_worker:
        pod_worker.mailbox.post(look())
        await settle()
        pod_worker.mailbox.post(look(box()))
        await settle()
        assert work.attention.is_set()
        work.sync_gate.set()
        await settle()
        pod_worker.mailbox.post(look(box()))
        await settle()
        assert work.log == ["sync", "synced", "sync", "synced"]


async def test_of_several_views_the_newest_counts_whatever_their_order() -> None:
    work = Work()
    async with worker(work) as pod_worker:
        pod_worker.mailbox.post(look(box(), running()))
        pod_worker.mailbox.post(look(ago=5.0))
        await settle()
        assert work.log == [], "the pod runs; the older look that shows nothing came late"


async def test_an_abandoned_sync_is_followed_by_one_for_the_new_manifest() -> None:
    work = Work()
    async with worker(work) as pod_worker:
        pod_worker.mailbox.post(look())
        await settle()
        pod_worker.mailbox.post(SpecChanged(pod(terminationGracePeriodSeconds=3), "manifest changed"))
        await settle()
        assert work.log == ["sync"], "first it is looked at what the abandoned one has done"
        pod_worker.mailbox.post(look())
        await settle()
        assert work.log == ["sync", "sync"]


async def test_the_timeline_reports_what_was_done_and_why() -> None:
    work = Work()
    work.sync_gate.set()
    work.stop_gate.set()
    async with worker(work) as pod_worker:
        pod_worker.mailbox.post(look())
        await settle()
        pod_worker.mailbox.post(KillRequested(REMOVED, "no longer desired"))
        await settle()
        assert [(line.what, line.cause) for line in pod_worker.history] == [
            ("taken up", ""),
            ("create sandbox (attempt 0); start app", "runtime changed"),
            ("syncing -> terminating", "no longer desired"),
            ("stopping within 30 s", "no longer desired"),
            ("terminating -> terminated", "stop ended"),
            ("terminated -> finished", "clean-up ended"),
        ]


async def test_a_pod_that_is_taken_up_after_its_deadline_starts_nothing() -> None:
    work = Work()
    async with worker(work, pod(activeDeadlineSeconds=60), since=clock_of_loop().monotonic() - 61) as pod_worker:
        pod_worker.mailbox.post(look())
        await settle()
        assert work.log == ["stop 30"]
        assert [kube_event.reason for kube_event in work.recorder.events] == ["DeadlineExceeded"]


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
async def test_a_wall_clock_that_jumps_moves_no_deadline(jump: float) -> None:
    clock = ManualClock()
    of = pod(activeDeadlineSeconds=1800)
    async with worker(Work(clock=clock), of, since=clock.monotonic() - 600) as pod_worker:

        def kill_reason() -> KillReason | None:
            return None if pod_worker.state.kill is None else pod_worker.state.kill.reason

        clock.jump_wall(jump)
        pod_worker.mailbox.post(SpecChanged(of, "looked at again"))
        clock.advance(1199)
        pod_worker.mailbox.post(SpecChanged(of, "looked at again"))
        await settle()
        assert kill_reason() is None
        clock.advance(1)
        pod_worker.mailbox.post(SpecChanged(of, "looked at again"))
        await settle()
        assert kill_reason() is KillReason.DEADLINE
