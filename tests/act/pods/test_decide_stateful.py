"""Random lives of one pod against a simulated runtime: whatever happens, in whatever order, what must hold holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from act.pods.playbook import RULES
from act.pods.scenes import NS, REF, WALL, box, container, instance, pod, rule, sidecar, view
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition
from hypothesis.stateful import rule as action

from pykubelet.act.pods.decide import Rules, step
from pykubelet.act.pods.model import (
    REMOVING,
    AbandonSync,
    CleanEnded,
    CleanUp,
    Command,
    Event,
    KillRequested,
    PodWorkerState,
    ProbesChanged,
    ReportBackOff,
    RuntimeChanged,
    SpecChanged,
    StartFailed,
    StopEnded,
    StopPod,
    Sync,
    SyncEnded,
    TimerFired,
    WakeAt,
    Work,
)
from pykubelet.act.pods.recording import record
from pykubelet.base.api.core import Container, Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.diagnostics import WorkerStep
from pykubelet.base.model.lifecycle import KillReason, Stage, StartError
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView, SandboxView
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet_offline.pod_replay import parse, replay

RUNNING, EXITED, UNKNOWN = ObservedState.RUNNING, ObservedState.EXITED, ObservedState.UNKNOWN
NAMES = ("i1", "mesh", "a", "b")
SHAPES: dict[str, Pod] = {
    "kept rules": pod(
        container("a", restartPolicy="Never", restartPolicyRules=[rule("Restart", 137)]),
        container("b", restartPolicy="OnFailure"),
        init=(sidecar("mesh"),),
        restart="Never",
    ),
    "plain": pod(container("a"), container("b")),
    "once": pod(container("a"), container("b"), restart="Never"),
    "init": pod(container("a"), init=(container("i1"), sidecar("mesh")), restart="OnFailure"),
    "job": pod(container("a"), init=(sidecar("mesh"), container("i1")), restart="Never"),
    "rules": pod(
        container("a", restartPolicyRules=[rule("RestartAllContainers", 88, 137, 143)]),
        container("b"),
        init=(container("i1", restartPolicyRules=[rule("RestartAllContainers", 88)]),),
    ),
}


@dataclass
class Runtime:
    """What really is: sandboxes and containers, newest last."""

    sandboxes: list[SandboxView] = field(default_factory=list)
    containers: list[ContainerView] = field(default_factory=list)

    def running(self, name: str) -> list[ContainerView]:
        return [c for c in self.containers if c.name == name and c.state is RUNNING]

    def end(self, target: ContainerView, code: int, wall: float) -> None:
        ended = replace(target, state=EXITED, exit_code=code, finished_at=int(wall * NS))
        self.containers[self.containers.index(target)] = ended

    def stop_all(self, wall: float) -> None:
        for target in [c for c in self.containers if c.state in (RUNNING, UNKNOWN)]:
            self.end(target, 143, wall)
        self.sandboxes = [replace(s, ready=False) for s in self.sandboxes]

    def make_sandbox(self, attempt: int) -> None:
        assert attempt not in [s.attempt for s in self.sandboxes], "a sandbox name is used twice"
        self.sandboxes.append(box(attempt))

    def start(self, of: Pod, name: str) -> None:
        assert not self.running(name), f"{name} runs already"
        home = self.sandboxes[-1]
        assert home.ready
        attempts = [c.attempt for c in self.containers if c.name == name]
        wanted = next(c for c in (*of.spec.containers, *of.spec.initContainers) if c.name == name)
        attempt = max(attempts, default=-1) + 1
        recorded = container_hash(wanted)
        self.containers.append(instance(name, RUNNING, attempt=attempt, sandbox=home.attempt, hash_of=recorded))

    def view(self, now: float) -> PodView:
        return view(*self.sandboxes, *self.containers, read_at=now)


class PodLife(RuleBasedStateMachine):
    @initialize(shape=st.sampled_from(sorted(SHAPES)))
    def begin(self, shape: str) -> None:
        self.now, self.wall = 1000.0, WALL
        self.runtime = Runtime()
        self.probes = ProbeResults({}, frozenset(ProbeKind))
        self.state = PodWorkerState(ref=REF, pod=SHAPES[shape], stage=Stage.SYNCING, started_wall=WALL)
        self.timer: float | None = None
        self.sync: list[str] | None = None  # the steps still to do
        self.syncing: Sync | None = None
        self.started: list[str] = []
        self.stopping: StopPod | None = None
        self.cleaning: CleanUp | None = None
        self.stale: list[PodView] = []
        self.graces: list[int] = []
        self.was_killed = False
        self.steps: list[WorkerStep] = []

    # Sending events to the state machine, and taking its commands

    def present_rules(self) -> Rules:
        return replace(RULES, probes=self.probes)

    def send(self, event: Event) -> None:
        before = self.state
        rules = self.present_rules()
        self.state, commands = step(before, event, self.now, rules)
        self.steps.append(WorkerStep(self.now, before, event, rules, self.state, commands))
        order = list(Stage)
        if self.state.stage is not before.stage and before.stage is not Stage.FINISHED:
            assert order.index(self.state.stage) > order.index(before.stage), "a stage never goes back"
        for command in commands:
            self.take(command)

    def take(self, command: Command) -> None:
        match command:
            case Sync(plan=plan):
                assert self.idle(), "two things at once"
                assert not self.was_killed, "a sync after a kill"
                self.syncing, self.started = command, []
                self.sync = [
                    *(f"remove {c.id}" for c in command.uncounted if plan.create_sandbox),
                    *(["stop"] if plan.stop_pod else []),
                    *(f"kill {kill.container.id}" for kill in plan.kills),
                    *(f"remove {target}" for target in plan.remove),
                    *([f"sandbox {plan.attempt}"] if plan.create_sandbox else []),
                    *(f"start {name}" for name in plan.starts),
                ]
                assert self.sync, "a sync that does nothing"
            case AbandonSync(hard=hard):
                assert self.sync is not None
                if hard:
                    self.sync = []
            case StopPod(grace_s=grace):
                assert self.sync is None
                assert self.cleaning is None
                assert all(grace <= earlier for earlier in self.graces), "grace only shrinks"
                self.graces.append(grace)
                self.stopping = command
            case CleanUp():
                assert self.idle(), "two things at once"
                self.cleaning = command
            case WakeAt(at=at):
                self.timer = at
            case ReportBackOff(container=name):
                assert name in NAMES

    def idle(self) -> bool:
        return self.sync is None and self.stopping is None and self.cleaning is None

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    # The runtime

    @action(name=st.sampled_from(NAMES), code=st.sampled_from([0, 0, 1, 88, 137]))
    def container_ends(self, name: str, code: int) -> None:
        for target in self.runtime.running(name):
            self.runtime.end(target, code, self.wall)

    @action(name=st.sampled_from(NAMES))
    def container_gets_lost(self, name: str) -> None:
        for target in self.runtime.running(name):
            self.runtime.containers[self.runtime.containers.index(target)] = replace(target, state=UNKNOWN)

    @action()
    def sandbox_dies(self) -> None:
        self.runtime.stop_all(self.wall)

    # The PLEG

    @action()
    def reads(self) -> None:
        self.passes(0.01)
        view = self.runtime.view(self.now)
        self.stale.append(view)
        self.send(RuntimeChanged(view, self.wall))

    @precondition(lambda self: self.stale)
    @action(pick=st.integers(0, 5))
    def an_old_view_comes_late(self, pick: int) -> None:
        self.send(RuntimeChanged(self.stale[-1 - pick % len(self.stale)], self.wall))

    # Time, people, probes

    @action(seconds=st.sampled_from([0.1, 1.0, 11.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.passes(seconds)
        if self.timer is not None and self.timer <= self.now:
            self.timer = None
            self.send(TimerFired())

    @action(seconds=st.sampled_from([-86_400.0, 3600.0]))
    def the_wall_clock_jumps(self, seconds: float) -> None:
        self.wall += seconds

    @action(reason=st.sampled_from(KillReason), grace=st.sampled_from([None, 0, 5, 40]))
    def kill_is_requested(self, reason: KillReason, grace: int | None) -> None:
        self.was_killed = True
        self.send(KillRequested(reason, "test", grace))

    @action(image=st.sampled_from(["busybox:1", "busybox:2"]))
    def spec_changes(self, image: str) -> None:
        of = self.state.pod
        changed = tuple(replace_image(c, image) for c in of.spec.containers)
        self.send(SpecChanged(pod_with(of, changed), "manifest changed"))

    @action(name=st.sampled_from(NAMES), kind=st.sampled_from(ProbeKind), result=st.sampled_from(ProbeResult))
    def a_probe_reports(self, name: str, kind: ProbeKind, result: ProbeResult) -> None:
        results = dict(self.probes.results)
        results.update({(target.id, kind): result for target in self.runtime.running(name)})
        self.probes = replace(self.probes, results=results)
        self.send(ProbesChanged(self.probes))

    # The work under way

    @precondition(lambda self: self.sync)
    @action(fails=st.sampled_from([False, False, False, True]))
    def the_sync_goes_on(self, fails: bool) -> None:
        assert self.sync is not None
        assert self.syncing is not None
        what, _, of = self.sync.pop(0).partition(" ")
        self.passes(0.01)
        if fails:
            self.sync_fails(what, of)
            return
        runtime = self.runtime
        match what:
            case "stop":
                runtime.stop_all(self.wall)
            case "kill":
                for target in [c for c in runtime.containers if c.id == of and c.state in (RUNNING, UNKNOWN)]:
                    runtime.end(target, 143, self.wall)
            case "remove":
                runtime.containers = [c for c in runtime.containers if c.id != of]
            case "sandbox":
                runtime.make_sandbox(int(of))
            case "start":
                if not (runtime.sandboxes and runtime.sandboxes[-1].ready):
                    self.sync_fails(what, of)
                    return
                runtime.start(self.syncing.pod, of)
                self.started.append(of)
        if not self.sync:
            self.sync_ends()

    def sync_fails(self, what: str, of: str) -> None:
        error = StartError("CreateContainerError", "no")
        if what == "start":
            self.end_sync(SyncEnded(tuple(self.started), {of: StartFailed(error)}))
        else:
            self.end_sync(SyncEnded(pod_error=error))

    @precondition(lambda self: self.sync is not None)
    @action()
    def sync_ends(self) -> None:
        self.end_sync(SyncEnded(tuple(self.started), unfinished=bool(self.sync)))

    def end_sync(self, ended: SyncEnded) -> None:
        self.sync = self.syncing = None
        self.passes(0.001)
        self.send(ended)

    @precondition(lambda self: self.stopping)
    @action(error=st.sampled_from(["", "", "containers still run"]))
    def stop_ends(self, error: str) -> None:
        if not error:
            self.runtime.stop_all(self.wall)
        self.stopping = None
        self.passes(0.01)
        self.send(StopEnded(error=error))

    @precondition(lambda self: self.cleaning)
    @action(error=st.sampled_from(["", "", "busy"]))
    def clean_ends(self, error: str) -> None:
        assert self.cleaning is not None
        if not error and self.cleaning.remove:
            self.runtime = Runtime()
        self.cleaning = None
        self.passes(0.01)
        self.send(CleanEnded(error=error))

    # What always holds

    @invariant()
    def one_thing_at_a_time(self) -> None:
        doing = {
            Work.SYNC: self.sync is not None,
            Work.STOP: self.stopping is not None,
            Work.CLEAN: self.cleaning is not None,
        }
        assert sum(doing.values()) <= 1
        assert self.state.work is Work.NONE or doing[self.state.work]

    @invariant()
    def never_stuck(self) -> None:
        state = self.state
        at_end = state.stage is Stage.FINISHED and (state.removed or not is_removing(state))
        waits_for_read = state.view is None or state.view.read_at < state.read_after
        assert at_end or not self.idle() or self.timer is not None or (waits_for_read and state.kill is None)

    @invariant()
    def each_container_runs_once(self) -> None:
        for name in NAMES:
            assert len(self.runtime.running(name)) <= 1

    # In the end

    def settle(self) -> None:
        """Everything works from now on, until nothing more happens."""
        self.probes = ProbeResults({}, frozenset())
        self.send(ProbesChanged(self.probes))
        for _ in range(100):
            if self.sync is not None:
                if self.sync:
                    self.the_sync_goes_on(fails=False)
                else:
                    self.sync_ends()
            elif self.stopping:
                self.stop_ends(error="")
            elif self.cleaning:
                self.clean_ends(error="")
            else:
                was = self.state
                self.reads()
                if self.timer is not None and self.idle():
                    self.time_passes(max(0.0, self.timer - self.now))
                if self.idle() and self.at_rest(was):
                    return
        raise AssertionError(f"never at rest: {self.state}")

    def at_rest(self, was: PodWorkerState) -> bool:
        state = self.state
        waits = state.failure is not None or (state.stage is Stage.SYNCING and state.start_errors)
        return state.stage is was.stage and not waits

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        self.settle()
        if self.state.stage is Stage.SYNCING:
            self.init_containers_end()
            of, regular = self.state.pod, self.state.pod.spec.containers
            if of.spec.restartPolicy == "Always":
                assert all(self.runtime.running(c.name) for c in regular), "what should run does not"
            assert [s.ready for s in self.runtime.sandboxes].count(True) == 1
        self.was_killed = True
        self.send(KillRequested(KillReason.REMOVED, "in the end"))
        self.settle()
        assert self.state.stage is Stage.FINISHED
        assert self.state.removed
        assert self.runtime == Runtime(), "something is left"
        self.steps_replay()

    def steps_replay(self) -> None:
        """A recording of the whole life, read from its JSON text, runs again to the same states and commands."""
        recorded = record(self.steps, "test")
        assert recorded is not None
        replayed = replay(parse(json.dumps(recorded).encode()), container_hash)
        assert [entry.differences for entry in replayed] == [()] * len(self.steps)

    def init_containers_end(self) -> None:
        for _ in range(4):
            for target in self.runtime.running("i1"):
                self.runtime.end(target, 0, self.wall)
            self.settle()


def is_removing(state: PodWorkerState) -> bool:
    return state.kill is not None and state.kill.reason in REMOVING


def replace_image(of: Container, image: str) -> Container:
    return replace(of, image=image)


def pod_with(of: Pod, containers: tuple[Container, ...]) -> Pod:
    return replace(of, spec=replace(of.spec, containers=containers))


PodLife.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestPodLife = pytest.mark.filterwarnings("error")(PodLife.TestCase)
