"""What to do with one pod: the sandbox, the regular containers, what is killed and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from act.pods.scenes import WALL, box, container, created, exited, pod, probes, rule, running, sidecar, unknown, view
from act.runtime.planning import is_ended, kills, plan

from pykubelet.act.runtime.plan.plan import ContainerKill, KillCause
from pykubelet.base.kit.values import replace
from pykubelet.base.model.observed import NetworkMode, PodView
from pykubelet.base.model.probes import ProbeResult, ProbeResults

# The sandbox


def test_a_pod_never_seen_gets_a_sandbox_and_all_its_containers() -> None:
    made = plan(pod(container("a"), container("b")), view())
    assert (made.create_sandbox, made.attempt, made.starts) == (True, 0, ("a", "b"))


def test_a_pod_with_init_containers_starts_with_the_first_of_them() -> None:
    made = plan(pod(init=(container("i1"), container("i2"))), view())
    assert (made.create_sandbox, made.starts, made.holding) == (True, ("i1",), "i1")


@pytest.mark.parametrize(
    ("host_network", "boxes", "attempt"),
    [
        pytest.param(False, [box(0, ready=False)], 1, id="not ready"),
        pytest.param(False, [box(0), box(1, ready=False)], 2, id="an older one ready, the newest not"),
        pytest.param(False, [box(0), box(1)], 2, id="two ready"),
        pytest.param(False, [box(3, network=NetworkMode.NODE)], 4, id="on the host network, the pod not"),
        pytest.param(True, [box(3, network=NetworkMode.POD)], 4, id="off the host network, the pod on it"),
        pytest.param(False, [box(0, ip="")], 1, id="without an address"),
    ],
)
def test_sandboxes_that_will_not_do_are_replaced(host_network: bool, boxes: list[Any], attempt: int) -> None:
    made = plan(pod(hostNetwork=host_network), view(*boxes, running()))
    assert made.stop_pod, "what is left of the old one is stopped first"
    assert (made.create_sandbox, made.attempt, made.starts) == (True, attempt, ("app",))


@pytest.mark.parametrize(
    ("host_network", "boxes"),
    [
        (False, [box(0)]),
        (False, [box(0, ready=False), box(1)]),
        (True, [box(0, network=NetworkMode.NODE, ip="")]),
    ],
)
def test_a_good_sandbox_is_kept(host_network: bool, boxes: list[Any]) -> None:
    made = plan(pod(hostNetwork=host_network), view(*boxes, running(sandbox=boxes[-1].attempt)))
    assert made.is_empty
    assert made.sandbox == boxes[-1]


@pytest.mark.parametrize("left", [running(), exited(code=1), exited(code=0), unknown()])
def test_a_pod_that_never_restarts_ends_with_its_sandbox(left: Any) -> None:
    assert is_ended(plan(pod(restart="Never"), view(box(ready=False), left)))


@pytest.mark.parametrize(
    "fields", [{"restartPolicy": "OnFailure"}, {"restartPolicyRules": [rule("Restart", 3)]}], ids=["policy", "rules"]
)
def test_an_init_container_that_may_restart_gets_another_sandbox(fields: dict[str, Any]) -> None:
    of = pod(container("app"), init=(container("setup", **fields),), restart="Never")
    made = plan(of, view(box(ready=False), exited("setup", code=137)))
    assert (made.create_sandbox, made.starts) == (True, ("setup",))


def test_a_sidecar_does_not_keep_a_pod_that_never_restarts() -> None:
    of = pod(container("app"), init=(sidecar("mesh"),), restart="Never")
    assert is_ended(plan(of, view(box(ready=False), exited("mesh", code=137))))


@pytest.mark.parametrize("left", [(), (created(),)])
def test_a_pod_that_never_restarts_and_has_started_nothing_gets_another_sandbox(left: tuple[Any, ...]) -> None:
    made = plan(pod(restart="Never"), view(box(ready=False), *left))
    assert (made.create_sandbox, made.attempt, made.starts) == (True, 1, ("app",))


@pytest.mark.parametrize(
    "again",
    [
        {"restartPolicy": "OnFailure"},
        {"restartPolicy": "Always"},
        {"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", 3)]},
    ],
)
def test_one_container_that_may_restart_makes_a_new_sandbox_worth_while(again: dict[str, Any]) -> None:
    made = plan(pod(container("app", **again), restart="Never"), view(box(ready=False), exited(code=3)))
    assert made.create_sandbox


def test_after_a_sandbox_change_containers_that_succeeded_stay_ended() -> None:
    of = pod(container("done"), container("failed"), restart="OnFailure")
    made = plan(of, view(box(ready=False), exited("done"), exited("failed", code=2)))
    assert (made.create_sandbox, made.starts) == (True, ("failed",))


def test_after_a_sandbox_change_a_containers_own_policy_decides() -> None:
    of = pod(container("done", restartPolicy="OnFailure"), container("again"), restart="Always")
    made = plan(of, view(box(ready=False), exited("done"), exited("again")))
    assert made.starts == ("again",)


@pytest.mark.parametrize(
    ("own", "code", "starts"),
    [
        ({"restartPolicy": "Never"}, 1, False),
        ({"restartPolicy": "Never"}, 0, False),
        ({"restartPolicy": "OnFailure"}, 1, True),
        ({"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", 42)]}, 42, True),
        ({"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", 42)]}, 43, False),
        ({"restartPolicy": "Always"}, 1, True),
    ],
)
def test_a_new_sandbox_does_not_restart_what_its_rules_forbid(own: dict[str, Any], code: int, starts: bool) -> None:
    of = pod(container("ended", **own), container("other"), restart="Always")
    made = plan(of, view(box(ready=False), exited("ended", code=code), exited("other", code=137)))
    assert made.starts == (("ended", "other") if starts else ("other",))


def test_no_new_sandbox_when_everything_has_succeeded() -> None:
    assert is_ended(plan(pod(restart="OnFailure"), view(box(ready=False), exited(code=0))))


def test_a_new_sandbox_runs_the_init_containers_again() -> None:
    made = plan(pod(init=(container("i1"),)), view(box(ready=False), exited("i1"), running()))
    assert (made.create_sandbox, made.starts) == (True, ("i1",))


# Regular containers


@pytest.mark.parametrize(
    ("policy", "code", "starts"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_an_ended_container_starts_again_as_its_policy_requires(policy: str, code: int, starts: bool) -> None:
    of = pod(container("app"), container("other"), restart=policy)
    made = plan(of, view(box(), exited(code=code), running("other")))
    assert made.starts == (("app",) if starts else ())
    assert not made.stop_pod


@pytest.mark.parametrize(
    ("own", "code", "starts"),
    [
        ({"restartPolicy": "Always"}, 0, True),
        ({"restartPolicy": "OnFailure"}, 0, False),
        ({"restartPolicy": "OnFailure"}, 7, True),
        ({"restartPolicy": "Never"}, 7, False),
        ({"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", 7)]}, 7, True),
        ({"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", 7)]}, 8, False),
        ({"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", 7, operator="NotIn")]}, 8, True),
        ({"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", 7, operator="NotIn")]}, 7, False),
        ({"restartPolicy": "OnFailure", "restartPolicyRules": [rule("Restart", 42)]}, 1, True),
    ],
)
@pytest.mark.parametrize("pods_policy", ["Always", "Never"])
def test_a_containers_own_policy_and_rules_come_before_the_pods(
    own: dict[str, Any], code: int, starts: bool, pods_policy: str
) -> None:
    of = pod(container("app", **own), container("other"), restart=pods_policy)
    made = plan(of, view(box(), exited(code=code), running("other")))
    assert made.starts == (("app",) if starts else ())


def test_a_container_that_was_only_created_is_started() -> None:
    made = plan(pod(container("app"), container("other")), view(box(), created(), running("other")))
    assert (made.starts, made.kills) == (("app",), ())


def test_a_container_in_unknown_state_is_killed_and_started() -> None:
    made = plan(pod(), view(box(), unknown()))
    assert made.starts == ("app",)
    assert kills(made) == [("app-0", KillCause.UNKNOWN)]
    assert made.kills[0].message == 'Container is in "unknown" state, try killing it before restart'


def test_a_pod_that_is_being_deleted_starts_nothing() -> None:
    of = pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert is_ended(plan(of, view(box(), exited(code=1))))


def test_running_containers_are_left_alone() -> None:
    made = plan(pod(), view(box(), running()))
    assert made.is_empty
    assert made.sandbox == box()


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_changed_definition_replaces_the_container_whatever_the_policy(policy: str) -> None:
    made = plan(pod(restart=policy), view(box(), running(hash_of="other")))
    assert made.kills == (
        ContainerKill(
            running(hash_of="other"), KillCause.CHANGED, "Container app definition changed, will be restarted"
        ),
    )
    assert made.starts == ("app",)


def test_a_container_without_a_recorded_hash_is_not_taken_for_changed() -> None:
    look = view(box(), running())
    bare = PodView(look.ref, look.sandboxes, tuple(_without_annotations(c) for c in look.containers))
    assert plan(pod(), bare).is_empty


def _without_annotations(instance: Any) -> Any:
    return replace(instance, annotations={})


@pytest.mark.parametrize(
    ("results", "cause", "message"),
    [
        (probes(liveness_app_0=ProbeResult.FAILURE), KillCause.LIVENESS, "Container app failed liveness probe"),
        (probes(startup_app_0=ProbeResult.FAILURE), KillCause.STARTUP, "Container app failed startup probe"),
    ],
)
def test_a_probe_that_gives_up_restarts_the_container(results: ProbeResults, cause: KillCause, message: str) -> None:
    made = plan(pod(), view(box(), running()), results)
    assert made.kills == (ContainerKill(running(), cause, f"{message}, will be restarted"),)
    assert made.starts == ("app",)
    made = plan(pod(container("app"), container("b"), restart="Never"), view(box(), running(), running("b")), results)
    assert made.kills == (ContainerKill(running(), cause, message),)
    assert made.starts == ()
    assert not made.stop_pod


@pytest.mark.parametrize("result", [ProbeResult.SUCCESS, ProbeResult.UNKNOWN])
def test_other_probe_results_kill_nothing(result: ProbeResult) -> None:
    assert plan(pod(), view(box(), running()), probes(liveness_app_0=result, startup_app_0=result)).is_empty


def test_readiness_never_kills() -> None:
    assert plan(pod(), view(box(), running()), probes(readiness_app_0=ProbeResult.FAILURE)).is_empty


def test_the_result_of_an_earlier_instance_does_not_count_for_the_present_one() -> None:
    look = view(box(), exited(attempt=0), running(attempt=1))
    assert plan(pod(), look, probes(liveness_app_0=ProbeResult.FAILURE)).is_empty


def test_the_newest_instance_counts() -> None:
    of = pod(container("app"), container("b"), restart="OnFailure")
    look = view(box(), exited(code=1, attempt=0), exited(code=0, attempt=1), running("b"))
    assert plan(of, look).is_empty


@pytest.mark.parametrize(("policy", "code"), [("Never", 0), ("Never", 1), ("OnFailure", 0)])
def test_nothing_kept_and_nothing_to_start_ends_the_pod(policy: str, code: int) -> None:
    assert is_ended(plan(pod(restart=policy), view(box(), exited(code=code))))


def test_the_last_container_failing_its_probe_for_good_ends_the_pod() -> None:
    of = pod(restart="Never")
    assert is_ended(plan(of, view(box(), running()), probes(liveness_app_0=ProbeResult.FAILURE)))


def test_a_container_with_rules_that_fails_its_probe_is_killed_and_its_exit_code_decides() -> None:
    ruled = container("app", restartPolicy="Never", restartPolicyRules=[rule("Restart", 137)])
    made = plan(pod(ruled), view(box(), running()), probes(liveness_app_0=ProbeResult.FAILURE))
    assert made.kills == (ContainerKill(running(), KillCause.LIVENESS, "Container app failed liveness probe"),)
    assert (made.starts, made.stop_pod) == ((), False)
    assert plan(pod(ruled), view(box(), exited(code=137))).starts == ("app",)
    assert is_ended(plan(pod(ruled), view(box(), exited(code=143))))


def test_with_the_last_regular_container_the_sidecars_end_too() -> None:
    of = pod(init=(sidecar(),), restart="Never")
    assert is_ended(plan(of, view(box(), running("mesh"), exited(code=0))))


def test_a_dead_sidecar_is_not_started_again_for_a_pod_that_has_ended() -> None:
    of = pod(init=(sidecar(),), restart="Never")
    assert is_ended(plan(of, view(box(), exited("mesh", code=1), exited(code=0))))


# Ephemeral containers


def test_an_ephemeral_container_is_started_once() -> None:
    of = pod(ephemeralContainers=[{"name": "debug", "image": "busybox:1"}])
    assert plan(of, view(box(), running())).start_ephemeral == ("debug",)
    for seen in (running("debug"), exited("debug", code=1), created("debug"), unknown("debug")):
        assert plan(of, view(box(), running(), seen)).is_empty


# RestartAllContainers

ALL = rule("RestartAllContainers", 88)


def test_a_rule_may_restart_all_containers_of_the_pod() -> None:
    of = pod(container("app", restartPolicyRules=[ALL]), container("b"), init=(container("i1"), sidecar()))
    look = view(
        box(), exited("i1"), running("mesh"), exited("app", code=88, attempt=1), exited("app", code=1), running("b")
    )
    made = plan(of, look)
    assert made.restart_all == "app"
    assert sorted(kills(made)) == [("b-0", KillCause.RESTART_ALL), ("mesh-0", KillCause.RESTART_ALL)]
    assert list(made.remove) == ["app-0", "b-0", "i1-0", "mesh-0", "app-1"], "the one that asked for it last"
    assert not made.starts
    assert not made.stop_pod


def test_a_container_that_was_killed_to_be_started_again_does_not_restart_all() -> None:
    of = pod(container("app", restartPolicyRules=[rule("RestartAllContainers", 137)]), container("b"))
    killed = exited("app", code=137)
    made = plan(of, view(box(), killed, running("b")), to_restart=(killed.id,))
    assert (made.restart_all, made.starts) == ("", ("app",))


def test_a_sidecar_that_ends_after_all_else_has_ended_for_good_does_not_restart_it() -> None:
    of = pod(init=(sidecar("watcher", restartPolicyRules=[ALL]),), restart="Never")
    done, late = exited("app", ended=WALL), exited("watcher", code=88, ended=WALL + 1)
    made = plan(of, view(box(), done, late))
    assert (made.restart_all, made.stop_pod) == ("", True)
    assert plan(of, view(box(), exited("app", ended=WALL + 2), late)).restart_all == "watcher"


def test_after_everything_is_removed_the_pod_starts_from_its_init_containers() -> None:
    of = pod(container("app", restartPolicyRules=[ALL]), init=(container("i1"),), restart="Never")
    made = plan(of, view(box()))
    assert (made.starts, made.create_sandbox) == (("i1",), False)


def test_ephemeral_containers_stay_when_all_restart() -> None:
    of = pod(container("app", restartPolicyRules=[ALL]), ephemeralContainers=[{"name": "debug", "image": "busybox:1"}])
    made = plan(of, view(box(), exited("app", code=88), running("debug")))
    assert (made.kills, list(made.remove)) == ((), ["app-0"])


def test_an_init_container_may_restart_all_too() -> None:
    of = pod(init=(container("i1", restartPolicyRules=[ALL]),))
    assert plan(of, view(box(), exited("i1", code=88))).restart_all


@pytest.mark.parametrize(
    "look",
    [
        view(box(), exited(code=1)),
        view(box(), exited(code=88, attempt=0), running(attempt=1)),
        view(box(0, ready=False), box(1), exited(code=88, sandbox=0)),
    ],
    ids=["another exit code", "an older instance", "another sandbox"],
)
def test_only_the_newest_end_in_this_sandbox_restarts_all(look: PodView) -> None:
    of = pod(container("app", restartPolicyRules=[ALL]))
    assert not plan(of, look).restart_all
