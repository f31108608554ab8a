"""Init containers and sidecars: how far the pod has come, and what that leads to."""

from __future__ import annotations

from typing import Any

import pytest
from act.pods.scenes import box, container, created, exited, pod, probes, rule, running, sidecar, unknown, view
from act.runtime.planning import is_ended, kills, plan

from pykubelet.act.runtime.plan.plan import KillCause
from pykubelet.base.api.core import Pod
from pykubelet.base.model.probes import ProbeResult

STARTUP = {"startupProbe": {"exec": {"command": ["true"]}}}


def two(restart: str = "Always", **first: Any) -> Pod:
    return pod(container("app"), init=(container("i1", **first), container("i2")), restart=restart)


# Ordinary init containers, one after the other


def test_the_first_one_is_started_in_a_new_sandbox() -> None:
    made = plan(two(), view(box()))
    assert (made.starts, made.holding) == (("i1",), "i1")


def test_a_running_one_holds_the_rest() -> None:
    made = plan(two(), view(box(), running("i1")))
    assert made.is_empty
    assert made.holding == "i1"
    assert plan(two(), view(box(), exited("i1"), running("i2"))).is_empty


def test_one_that_succeeded_is_followed_by_the_next() -> None:
    made = plan(two(), view(box(), exited("i1")))
    assert (made.starts, made.holding) == (("i2",), "i2")


def test_after_the_last_one_the_regular_containers_start() -> None:
    made = plan(two(), view(box(), exited("i1"), exited("i2")))
    assert (made.starts, made.holding) == (("app",), "")


@pytest.mark.parametrize(
    ("policy", "own", "starts"),
    [
        ("Always", {}, True),
        ("OnFailure", {}, True),
        ("Never", {}, False),
        ("Never", {"restartPolicyRules": [rule("Restart", 3)], "restartPolicy": "Never"}, True),
        ("Never", {"restartPolicyRules": [rule("Restart", 4)], "restartPolicy": "Never"}, False),
        ("Always", {"restartPolicy": "Never"}, False),
        ("Never", {"restartPolicy": "OnFailure"}, True),
    ],
)
def test_one_that_failed_is_started_again_or_ends_the_pod(policy: str, own: dict[str, Any], starts: bool) -> None:
    made = plan(two(policy, **own), view(box(), exited("i1", code=3)))
    if starts:
        assert (made.starts, made.holding) == (("i1",), "i1")
    else:
        assert is_ended(made)


@pytest.mark.parametrize(("policy", "starts"), [("Always", True), ("OnFailure", True), ("Never", False)])
def test_one_that_was_oom_killed_has_failed_whatever_its_exit_code(policy: str, starts: bool) -> None:
    """The kernel may kill a child, and the container's first process ends with 0."""
    made = plan(two(policy), view(box(), exited("i1", reason="OOMKilled")))
    if starts:
        assert (made.starts, made.holding) == (("i1",), "i1")
    else:
        assert is_ended(made)


def test_one_that_was_only_created_is_started() -> None:
    made = plan(two(), view(box(), created("i1")))
    assert (made.starts, made.kills) == (("i1",), ())


def test_one_in_unknown_state_is_killed_and_started() -> None:
    made = plan(two(), view(box(), unknown("i1")))
    assert (made.starts, kills(made)) == (("i1",), [("i1-0", KillCause.UNKNOWN)])


def test_one_in_unknown_state_ends_a_pod_that_never_restarts() -> None:
    assert is_ended(plan(two("Never"), view(box(), unknown("i1"))))


def test_what_ran_in_an_earlier_sandbox_does_not_count() -> None:
    made = plan(two(), view(box(0, ready=False), box(1), exited("i1"), exited("i2"), exited("app", code=1)))
    assert made.starts == ("i1",)


def test_a_pod_whose_containers_run_does_not_start_init_containers_again() -> None:
    assert plan(two(), view(box(), running())).is_empty
    assert plan(two(), view(box(), exited("i1", code=1), running())).is_empty


def test_a_pod_that_has_run_goes_on_without_its_init_containers() -> None:
    assert plan(two(), view(box(), exited(code=1))).starts == ("app",)


def test_older_instances_of_init_containers_are_removed() -> None:
    look = view(box(), exited("i1", attempt=2), exited("i1", code=1, attempt=1), exited("i1", code=1), running("i2"))
    made = plan(two(), look)
    assert made.remove == ("i1-1", "i1-0")
    assert not made.starts


def test_how_a_sidecar_that_runs_again_ended_stays_with_its_log() -> None:
    sidecars = (running("s1", attempt=2), exited("s1", code=1, attempt=1), exited("s1", code=1))
    made = plan(pod(init=(sidecar("s1"),)), view(box(), *sidecars, exited(code=1)))
    assert (made.starts, made.remove) == (("app",), ("s1-0",))


# Sidecars


def test_a_sidecar_that_runs_lets_the_next_one_start() -> None:
    of = pod(init=(sidecar("s1"), container("i2")))
    made = plan(of, view(box(), running("s1")))
    assert (made.starts, made.holding) == (("i2",), "i2")


def test_the_last_sidecar_running_lets_the_regular_containers_start() -> None:
    assert plan(pod(init=(sidecar("s1"),)), view(box(), running("s1"))).starts == ("app",)


def test_a_sidecar_that_has_not_passed_its_startup_probe_holds_the_rest() -> None:
    of = pod(init=(sidecar("s1", **STARTUP), container("i2")))
    made = plan(of, view(box(), running("s1")), probes())
    assert made.is_empty
    assert made.holding == "s1"
    assert plan(of, view(box(), running("s1")), probes(startup_s1_0=ProbeResult.UNKNOWN)).is_empty
    assert plan(of, view(box(), running("s1")), probes(startup_s1_0=ProbeResult.SUCCESS)).starts == ("i2",)


@pytest.mark.parametrize("kind", ["startup", "liveness"])
def test_a_sidecar_whose_probe_gave_up_is_started_again(kind: str) -> None:
    of = pod(init=(sidecar("s1", **STARTUP), container("i2")), restart="Never")
    made = plan(of, view(box(), running("s1")), probes(**{f"{kind}_s1_0": ProbeResult.FAILURE}))
    assert kills(made) == [("s1-0", KillCause(kind))]
    assert made.kills[0].message == f"Init container s1 failed {kind} probe"
    assert (made.starts, made.holding) == (("s1",), "s1")


def test_a_sidecar_whose_definition_changed_is_replaced() -> None:
    made = plan(pod(init=(sidecar("s1"),)), view(box(), running("s1", hash_of="other"), running()))
    assert (kills(made), made.starts) == ([("s1-0", KillCause.CHANGED)], ("s1",))
    assert made.kills[0].message == "Init container s1 definition changed"


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_sidecar_that_ended_is_started_again_while_the_pod_starts(policy: str, code: int) -> None:
    made = plan(pod(init=(sidecar("s1"), container("i2")), restart=policy), view(box(), exited("s1", code=code)))
    assert (made.starts, made.holding) == (("s1",), "s1")


@pytest.mark.parametrize("seen", [exited("s1"), exited("s1", code=1), created("s1")])
def test_a_sidecar_that_ended_is_started_again_beside_running_containers(seen: Any) -> None:
    made = plan(pod(init=(sidecar("s1"),)), view(box(), seen, running()))
    assert made.starts == ("s1",)


def test_a_sidecar_in_unknown_state_is_killed_and_started() -> None:
    made = plan(pod(init=(sidecar("s1"),), restart="Never"), view(box(), unknown("s1"), running()))
    assert (kills(made), made.starts) == ([("s1-0", KillCause.UNKNOWN)], ("s1",))
    assert made.kills[0].message == 'Init container is in "unknown" state, try killing it before restart'


def test_a_sidecar_that_vanished_is_started_beside_running_containers() -> None:
    assert plan(pod(init=(sidecar("s1"),)), view(box(), running())).starts == ("s1",)


def test_sidecars_before_a_running_init_container_are_kept_up() -> None:
    of = pod(init=(sidecar("s1"), sidecar("s2"), container("i3")))
    made = plan(of, view(box(), exited("s1", code=1), running("s2"), running("i3")))
    assert (made.starts, made.holding) == (("s1",), "i3")


def test_sidecars_are_started_in_order_before_what_comes_next() -> None:
    of = pod(init=(sidecar("s1"), container("i2"), sidecar("s3")))
    made = plan(of, view(box(), exited("s1", code=1), exited("i2")))
    assert made.starts == ("s1", "s3")


def test_an_init_container_that_was_killed_to_be_started_again_is_started_whatever_its_exit_code() -> None:
    of = pod(init=(container("i1"), container("i2")), restart="Never")
    for code in (0, 137):
        killed = exited("i1", code=code)
        assert plan(of, view(box(), killed), to_restart={killed.id}).starts == ("i1",)


def test_a_sidecar_with_an_action_for_all_containers_takes_all_along() -> None:
    of = pod(init=(sidecar("s1", restartPolicyRules=[rule("RestartAllContainers", 9)]),))
    assert plan(of, view(box(), exited("s1", code=9), running())).restart_all
