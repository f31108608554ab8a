"""The table of a pod's transitions is what happens, and a state that breaks a rule is reported as a bug.

Every step of every other test is checked too (`tests/conftest.py`).
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from act.pods.playbook import RULES, Playbook
from act.pods.scenes import REF, WALL, box, container, exited, pod
from act.pods.test_worker import Work as Doubles
from act.pods.test_worker import settle

from pykubelet.act.pods.execute import PodExecution
from pykubelet.act.pods.invariants import BEGINNINGS, POINTS, TRANSITIONS, Point, check_invariants, check_step
from pykubelet.act.pods.model import (
    AbandonSync,
    CleanUp,
    Event,
    KillOrder,
    PodFailure,
    PodWorkerState,
    StopEnded,
    StopPod,
    SyncEnded,
    TimerFired,
    Work,
)
from pykubelet.act.pods.worker import PodWorker, WorkerCrashed
from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.checks import BrokenInvariantError
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage, StartError

KILL = KillOrder(KillReason.COMPLETED, 30)
SYNCING = PodWorkerState(REF, pod(), Stage.SYNCING, WALL)
FINISHED = replace(SYNCING, stage=Stage.FINISHED, kill=KILL)


class Recorded(Playbook):
    """A pod whose transitions are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: set[tuple[Point, Point]] = set()

    def hears(self, event: Event) -> list[str]:
        before = self.state
        commands = super().hears(event)
        self.seen.add(((before.stage, before.work), (self.state.stage, self.state.work)))
        return commands

    def waits(self) -> None:
        self.passes(60)
        self.wakes()


def a_long_end(play: Recorded) -> None:
    """It is killed at rest; its stop and its clean-up fail once; then it is removed."""
    play.sees()
    play.sync_ended("app")
    play.killed(KillReason.DEADLINE)
    play.stop_ended("a process still runs")
    play.waits()
    play.stop_ended()
    play.clean_ended("busy")
    play.waits()
    play.clean_ended()
    play.killed(KillReason.REMOVED)
    play.clean_ended()


def a_kill_during_a_sync(play: Recorded) -> None:
    play.sees()
    play.killed(KillReason.REMOVED)
    play.sync_abandoned()


def an_end_during_a_sync(play: Recorded) -> None:
    """The view was read in the very moment in which the sync ends."""
    play.sees()
    play.sees(box(), exited(), ago=-0.001)
    play.sync_abandoned()


def test_each_transition_of_the_table_happens() -> None:
    seen: set[tuple[Point, Point]] = set()
    for life in (a_long_end, a_kill_during_a_sync, an_end_during_a_sync):
        play = Recorded(pod(container(), restart="Never"))
        life(play)
        seen |= play.seen
    assert {change for change in seen if change[0] != change[1]} == {
        (transition.before, transition.after) for transition in TRANSITIONS
    }


def test_each_stage_and_work_of_the_table_is_reached_from_a_beginning() -> None:
    reached = set(BEGINNINGS)
    for _ in POINTS:
        reached |= {transition.after for transition in TRANSITIONS if transition.before in reached}
    assert reached == POINTS
    assert {stage for stage, _ in POINTS} == set(Stage) and {work for _, work in POINTS} == set(Work)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (replace(SYNCING, work=Work.CLEAN), "its stage and work are in the table"),
        (replace(SYNCING, kill=KILL), "it has a kill exactly if it is not syncing"),
        (replace(FINISHED, kill=None), "it has a kill exactly if it is not syncing"),
        (replace(FINISHED, kill=replace(KILL, grace_s=0)), "a grace period of a second or more"),
        (replace(SYNCING, removed=True), "only an ended pod is removed"),
        (replace(FINISHED, failure=PodFailure(StartError("", ""), 1)), "a finished pod has no failure"),
    ],
)
def test_a_state_that_breaks_a_rule_is_named_with_its_pod(broken: PodWorkerState, rule: str) -> None:
    with pytest.raises(BrokenInvariantError, match=rule) as found:
        check_invariants(broken)
    assert str(REF) in str(found.value) and str(broken.stage) in str(found.value)


STOPPING = replace(SYNCING, stage=Stage.TERMINATING, work=Work.STOP, kill=KILL)
STOP = StopPod(pod(), 30, "")


@pytest.mark.parametrize(
    ("before", "event", "after", "commands", "rule"),
    [
        (
            FINISHED,
            TimerFired(),
            SYNCING,
            (),
            r"finished \(none\) is not followed by syncing \(none\) after TimerFired",
        ),
        (STOPPING, SyncEnded(), replace(STOPPING, work=Work.NONE), (), "after SyncEnded"),
        (SYNCING, TimerFired(), STOPPING, (), "work that runs was begun by a command"),
        (SYNCING, TimerFired(), STOPPING, (STOP, CleanUp(True, "")), "one kind of work begins at a time"),
        (SYNCING, TimerFired(), SYNCING, (STOP,), "the work that begins is the one that runs"),
        (STOPPING, StopEnded(), STOPPING, (AbandonSync(hard=True, cause=""),), "only a sync is abandoned"),
        (STOPPING, TimerFired(), replace(STOPPING, kill=replace(KILL, grace_s=31)), (), "from 30 s to 31 s"),
    ],
)
def test_a_step_that_breaks_a_rule_is_named(
    before: PodWorkerState, event: Event, after: PodWorkerState, commands: tuple[Any, ...], rule: str
) -> None:
    with pytest.raises(BrokenInvariantError, match=rule):
        check_step(before, event, after, commands)


@pytest.mark.virtual_time
async def test_a_worker_whose_state_breaks_a_rule_crashes_and_its_loop_gets_to_know() -> None:
    """The loop logs the crash with the pod's history, records an Event, and starts the worker again after a pause."""
    lifecycles: Sink[PodLifecycle | WorkerCrashed] = Sink()
    broken = replace(FINISHED, failure=PodFailure(StartError("", ""), 1))
    async with Supervisor("test") as supervisor:
        execution = cast(PodExecution, Doubles())
        worker = PodWorker(broken, lambda: RULES, execution, lifecycles, Sink(), supervisor)
        worker.start()
        worker.mailbox.post(TimerFired())
        await settle()
        worker.close()
    crash = lifecycles.events[-1]
    assert isinstance(crash, WorkerCrashed) and "a finished pod has no failure" in str(crash.error)
