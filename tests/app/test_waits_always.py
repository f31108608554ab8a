"""No pod ever waits without a wait that is named: whatever happens to it, in whatever order.

A pod is settled when all that should run runs and is ready, or when it is over. As long as it is not, what `explain`
would show of it must have at least one wait, and every wait has a name, an owner, a beginning and what comes next.
Checked on random lives of the pod machine, and on the pod workers with a fake runtime that fails at random.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from act.pods.node import Node, named, node
from act.pods.playbook import RULES
from act.pods.scenes import IMAGE, REF, WALL, container, pod, sidecar
from act.pods.test_decide_stateful import SHAPES, PodLife, Runtime
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from support.virtual_time import VirtualLoop

from pykubelet.act.pods.model import REMOVING, PodWorkerState
from pykubelet.act.pods.waitbook import SHOW_AFTER_S, general_wait, waits_of
from pykubelet.base.api.core import Container, Pod, PodStatus
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.probes import ProbeKind, ProbeResults
from pykubelet.base.model.restart import is_sidecar, should_restart
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.cri.errors import CriCode
from pykubelet.provide.cgroups.model import CgroupError
from pykubelet.provide.images.model import ImageError
from pykubelet.report.status.model import StatusFacts
from pykubelet.report.status.project import project_status
from pykubelet.serve.explain.waits import pod_waits
from pykubelet.testing.cri.fake_handles import RuntimeFault

PROBE = {"exec": {"command": ["true"]}}
PROBED = {
    **SHAPES,
    "probed": pod(
        container("a", readinessProbe=PROBE, startupProbe=PROBE, livenessProbe=PROBE),
        init=(sidecar("mesh", startupProbe=PROBE, readinessProbe=PROBE), container("i1")),
    ),
    "gated": pod(container("a"), container("b"), readinessGates=[{"conditionType": "example.test/gate"}]),
}


def is_settled(of: Pod, stage: Stage, view: PodView | None, status: PodStatus, removing: bool) -> bool:
    """Whether a pod, as the runtime and its status show it, lacks nothing."""
    if stage is Stage.FINISHED:
        return not removing
    if stage is not Stage.SYNCING or view is None:
        return False
    reported = {s.name: s for s in (*status.initContainerStatuses, *status.containerStatuses)}

    def lacks_nothing(c: Container) -> bool:
        newest, is_init = view.newest(c.name), c in of.spec.initContainers
        if is_init and not is_sidecar(c):
            return reported[c.name].ready
        if newest is not None and newest.is_running:
            return reported[c.name].ready
        return newest is not None and not should_restart(of, c, newest)

    gates = {c.type: c.status for c in status.conditions}
    containers = (*of.spec.initContainers, *of.spec.containers)
    return all(lacks_nothing(c) for c in containers) and all(g.conditionType in gates for g in of.spec.readinessGates)


def check_waits(waits: Iterable[Wait]) -> None:
    for wait in waits:
        began = wait.since > 0 or wait.owner in (Owner.CONTAINER, Owner.PROBER)  # containers here run since 1970
        assert wait.what and wait.owner and began and wait.next_step, wait


class ReportedLife(PodLife):
    """The random lives of the pod machine, seen through its waits."""

    @initialize(shape=st.sampled_from(sorted(PROBED)))
    def begin(self, shape: str) -> None:
        self.now, self.wall = 1000.0, WALL
        self.runtime = Runtime()
        self.probes = ProbeResults({}, frozenset(ProbeKind))
        self.state = PodWorkerState(ref=REF, pod=PROBED[shape], stage=Stage.SYNCING, started_wall=WALL)
        self.timer = None
        self.sync = None
        self.syncing = self.stopping = self.cleaning = None
        self.started, self.stale, self.graces = [], [], []
        self.was_killed = False
        self.steps = []

    @invariant()
    def what_it_waits_for_is_reported(self) -> None:
        state = self.state
        waits = waits_of(state, RULES.crash, self.now, self.wall)
        if not waits and (wait := general_wait(state, self.wall)) is not None:
            waits.append(wait)
        life = PodLifecycle(
            state.ref,
            state.pod,
            state.stage,
            self.wall,
            WALL,
            start_errors=state.start_errors,
            override=state.kill.override if state.kill else None,
            kill_reason=state.kill.reason if state.kill else None,
            terminal=state.terminal,
            restarting_all=state.restarting_all,
        )
        status = project_status(StatusFacts(state.pod, life, state.view, self.probes, now_wall=self.wall))
        shown = pod_waits(life, waits, (), status)
        check_waits(shown)
        removing = state.kill is not None and state.kill.reason in REMOVING and not state.removed
        assert shown or is_settled(state.pod, state.stage, state.view, status, removing), state


ReportedLife.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestReportedLife = ReportedLife.TestCase


# The pod workers on a runtime that fails

UID = PodUID(named(pod(), "web").metadata.uid)
METHODS = (
    *("RunPodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox"),
    *("RemovePodSandbox", "ListContainers", "ContainerStatus", "ExecSync", "*"),
)
SCRIPTS = ("sleep 0.1; exit 1", "exit 0", "sleep 1000", "trap '' TERM; sleep 1000")
#: A wait is shown after a tenth of a second.
QUIET_S = SHOW_AFTER_S + 0.03
TROUBLES = st.lists(
    st.one_of(
        st.builds(
            RuntimeFault,
            st.sampled_from(METHODS),
            code=st.sampled_from([None, CriCode.UNKNOWN, CriCode.UNAVAILABLE, CriCode.DEADLINE_EXCEEDED]),
            hang=st.booleans(),
            delay_s=st.sampled_from([0.0, 0.3]),
            after=st.booleans(),
            times=st.sampled_from([1, 2, None]),
        ),
        st.sampled_from(["volumes", "image", "cgroup", "busy cgroup", "runtime", "network"]),
    ),
    max_size=3,
)


def apply(n: Node, trouble: RuntimeFault | str) -> None:
    match trouble:
        case RuntimeFault():
            n.fake.inject(trouble)
        case "volumes":
            n.volumes.stuck.add("web")
        case "image":
            n.images.missing[IMAGE] = ImageError("ErrImagePull", "no such image", None)
        case "cgroup":
            n.groups.broken["web"] = CgroupError("no cgroup")
        case "busy cgroup":
            n.groups.busy.add(UID)
        case "runtime":
            n.runtime.publish(RuntimeReady(True, "container runtime is down"))
        case "network":
            n.runtime.publish(RuntimeReady(True, "", "no network"))


async def watch(n: Node, seconds: float) -> None:
    """Look at the pod all the time: it is never unsettled for long without a wait."""
    loop = asyncio.get_running_loop()
    end, last_reported = loop.time() + seconds, loop.time()
    while (now := loop.time()) < end:
        life = n.life("web")
        if life is None:
            if not n.wanted and not n.sandboxes("web"):
                return
        else:
            view = n.observed.get().pods.get(life.ref.uid)
            status = project_status(StatusFacts(life.pod, life, view))
            waits = pod_waits(life, n.known(life.ref.uid).waits, (), status)
            check_waits(waits)
            if waits or is_settled(life.pod, life.stage, view, status, removing=False):
                last_reported = now
        assert now - last_reported < QUIET_S, n.account()
        await asyncio.sleep(0.02)


async def live(script: str, troubles: list[RuntimeFault | str], early: bool, folder: Path) -> None:
    hook = {"postStart": {"exec": {"command": ["true"]}}}
    of = pod(container("app", command=["sh", "-c", script], lifecycle=hook), terminationGracePeriodSeconds=1)
    async with node(folder) as n:
        if early:
            for trouble in troubles:
                apply(n, trouble)
        n.want(named(of, "web"))
        await watch(n, 3.0)
        if not early:
            for trouble in troubles:
                apply(n, trouble)
        n.unwant("web")
        await watch(n, 3.0)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SCRIPTS), TROUBLES, st.booleans())
def test_on_a_failing_runtime_too(script: str, troubles: list[RuntimeFault | str], early: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="pyk") as folder, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(live(script, troubles, early, Path(folder)))


@pytest.mark.parametrize("trouble", ["volumes", "image", "cgroup", "runtime", "network"])
def test_each_trouble_alone(trouble: str, tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(live("sleep 1000", [trouble], True, tmp_path))
