"""The phase of a pod, rule by rule, for what the runtime shows."""

from __future__ import annotations

import pytest
from report.samples import container, exited, instance, make_pod, running, sandbox, sidecar, view

from pykubelet.base.api.core import Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, Pod
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.observed import ContainerState, PodView
from pykubelet.base.model.phase import Phase, pod_phase

TWO = (container("a"), container("b"))
INIT = (container("i1"), container("i2"))


def two(policy: str = "Always", init: tuple[Container, ...] = ()) -> Pod:
    return make_pod(*TWO, init=init, restartPolicy=policy)


CASES = {
    "nothing seen": (two(), None, Phase.PENDING),
    "no container yet": (two(), view(), Phase.PENDING),
    "one runs, one is missing": (two(), view(running("a")), Phase.PENDING),
    "one runs, one is only made": (two(), view(running("a"), instance("b", ContainerState.CREATED)), Phase.PENDING),
    "one runs, one is made again": (
        two(),
        view(running("a"), exited("b", 1), instance("b", ContainerState.CREATED, number=1)),
        Phase.RUNNING,
    ),
    "both run": (two(), view(running("a"), running("b")), Phase.RUNNING),
    "one runs, one failed": (two("Never"), view(running("a"), exited("b", 1)), Phase.RUNNING),
    "all ended, Always": (two(), view(exited("a"), exited("b")), Phase.RUNNING),
    "all succeeded, OnFailure": (two("OnFailure"), view(exited("a"), exited("b")), Phase.SUCCEEDED),
    "one failed, OnFailure": (two("OnFailure"), view(exited("a"), exited("b", 1)), Phase.RUNNING),
    "all succeeded, Never": (two("Never"), view(exited("a"), exited("b")), Phase.SUCCEEDED),
    "one failed, Never": (two("Never"), view(exited("a"), exited("b", 3)), Phase.FAILED),
    "unknown state, Never": (
        two("Never"),
        view(exited("a"), instance("b", ContainerState.UNKNOWN)),
        Phase.FAILED,
    ),
    "init running": (two(init=INIT), view(running("i1")), Phase.PENDING),
    "init failed, Always": (two(init=INIT), view(exited("i1", 1)), Phase.PENDING),
    "init failed, Never": (two("Never", INIT), view(exited("i1", 1)), Phase.FAILED),
    "init done, others missing": (two(init=INIT), view(exited("i1"), exited("i2")), Phase.PENDING),
    "init done and removed, others run": (two(init=INIT), view(running("a"), running("b")), Phase.RUNNING),
    "init runs again in a new sandbox": (
        two(init=INIT),
        view(
            running("i1", 1, sandbox="s1"),
            exited("i1"),
            exited("i2"),
            exited("a", 1),
            exited("b", 1),
            sandboxes=(sandbox("s1"), sandbox("s0", ready=False)),
        ),
        Phase.PENDING,
    ),
    "sidecar not there yet": (make_pod(init=(sidecar(),)), view(), Phase.PENDING),
    "sidecar restarts beside a running pod": (
        make_pod(init=(sidecar(),)),
        view(running(), exited("side", 1)),
        Phase.RUNNING,
    ),
    "sidecar outlives the rest": (
        make_pod(init=(sidecar(),), restartPolicy="Never"),
        view(exited(), running("side")),
        Phase.RUNNING,
    ),
    "sidecar ended after the rest": (
        make_pod(init=(sidecar(),), restartPolicy="Never"),
        view(exited(), exited("side", 137)),
        Phase.SUCCEEDED,
    ),
    "container policy Always in a Never pod": (
        make_pod(container(restartPolicy="Always"), restartPolicy="Never"),
        view(exited("app", 1)),
        Phase.RUNNING,
    ),
    "container policy Never in an Always pod": (
        make_pod(container(restartPolicy="Never")),
        view(exited("app", 1)),
        Phase.FAILED,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_phase(name: str) -> None:
    pod, seen, expected = CASES[name]
    assert pod_phase(pod, seen, {}, ended=False) is expected


def rule(code: int, action: str) -> Container:
    codes = ContainerRestartRuleOnExitCodes(operator="In", values=(code,))
    return container(restartPolicyRules=(ContainerRestartRule(action=action, exitCodes=codes),))


@pytest.mark.parametrize(("action", "code"), [("Restart", 7), ("RestartAllContainers", 7)])
def test_a_rule_that_restarts_keeps_the_pod_running(action: str, code: int) -> None:
    pod = make_pod(rule(7, action), restartPolicy="Never")
    assert pod_phase(pod, view(exited("app", code)), {}, ended=False) is Phase.RUNNING
    assert pod_phase(pod, view(exited("app", code + 1)), {}, ended=False) is Phase.FAILED


ENDED: tuple[tuple[PodView | None, Phase], ...] = (
    (None, Phase.FAILED),
    (view(exited()), Phase.SUCCEEDED),
    (view(exited("app", 1)), Phase.FAILED),
)


@pytest.mark.parametrize(("seen", "expected"), ENDED)
def test_a_pod_of_the_api_that_was_stopped_is_terminal_whatever_its_policy(
    seen: PodView | None, expected: Phase
) -> None:
    assert pod_phase(make_pod(static=False), seen, {}, ended=True) is expected


def test_a_static_pod_that_was_stopped_keeps_the_phase_of_its_containers() -> None:
    assert pod_phase(make_pod(), view(exited()), {}, ended=True) is Phase.RUNNING


def test_success_that_is_held_back_from_a_restart_is_no_success() -> None:
    errors = {"app": StartError("CrashLoopBackOff", "back-off")}
    pod = make_pod(restartPolicy="Always")
    assert pod_phase(pod, view(exited()), errors, ended=False) is Phase.RUNNING


@pytest.mark.parametrize(("policy", "expected"), [("Always", Phase.RUNNING), ("Never", Phase.FAILED)])
def test_a_vanished_container_counts_as_failed(policy: str, expected: Phase) -> None:
    pod = make_pod(restartPolicy=policy)
    assert pod_phase(pod, view(), {}, ended=False, vanished={"app"}) is expected
