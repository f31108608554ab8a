"""The phase of a pod, rule by rule, for what the runtime shows."""

from __future__ import annotations

import pytest
from report.samples import container, exited, instance, make_pod, running, sandbox, sidecar, view

from pykubelet.base.api.core import Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, Pod
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView
from pykubelet.base.model.phase import Phase, ReportedContainers, pod_phase
from pykubelet.base.model.restart import restartable_pod

TWO = (container("a"), container("b"))
INIT = (container("i1"), container("i2"))


def two(policy: str = "Always", init: tuple[Container, ...] = ()) -> Pod:
    return make_pod(*TWO, init=init, restartPolicy=policy)


def test_a_container_that_an_extension_does_not_restart_counts_as_ended() -> None:
    """As with restartPolicy Never for this container alone."""
    pod, ended = two(), exited("a", 1)
    both = view(ended, exited("b", 1))
    assert pod_phase(pod, both, {}, ended=False) is Phase.RUNNING
    decided = restartable_pod(pod, both, {ended.id})
    assert [c.restartPolicy for c in decided.spec.containers] == ["Never", ""]
    assert pod_phase(decided, both, {}, ended=False) is Phase.RUNNING  # `b` starts again
    alone = make_pod(container("a"))
    assert pod_phase(restartable_pod(alone, view(ended), {ended.id}), view(ended), {}, ended=False) is Phase.FAILED
    newer = view(running("a", 1), ended)
    assert restartable_pod(alone, newer, {ended.id}) is alone  # it has started again since


CASES = {
    "nothing seen": (two(), None, Phase.PENDING),
    "no container yet": (two(), view(), Phase.PENDING),
    "one runs, one is missing": (two(), view(running("a")), Phase.PENDING),
    "one runs, one is only made": (two(), view(running("a"), instance("b", ObservedState.CREATED)), Phase.PENDING),
    "one runs, one is made again": (
        two(),
        view(running("a"), exited("b", 1), instance("b", ObservedState.CREATED, number=1)),
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
        view(exited("a"), instance("b", ObservedState.UNKNOWN)),
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


OLD, NEW = sandbox("s0", ready=False), sandbox("s1")
SIDE = make_pod(init=(sidecar(),))
CREATED = ObservedState.CREATED


def again(*containers: ContainerView, ready: bool = True) -> PodView:
    """The pod's second sandbox, after its only regular container failed in the first."""
    return view(exited("app", 1), *containers, sandboxes=(sandbox("s1", ready=ready), OLD))


#: pod, what the runtime shows, what is reported beyond it, phase
AGAIN: dict[str, tuple[Pod, PodView, ReportedContainers, Phase]] = {
    "the sidecar ended with the sandbox": (SIDE, again(exited("side", 137)), ReportedContainers(), Phase.RUNNING),
    "the sidecar is removed, its end is reported": (SIDE, again(), ReportedContainers({"side": 137}), Phase.RUNNING),
    "nothing is known of the sidecar": (SIDE, again(), ReportedContainers(), Phase.PENDING),
    "the sidecar is made for the first time": (
        SIDE,
        again(instance("side", CREATED)),
        ReportedContainers(),
        Phase.PENDING,
    ),
    "the sidecar is made again": (
        SIDE,
        again(exited("side", 1), instance("side", CREATED, number=1, sandbox="s1")),
        ReportedContainers(),
        Phase.RUNNING,
    ),
    "the sidecar is made again, its end is reported": (
        SIDE,
        again(instance("side", CREATED, number=1, sandbox="s1")),
        ReportedContainers({"side": 1}),
        Phase.RUNNING,
    ),
    "the sidecar runs and has not started": (
        SIDE,
        again(running("side", 1, sandbox="s1")),
        ReportedContainers(starting=frozenset({"side"})),
        Phase.PENDING,
    ),
    "the sidecar has started": (SIDE, again(running("side", 1, sandbox="s1")), ReportedContainers(), Phase.RUNNING),
    "the sidecar starts beside a regular container that is made": (
        SIDE,
        again(running("side", 1, sandbox="s1"), instance("app", CREATED, number=1, sandbox="s1")),
        ReportedContainers(starting=frozenset({"side"})),
        Phase.RUNNING,
    ),
    "the sidecar starts beside a regular container in a sandbox that is gone": (
        SIDE,
        again(running("side", 1, sandbox="s1"), running("app", 1, sandbox="s1"), ready=False),
        ReportedContainers(starting=frozenset({"side"})),
        Phase.PENDING,
    ),
    "init containers ended with the sandbox": (
        make_pod(init=INIT),
        again(exited("i1"), exited("i2")),
        ReportedContainers(),
        Phase.RUNNING,
    ),
    "init containers are removed": (make_pod(init=INIT), again(), ReportedContainers(), Phase.RUNNING),
    "an init container is made for the first time": (
        make_pod(init=INIT),
        again(instance("i1", CREATED, sandbox="s1")),
        ReportedContainers(),
        Phase.PENDING,
    ),
    "an init container is made again": (
        make_pod(init=INIT),
        again(instance("i1", CREATED, sandbox="s1")),
        ReportedContainers({"i1": 0}),
        Phase.RUNNING,
    ),
    "an init container runs again": (
        make_pod(init=INIT),
        again(running("i1", 1, sandbox="s1")),
        ReportedContainers(),
        Phase.PENDING,
    ),
    "an init container fails again": (
        make_pod(init=INIT),
        again(exited("i1", 1, 1, sandbox="s1")),
        ReportedContainers(),
        Phase.RUNNING,
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_phase_in_a_new_sandbox(name: str) -> None:
    pod, seen, known, expected = AGAIN[name]
    assert pod_phase(pod, seen, {}, ended=False, reported=known) is expected


@pytest.mark.parametrize(
    ("policy", "seen", "expected"),
    [
        ("Always", view(running()), Phase.PENDING),
        ("Always", view(exited()), Phase.PENDING),
        ("OnFailure", view(exited("app", 1)), Phase.PENDING),
        ("OnFailure", view(exited()), Phase.SUCCEEDED),
        ("Never", view(exited("app", 1)), Phase.FAILED),
    ],
)
def test_a_sidecar_that_nothing_knows_is_waited_for_unless_the_pod_is_over(
    policy: str, seen: PodView, expected: Phase
) -> None:
    assert pod_phase(make_pod(init=(sidecar(),), restartPolicy=policy), seen, {}, ended=False) is expected


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("Always", 0, Phase.RUNNING),
        ("OnFailure", 0, Phase.SUCCEEDED),
        ("OnFailure", 1, Phase.RUNNING),
        ("Never", 0, Phase.SUCCEEDED),
        ("Never", 1, Phase.FAILED),
    ],
)
def test_a_container_that_is_gone_counts_as_it_was_reported(policy: str, code: int, expected: Phase) -> None:
    pod = make_pod(restartPolicy=policy)
    assert pod_phase(pod, view(), {}, ended=False, reported=ReportedContainers({"app": code})) is expected


def test_a_container_made_after_an_end_that_is_only_reported_is_made_again() -> None:
    made = view(instance("app", CREATED, number=1))
    assert pod_phase(make_pod(), made, {}, ended=False) is Phase.PENDING
    assert pod_phase(make_pod(), made, {}, ended=False, reported=ReportedContainers({"app": 1})) is Phase.RUNNING


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
    assert pod_phase(pod, view(), {}, ended=False, reported=ReportedContainers({"app": 137})) is expected
