"""The phase that people see, case by case."""

from __future__ import annotations

from typing import Any

import pytest
from act.pods.scenes import WALL, box, container, created, exited, pod, rule, running, sidecar, unknown, view

from pykubelet.base.api.core import Pod
from pykubelet.base.model.labels import CONFIG_SOURCE
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.observed import ContainerView
from pykubelet.base.model.phase import Phase, ReportedContainers, has_initialized, pod_phase

PENDING, RUNNING, SUCCEEDED, FAILED = Phase.PENDING, Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED
I1 = (container("i1"),)
STATIC = {"annotations": {CONFIG_SOURCE: "file"}}


def phase(of: Pod, *seen: ContainerView, ended: bool = False, errors: tuple[str, ...] = ()) -> Phase:
    look = view(box(), *seen) if seen else None
    return pod_phase(of, look, {name: StartError("CrashLoopBackOff", "") for name in errors}, ended)


def both(**spec: Any) -> Pod:
    return pod(container("a"), container("b"), **spec)


@pytest.mark.parametrize(
    ("of", "seen", "expected"),
    [
        pytest.param(pod(), [], PENDING, id="nothing seen yet"),
        pytest.param(both(), [running("a")], PENDING, id="one has not started"),
        pytest.param(both(), [running("a"), created("b")], PENDING, id="one was only created"),
        pytest.param(both(), [running("a"), running("b")], RUNNING, id="all run"),
        pytest.param(both(), [running("a"), exited("b", 1)], RUNNING, id="one runs, one has ended"),
        pytest.param(
            both(restart="Never"), [running("a"), exited("b", 1)], RUNNING, id="one runs, one failed for good"
        ),
        pytest.param(pod(), [exited("app", 1)], RUNNING, id="ended, to be restarted"),
        pytest.param(pod(), [exited("app", 0)], RUNNING, id="ended well, to be restarted"),
        pytest.param(pod(), [exited("app", 1), created("app", attempt=1)], RUNNING, id="between two instances"),
        pytest.param(pod(restart="OnFailure"), [exited("app", 1)], RUNNING, id="failed, to be restarted"),
        pytest.param(pod(restart="OnFailure"), [exited("app", 0)], SUCCEEDED, id="OnFailure ended well"),
        pytest.param(
            both(restart="OnFailure"), [exited("a"), exited("b", 1)], RUNNING, id="one of two to be restarted"
        ),
        pytest.param(pod(restart="Never"), [exited("app", 0)], SUCCEEDED, id="Never ended well"),
        pytest.param(pod(restart="Never"), [exited("app", 1)], FAILED, id="Never failed"),
        pytest.param(both(restart="Never"), [exited("a"), exited("b", 1)], FAILED, id="one of two failed"),
        pytest.param(pod(restart="Never"), [unknown("app")], FAILED, id="lost, never restarted"),
        pytest.param(pod(), [unknown("app")], RUNNING, id="lost, to be restarted"),
        pytest.param(
            pod(container("app", restartPolicy="Never"), restart="Always"), [exited("app", 1)], FAILED, id="own policy"
        ),
        pytest.param(
            pod(container("app", restartPolicyRules=[rule("Restart", 3)]), restart="Never"),
            [exited("app", 3)],
            RUNNING,
            id="a rule restarts it",
        ),
        pytest.param(
            pod(container("app", restartPolicyRules=[rule("RestartAllContainers", 3)]), restart="Never"),
            [exited("app", 3)],
            RUNNING,
            id="a rule restarts all",
        ),
    ],
)
def test_regular_containers(of: Pod, seen: list[ContainerView], expected: Phase) -> None:
    assert phase(of, *seen) is expected


WATCHED = pod(init=(sidecar("watcher", restartPolicyRules=[rule("RestartAllContainers", 88)]),), restart="Never")


def test_a_pod_whose_sidecar_restarts_all_containers_has_not_ended() -> None:
    """Its regular container was killed for that, and is not removed yet."""
    assert phase(WATCHED, exited("watcher", 88, ended=WALL), exited("app", 137, ended=WALL + 1)) is RUNNING


@pytest.mark.parametrize(("code", "expected"), [(0, SUCCEEDED), (1, FAILED)])
def test_a_pod_that_was_done_when_its_sidecar_ended_has_ended(code: int, expected: Phase) -> None:
    """Such a sidecar gets its signal because the regular containers have ended, and may exit with any code."""
    assert phase(WATCHED, exited("watcher", 88, ended=WALL + 1), exited("app", code, ended=WALL)) is expected


def test_an_init_container_that_was_killed_to_be_started_again_has_not_failed() -> None:
    of, killed = pod(init=I1, restart="Never"), exited("i1", 137)
    assert pod_phase(of, view(box(), killed), {}, ended=False, to_restart={killed.id}) is PENDING


@pytest.mark.parametrize(
    ("of", "seen", "expected"),
    [
        pytest.param(pod(init=I1), [running("i1")], PENDING, id="init runs"),
        pytest.param(pod(init=I1), [exited("i1")], PENDING, id="init done, the rest not started"),
        pytest.param(pod(init=I1), [exited("i1", 1)], PENDING, id="init failed, to be restarted"),
        pytest.param(pod(init=I1, restart="Never"), [exited("i1", 1)], FAILED, id="init failed for good"),
        pytest.param(pod(init=I1, restart="OnFailure"), [exited("i1", 1)], PENDING, id="init failed, OnFailure"),
        pytest.param(
            pod(init=I1, restart="Never"), [exited("i1", reason="OOMKilled")], FAILED, id="init OOM-killed, exit code 0"
        ),
        pytest.param(
            pod(init=I1, restart="OnFailure"),
            [exited("i1", reason="OOMKilled")],
            PENDING,
            id="init OOM-killed, OnFailure",
        ),
        pytest.param(pod(init=I1), [exited("i1"), running("app")], RUNNING, id="all run"),
        pytest.param(pod(init=I1), [running("app")], RUNNING, id="init container pruned"),
        pytest.param(pod(init=(sidecar(),)), [running("mesh")], PENDING, id="only the sidecar runs"),
        pytest.param(pod(init=(sidecar(),)), [running("mesh"), running("app")], RUNNING, id="both run"),
        pytest.param(pod(init=(sidecar(),)), [exited("mesh", 1), running("app")], RUNNING, id="sidecar restarting"),
        pytest.param(
            pod(init=(sidecar(),), restart="Never"), [running("mesh"), exited("app")], RUNNING, id="sidecar still up"
        ),
        pytest.param(
            pod(init=(sidecar(),), restart="Never"), [exited("mesh", 1), exited("app")], SUCCEEDED, id="sidecar failed"
        ),
        pytest.param(
            pod(init=(container("i1", restartPolicyRules=[rule("Restart", 3)], restartPolicy="Never"),)),
            [exited("i1", 3)],
            PENDING,
            id="a rule restarts the init container",
        ),
    ],
)
def test_init_containers_and_sidecars(of: Pod, seen: list[ContainerView], expected: Phase) -> None:
    assert phase(of, *seen) is expected


def test_a_container_held_back_after_success_does_not_make_the_pod_succeed() -> None:
    assert phase(pod(), exited("app", 0), errors=("app",)) is RUNNING


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([exited("a"), exited("b")], SUCCEEDED),
        ([exited("a"), exited("b", 137)], FAILED),
        ([exited("a")], FAILED),
        ([], FAILED),
    ],
)
def test_a_pod_that_was_stopped_for_good_has_a_final_phase(seen: list[ContainerView], expected: Phase) -> None:
    assert phase(both(), *seen, ended=True) is expected


def test_a_static_pod_that_was_stopped_has_the_phase_of_its_containers() -> None:
    assert phase(pod(metadata=STATIC), exited("app", 137), ended=True) is RUNNING
    assert phase(pod(metadata=STATIC, restart="Never"), exited("app", 137), ended=True) is FAILED


def test_containers_that_vanished_count_as_failed() -> None:
    look = view(box())
    assert pod_phase(pod(restart="Never"), look, {}, False, ReportedContainers({"app": 137})) is FAILED
    assert pod_phase(pod(), look, {}, False, ReportedContainers({"app": 137})) is RUNNING


def test_only_the_newest_sandbox_reports_whether_init_containers_are_done() -> None:
    of = pod(init=I1)
    assert not has_initialized(of, None)
    assert not has_initialized(of, view())
    assert has_initialized(of, view(box(), running()))
    assert has_initialized(of, view(box(), exited()))
    assert not has_initialized(of, view(box(), created()))
    assert not has_initialized(of, view(box(), exited("i1")))
    assert not has_initialized(of, view(box(0, ready=False), box(1), exited(sandbox=0)))


def test_terminal_phases() -> None:
    assert [phase.value for phase in Phase if phase.is_terminal] == ["Succeeded", "Failed"]
