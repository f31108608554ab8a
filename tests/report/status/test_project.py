"""Phase, conditions, addresses and times of a pod's status."""

from __future__ import annotations

from typing import Any

import pytest
from report.samples import (
    WALL,
    container,
    exited,
    facts,
    host_sandbox,
    instance,
    make_pod,
    running,
    sandbox,
    sidecar,
    view,
)

from pykubelet.base.api import core
from pykubelet.base.api.codec import to_object
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import KillReason, Stage, StatusOverride
from pykubelet.base.model.observed import ObservedState, PodView
from pykubelet.base.model.probes import ProbeKind, ProbeResults
from pykubelet.report.status.project import project_status

NOW = "2026-01-02T03:04:10Z"
LATER = "2026-01-02T03:05:05Z"
CREATED = ObservedState.CREATED


def conditions(status: core.PodStatus) -> dict[str, tuple[str, ...]]:
    """By type: status, then reason and message where there are any."""
    return {c.type: tuple(part for part in (c.status, c.reason, c.message) if part) for c in status.conditions}


def shown(pod: core.Pod, seen: PodView | None = None, stage: Stage = Stage.SYNCING, **fields: Any) -> core.PodStatus:
    return project_status(facts(pod, seen, stage, **fields))


# Conditions


def test_a_ready_pod() -> None:
    status = shown(make_pod(), view(running()))
    assert conditions(status) == {
        "PodReadyToStartContainers": ("True",),
        "Initialized": ("True",),
        "Ready": ("True",),
        "ContainersReady": ("True",),
        "PodScheduled": ("True",),
    }
    assert [c.type for c in status.conditions] == list(conditions(status))
    assert {c.lastTransitionTime for c in status.conditions} == {NOW}


def test_a_new_pod() -> None:
    unready = ("False", "ContainersNotReady", "containers with unready status: [a b]")
    assert conditions(shown(make_pod(container("a"), container("b")), view(sandboxes=()))) == {
        "PodReadyToStartContainers": ("False", "PodSandboxNotReady", "no pod sandbox exists"),
        "Initialized": ("True",),
        "Ready": unready,
        "ContainersReady": unready,
        "PodScheduled": ("True",),
    }


def test_init_containers_hold_the_pod_back() -> None:
    pod = make_pod(init=(container("i1"), container("i2"), sidecar("s")))
    incomplete = conditions(shown(pod, view(exited("i1"), running("i2"))))
    assert incomplete["Initialized"] == (
        "False",
        "ContainersNotInitialized",
        "containers with incomplete status: [i2 s]",
    )
    assert incomplete["ContainersReady"][2] == "containers with unready status: [s app]"
    done = conditions(shown(pod, view(exited("i1"), exited("i2"), running("s"))))
    assert done["Initialized"] == ("True",)


def test_a_pod_that_has_begun_stays_initialized_while_a_sidecar_restarts() -> None:
    pod = make_pod(init=(sidecar("s"),))
    found = conditions(shown(pod, view(running(), exited("s", 1))))
    assert found["Initialized"] == ("True",)
    assert found["Ready"] == ("False", "ContainersNotReady", "containers with unready status: [s]")


def test_a_pod_that_was_initialized_stays_so_while_all_its_containers_start_again() -> None:
    pod = make_pod(init=(container("i1"),))
    before = shown(pod, view(exited("i1"), running()))
    for seen in (view(), view(running("i1")), view(exited("i1", 1))):
        again = shown(pod, seen, old=before, restarting_all=True)
        assert conditions(again)["Initialized"] == ("True",)
        assert conditions(again)["Ready"][0] == "False"


@pytest.mark.parametrize(("code", "reason"), [(0, "PodCompleted"), (1, "PodFailed")])
def test_a_pod_that_ended(code: int, reason: str) -> None:
    seen = view(exited("app", code), sandboxes=(sandbox(ready=False),))
    found = conditions(shown(make_pod(restartPolicy="Never"), seen, Stage.TERMINATING))
    assert found["Ready"] == found["ContainersReady"] == ("False", reason)
    assert found["Initialized"] == (("True", "PodCompleted") if code == 0 else ("True",))
    assert found["PodReadyToStartContainers"] == ("False", "PodSandboxNotReady", "pod sandbox is not ready")


def test_readiness_gates() -> None:
    gates = tuple(core.PodReadinessGate(conditionType=name) for name in ("good", "bad", "missing"))
    own = (core.PodCondition(type="good", status="True"), core.PodCondition(type="bad", status="False"))
    pod = core.Pod(
        metadata=make_pod().metadata,
        spec=make_pod(readinessGates=gates).spec,
        status=core.PodStatus(conditions=own),
    )
    found = shown(pod, view(running()))
    assert conditions(found)["Ready"] == (
        "False",
        "ReadinessGatesNotReady",
        'the status of pod readiness gate "bad" is not "True", but False, '
        'corresponding condition of pod readiness gate "missing" does not exist.',
    )
    assert conditions(found)["ContainersReady"] == ("True",)
    assert found.conditions[:2] == own


def test_the_ready_condition_names_a_hundred_readiness_gates() -> None:
    gates = tuple(core.PodReadinessGate(conditionType=f"example.com/{number}") for number in range(15_000))
    found = conditions(shown(make_pod(readinessGates=gates), view(running())))["Ready"]
    assert found[:2] == ("False", "ReadinessGatesNotReady")
    assert found[2].endswith(' gate "example.com/99" does not exist., and 14900 more')
    assert found[2].count("corresponding condition of pod readiness gate") == 100


OTHER_NETWORK = "pod sandbox has a different network namespace mode than the pod"
SANDBOXES = {
    "ready with an address": ((sandbox(),), False, ""),
    "none": ((), False, "no pod sandbox exists"),
    "not ready": ((sandbox(ready=False),), False, "pod sandbox is not ready"),
    "two ready": ((sandbox("s1"), sandbox("s0")), False, "multiple pod sandboxes are ready"),
    "no address": ((sandbox(ips=()),), False, "pod sandbox has no IP address"),
    "host network": ((host_sandbox(),), True, ""),
    "host network where the pod wants its own": ((host_sandbox(),), False, OTHER_NETWORK),
    "own network where the pod wants the host's": ((sandbox(),), True, OTHER_NETWORK),
}


@pytest.mark.parametrize("name", SANDBOXES)
def test_ready_to_start_containers_means_a_sandbox_that_can_stay(name: str) -> None:
    sandboxes, host_network, problem = SANDBOXES[name]
    pod, seen = make_pod(hostNetwork=host_network), view(sandboxes=sandboxes)
    expected = ("False", "PodSandboxNotReady", problem) if problem else ("True",)
    assert conditions(shown(pod, seen))["PodReadyToStartContainers"] == expected
    before_1_37 = conditions(shown(pod, seen, explains_sandbox=False))
    assert before_1_37["PodReadyToStartContainers"] == expected[:1]


def test_without_its_gate_nothing_is_reported_for_the_sandbox() -> None:
    assert "PodReadyToStartContainers" not in conditions(shown(make_pod(), reports_sandbox=False))


def test_the_transition_time_changes_only_with_the_status() -> None:
    pod = make_pod()
    first = shown(pod, view(running()))
    same = shown(pod, view(running()), old=first, now_wall=WALL + 60)
    assert same.conditions == first.conditions
    changed = shown(pod, view(exited("app", 1)), old=same, now_wall=WALL + 60)
    times = {c.type: c.lastTransitionTime for c in changed.conditions}
    assert times["Ready"] == times["ContainersReady"] == LATER
    assert times["PodScheduled"] == times["Initialized"] == NOW


def test_restarting_all_containers_is_a_condition_of_pods_with_such_a_rule_only() -> None:
    pod = make_pod(container(restartPolicyRules=(core.ContainerRestartRule(action="RestartAllContainers"),)))
    assert conditions(shown(pod, view(running())))["AllContainersRestarting"] == ("False",)
    assert conditions(shown(pod, view(running()), restarting_all=True))["AllContainersRestarting"] == (
        "True",
        "RestartAllContainersStarted",
        "container exited with restart policy rule",
    )


@pytest.mark.parametrize(("code", "reason"), [(0, "PodCompleted"), (1, "PodFailed")])
def test_after_the_end_the_condition_of_restarts_states_how_it_ended(code: int, reason: str) -> None:
    rules = (core.ContainerRestartRule(action="RestartAllContainers"),)
    pod = make_pod(container(restartPolicyRules=rules), restartPolicy="Never")
    found = conditions(shown(pod, view(exited("app", code)), Stage.TERMINATING))
    assert found["AllContainersRestarting"] == ("False", reason)


def test_the_generation_is_reported_where_the_pod_has_one() -> None:
    status = shown(make_pod(meta={"generation": 3}), view(running()))
    assert status.observedGeneration == 3
    assert {c.observedGeneration for c in status.conditions} == {3}
    assert "observedGeneration" not in to_object(shown(make_pod(), view(running())))


# An init container that is OOM-killed and exits with 0

EATEN = exited("eater", reason="OOMKilled")
CRASHES = {"eater": ("CrashLoopBackOff", "back-off 10s")}


def eating(policy: str) -> core.Pod:
    return make_pod(init=(container("eater"),), restartPolicy=policy, static=False)


def init_state(status: core.PodStatus) -> dict[str, Any]:
    (found,) = status.initContainerStatuses
    assert found.state is not None
    shown: dict[str, Any] = to_object(found.state)
    return shown


def test_a_pod_whose_init_container_was_oom_killed_has_failed_and_was_never_initialized() -> None:
    before = shown(eating("Never"), view(running("eater")))
    status = shown(eating("Never"), view(EATEN), Stage.TERMINATED, old=before)
    assert status.phase == "Failed"
    assert conditions(status)["Initialized"] == (
        "False",
        "ContainersNotInitialized",
        "containers with incomplete status: [eater]",
    )
    assert not status.initContainerStatuses[0].ready
    assert init_state(status)["terminated"]["reason"] == "OOMKilled"
    (app,) = status.containerStatuses
    assert to_object(app.state) == {"waiting": {"reason": "PodInitializing"}}, "it never began"


@pytest.mark.parametrize("policy", ["OnFailure", "Always"])
def test_an_oom_killed_init_container_in_back_off_is_waiting(policy: str) -> None:
    before = shown(eating(policy), view(running("eater")))
    status = shown(eating(policy), view(EATEN), old=before, errors=CRASHES)
    assert init_state(status)["waiting"]["reason"] == "CrashLoopBackOff"
    last = status.initContainerStatuses[0].lastState
    assert last is not None
    assert last.terminated is not None
    assert (last.terminated.exitCode, last.terminated.reason) == (0, "OOMKilled")
    assert conditions(status)["Initialized"][0] == "False"
    assert status.phase == "Pending"


def test_an_exit_that_the_api_server_takes_for_the_end_is_not_reported_of_an_init_container_that_starts_again() -> None:
    """The API server refuses that a container with exit code 0 and OnFailure stops being terminated."""
    pod = eating("OnFailure")
    status = shown(pod, view(running("eater")))
    for seen in (view(EATEN), view(running("eater", 1), EATEN)):
        status = shown(pod, seen, old=status)
        assert "running" in init_state(status)
    assert status.initContainerStatuses[0].restartCount == 1


# Phase


def watched_pod() -> core.Pod:
    """A pod whose sidecar restarts all containers when it exits with 88; nothing else of it restarts."""
    codes = core.ContainerRestartRuleOnExitCodes(operator="In", values=(88,))
    rules = (core.ContainerRestartRule(action="RestartAllContainers", exitCodes=codes),)
    init = (container("setup"), sidecar("watcher", restartPolicyRules=rules))
    return make_pod(init=init, restartPolicy="Never", static=False)


def test_a_pod_whose_containers_are_all_being_restarted_has_not_ended() -> None:
    done, dead = exited("setup"), exited("watcher", 88)
    steps: list[tuple[PodView, dict[str, Any], str]] = [
        (view(done, running("watcher"), running()), {}, "Running"),
        (view(done, dead, running()), {}, "Running"),
        (view(done, dead, exited("app", 137)), {"restarting_all": True}, "Running"),
        (view(dead), {"restarting_all": True}, "Running"),
        (view(), {"restarting_all": True}, "Running"),
        (view(), {"restarting_all": True, "errors": {"watcher": ("CrashLoopBackOff", "")}}, "Running"),
        (view(running("setup", 1)), {}, "Pending"),
        (view(exited("setup", number=1), running("watcher", 1)), {}, "Pending"),
        (view(exited("setup", number=1), running("watcher", 1), running(number=1)), {}, "Running"),
    ]
    status = None
    for seen, fields, phase in steps:
        status = shown(watched_pod(), seen, old=status, **fields)
        assert status.phase == phase
        assert conditions(status)["Ready"][1:2] in ((), ("ContainersNotReady",))


@pytest.mark.parametrize("before", ["Pending", "Running"])
def test_a_pod_has_ended_when_its_worker_has_decided_so(before: str) -> None:
    pod, seen = make_pod(restartPolicy="Never"), view(exited())
    assert shown(pod, seen, old=core.PodStatus(phase=before)).phase == before
    assert shown(pod, seen, Stage.TERMINATING, old=core.PodStatus(phase=before)).phase == "Succeeded"


def test_the_first_status_of_a_pod_that_another_run_of_the_agent_has_seen_end() -> None:
    pod = make_pod(init=(container("i1"),), restartPolicy="Never")
    assert shown(pod, view(exited("i1", 1))).phase == "Pending"
    assert shown(pod, view(exited("i1"), exited("app", 1))).phase == "Running"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminal_phase_never_changes_back(phase: str) -> None:
    old = core.PodStatus(phase=phase, reason="Because", message="so")
    status = shown(make_pod(), view(running()), old=old)
    assert (status.phase, status.reason, status.message) == (phase, "Because", "so")


def test_reason_and_message_go_with_the_phase() -> None:
    old = core.PodStatus(phase="Pending", reason="Because", message="so")
    assert shown(make_pod(), view(), old=old).reason == "Because"
    changed = shown(make_pod(), view(running()), old=old)
    assert (changed.phase, changed.reason, changed.message) == ("Running", "", "")


def test_a_kill_that_imposes_a_phase_wins() -> None:
    override = StatusOverride("Failed", "Evicted", "The node was low on resource: memory. ")
    status = shown(make_pod(), view(running()), Stage.TERMINATING, override=override)
    assert (status.phase, status.reason, status.message) == ("Failed", "Evicted", override.message)
    assert conditions(status)["Ready"] == ("False", "PodFailed")


def test_a_rejected_pod_has_nothing_of_containers() -> None:
    override = StatusOverride("Failed", "OutOfpods", "Pod was rejected: too many")
    status = shown(make_pod(), view(sandboxes=()), override=override, kill_reason=KillReason.REJECTED)
    assert to_object(status) == {
        "phase": "Failed",
        "reason": "OutOfpods",
        "message": "Pod was rejected: too many",
        "qosClass": "BestEffort",
        "startTime": "2026-01-02T03:04:05Z",
    }


def test_a_pod_of_the_api_that_was_stopped_before_it_began_has_failed() -> None:
    assert shown(make_pod(static=False), None, Stage.FINISHED).phase == "Failed"


# Times and addresses


def test_the_start_time_stays() -> None:
    first = shown(make_pod(), None, started_at=WALL + 2)
    assert first.startTime == "2026-01-02T03:04:07Z"
    assert shown(make_pod(), None, started_at=WALL + 99, old=first).startTime == first.startTime


def test_after_a_restart_of_the_agent_the_sandbox_reports_the_start() -> None:
    assert shown(make_pod(), view(running()), started_at=WALL + 3600).startTime == "2026-01-02T03:04:05Z"


DUAL = ("10.0.0.9", "fd00::9")


@pytest.mark.parametrize(
    ("host", "expected"),
    [((), DUAL), (("192.0.2.1",), DUAL), (("2001:db8::1", "192.0.2.1"), ("fd00::9", "10.0.0.9"))],
)
def test_the_family_of_the_node_comes_first(host: tuple[str, ...], expected: tuple[str, ...]) -> None:
    status = shown(make_pod(), view(running(), sandboxes=(sandbox(ips=DUAL),)), host_ips=host)
    assert status.podIP == expected[0]
    assert tuple(ip.ip for ip in status.podIPs) == expected
    assert tuple(ip.ip for ip in status.hostIPs) == host
    assert status.hostIP == (host[0] if host else "")


def test_of_two_addresses_of_one_family_only_the_first_is_reported() -> None:
    ips = ("10.0.0.9", "10.0.0.10", "fd00::9")  # the API server refuses a status with both
    status = shown(make_pod(), view(running(), sandboxes=(sandbox(ips=ips),)), host_ips=("192.0.2.1",))
    assert tuple(ip.ip for ip in status.podIPs) == DUAL


def test_a_host_network_pod_has_the_nodes_addresses_and_keeps_them() -> None:
    pod = make_pod(hostNetwork=True)
    seen = view(running(), sandboxes=(host_sandbox(),))
    first = shown(pod, seen, host_ips=("192.0.2.1",))
    assert first.podIP == "192.0.2.1"
    dual = shown(pod, seen, host_ips=("192.0.2.7", "2001:db8::1"), old=first)
    assert [ip.ip for ip in dual.podIPs] == ["192.0.2.1", "2001:db8::1"]


def test_a_pod_keeps_its_address_while_it_is_ended() -> None:
    first = shown(make_pod(), view(running()))
    gone = view(exited("app", 137), sandboxes=(sandbox(ready=False, ips=()),))
    assert shown(make_pod(), gone, Stage.TERMINATING, old=first).podIP == "10.0.0.9"
    assert shown(make_pod(), gone, Stage.FINISHED, old=first).podIP == "10.0.0.9"
    assert shown(make_pod(), gone, old=first).podIP == ""


@pytest.mark.parametrize(
    ("requests", "limits", "expected"),
    [
        ({}, {}, "BestEffort"),
        ({"cpu": "1"}, {}, "Burstable"),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}, "Guaranteed"),
    ],
)
def test_the_qos_class(requests: dict[str, str], limits: dict[str, str], expected: str) -> None:
    resources = core.ResourceRequirements(requests=dict(requests), limits=dict(limits))
    assert shown(make_pod(container(resources=resources))).qosClass == expected


def test_pod_level_resources_are_reported() -> None:
    whole = core.ResourceRequirements(requests={"cpu": "1"}, limits={"cpu": "2"})
    status = shown(make_pod(resources=whole), view(running()))
    assert (status.resources, status.allocatedResources) == (whole, {"cpu": "1"})


# A new sandbox


NEW_BOX = (sandbox("s1", attempt=1), sandbox("s0", ready=False))
SIDECAR_UP = view(exited("side", 137), exited("app", 137), running("side", 1, sandbox="s1"), sandboxes=NEW_BOX)


def phases(*looks: PodView, **fields: Any) -> list[str]:
    """Of a pod with a sidecar that ran, relist after relist, each status computed from the one before."""
    pod, reported = make_pod(init=(sidecar(startupProbe=fields.pop("probe", None)),)), []
    old = shown(pod, view(running("side"), running()))
    for seen in looks:
        old = shown(pod, seen, old=old, **fields)
        reported.append(old.phase)
    return reported


def test_a_pod_is_pending_from_the_start_of_its_sidecar_until_its_containers_are_made() -> None:
    ended = view(exited("side", 137), exited("app", 137), sandboxes=(sandbox("s0", ready=False),))
    empty = view(exited("side", 137), exited("app", 137), sandboxes=NEW_BOX)
    made = view(*SIDECAR_UP.containers, instance("app", CREATED, number=1, sandbox="s1"), sandboxes=NEW_BOX)
    again = view(*SIDECAR_UP.containers, running("app", 1, sandbox="s1"), sandboxes=NEW_BOX)
    expected = ["Running", "Running", "Pending", "Running", "Running"]
    assert phases(ended, empty, SIDECAR_UP, made, again) == expected


def test_a_pod_is_pending_as_long_as_its_sidecar_has_not_started_in_the_new_sandbox() -> None:
    empty, results = view(exited("app", 137), sandboxes=NEW_BOX), ProbeResults({}, frozenset(ProbeKind))
    looks = [empty, SIDECAR_UP, SIDECAR_UP, SIDECAR_UP]
    assert phases(*looks, probe=core.Probe(), probes=results) == ["Running", "Pending", "Pending", "Pending"]


def test_a_pod_whose_containers_are_held_up_runs_once_its_sidecar_has_started() -> None:
    errors = {"app": ("CrashLoopBackOff", "back-off")}
    assert phases(view(exited("app", 137), sandboxes=NEW_BOX), SIDECAR_UP, errors=errors) == ["Running", "Running"]


def test_a_sidecar_that_nothing_remembers_makes_the_pod_pending_until_it_runs() -> None:
    pod, seen = make_pod(init=(sidecar(),)), view(exited("app", 137), sandboxes=NEW_BOX)
    assert shown(pod, seen).phase == "Pending"


def test_equal_facts_give_an_equal_status() -> None:
    pod = make_pod(container("a", readinessProbe=core.Probe()), container("b"), init=(container("i"), sidecar()))
    seen = view(exited("i"), running("side"), running("a"), exited("b", 1))
    results = ProbeResults({}, frozenset(ProbeKind))
    first = shown(pod, seen, probes=results)
    assert shown(pod, seen, probes=results, old=first, now_wall=WALL + 1000) == first


def test_a_container_does_not_run_before_its_post_start_hook_has_ended() -> None:
    pod, seen = make_pod(), view(running())
    first = shown(pod, seen, post_starting={"app": 0})
    (status,) = first.containerStatuses
    assert first.phase == "Pending"
    assert status.state == core.ContainerState(waiting=core.ContainerStateWaiting(reason="ContainerCreating"))
    assert (status.ready, status.containerID) == (False, "")
    again = shown(pod, view(running(number=2), exited("app", 3, number=1)), post_starting={"app": 1})
    (status,) = again.containerStatuses
    assert status.state is not None and status.state.terminated is not None
    assert (again.phase, status.state.terminated.exitCode, status.ready) == ("Running", 3, False)
    assert shown(pod, seen).containerStatuses[0].ready


def test_a_restart_counts_once_though_the_runtime_reports_the_container_before_its_start() -> None:
    """A runtime with CRI's event stream has its containers read when they are created, before the postStart hook runs."""
    pod, before = make_pod(), exited("app", 3)
    created = replace(running(number=1), state=ObservedState.CREATED)
    old = shown(pod, view(before))
    for newest in (created, running(number=1)):
        old = shown(pod, view(newest, before), post_starting={"app": 1}, old=old)
        assert old.containerStatuses[0].restartCount == 0
    assert shown(pod, view(running(number=1), before), old=old).containerStatuses[0].restartCount == 1


def test_a_container_that_is_created_ahead_is_shown_from_its_start_on() -> None:
    pod = make_pod(container("app"), container("other"))
    made = instance("other", CREATED)
    expected = shown(pod, view(running()))
    assert shown(pod, view(running(), made), ahead=frozenset({"other"})) == expected
    again = view(running(), instance("other", CREATED, number=1), exited("other", 3))
    (_, other) = shown(pod, again, ahead=frozenset({"other"})).containerStatuses
    assert (other.restartCount, other.state is not None and other.state.terminated is not None) == (0, True)
    (_, other) = shown(pod, view(running(), running("other")), ahead=frozenset({"other"})).containerStatuses
    assert other.ready


def test_the_instance_before_the_one_with_a_hook_is_shown_until_its_end_is() -> None:
    """The pod worker may know of an end before the view shows it, and start the successor at once."""
    pod, before = make_pod(), running()
    old = shown(pod, view(before))
    during = shown(pod, view(before), post_starting={"app": 1}, old=old)
    assert during.containerStatuses == old.containerStatuses


def test_a_container_that_a_killed_agent_created_stays_while_the_next_one_is_made() -> None:
    """Without it, the pod would be as before its restart, and its phase and restart count would go back."""
    pod, left = make_pod(), replace(running(number=1), state=ObservedState.CREATED)
    before = shown(pod, view(left, exited("app", 3)))
    during = shown(pod, view(left, exited("app", 3)), post_starting={"app": 2}, old=before)
    assert during.containerStatuses == before.containerStatuses


def test_a_preempted_pod_is_reported_as_disrupted() -> None:
    pod = make_pod(static=False)
    override = StatusOverride("Failed", "Preempting", "Preempted in order to admit critical pod")
    status = project_status(
        facts(pod, view(running()), Stage.TERMINATING, override=override, kill_reason=KillReason.EVICTED)
    )
    (shown,) = (c for c in status.conditions if c.type == "DisruptionTarget")
    assert (shown.status, shown.reason) == ("True", "TerminationByKubelet")
    assert shown.message == "Pod was preempted by Kubelet to accommodate a critical pod."
    later = project_status(facts(pod, view(exited()), Stage.TERMINATED, old=status))
    assert shown in later.conditions


NODE_ENDS = (KillReason.EVICTED, KillReason.SHUTDOWN)


@pytest.mark.parametrize("kill_reason", NODE_ENDS)
@pytest.mark.parametrize(("code", "end"), [(0, ("Succeeded", "", "")), (143, ("Failed", "Why", "in words"))])
def test_a_pod_that_the_node_ends_has_ended_as_its_containers_did(
    code: int, end: tuple[str, str, str], kill_reason: KillReason
) -> None:
    pod = make_pod(static=False)
    kill = {"override": StatusOverride("Failed", "Why", "in words", unless_succeeded=True), "kill_reason": kill_reason}
    first = project_status(facts(pod, view(running()), Stage.TERMINATING, **kill))
    assert (first.phase, first.reason) == ("Running", "")
    last = project_status(facts(pod, view(exited(code=code)), Stage.TERMINATED, old=first, **kill))
    assert (last.phase, last.reason, last.message) == end
    (disrupted,) = (c for c in last.conditions if c.type == "DisruptionTarget")
    assert (disrupted.reason, disrupted.message) == ("TerminationByKubelet", "in words")


@pytest.mark.parametrize(("policy", "end"), [("Always", ("Failed", "Terminated")), ("Never", ("Succeeded", ""))])
def test_a_static_pod_that_would_restart_has_failed_when_the_node_shuts_down(policy: str, end: tuple[str, str]) -> None:
    pod = make_pod(restartPolicy=policy)
    kill = {
        "override": StatusOverride("Failed", "Terminated", "imminent node shutdown", unless_succeeded=True),
        "kill_reason": KillReason.SHUTDOWN,
    }
    last = project_status(facts(pod, view(exited()), Stage.TERMINATED, **kill))
    assert (last.phase, last.reason) == end


def test_a_pod_over_a_limit_keeps_the_end_of_its_containers_when_they_are_removed() -> None:
    pod = make_pod(static=False)
    kill = {
        "override": StatusOverride("Failed", "Evicted", "too much", unless_succeeded=True),
        "kill_reason": KillReason.REJECTED,
    }
    last = project_status(facts(pod, view(exited()), Stage.TERMINATED, **kill))
    assert (last.phase, last.reason) == ("Succeeded", "")
    gone = project_status(facts(pod, None, Stage.FINISHED, old=last, **kill))
    assert (gone.phase, gone.reason, len(gone.containerStatuses)) == ("Succeeded", "", 1)


# Quarantine


def test_a_pod_in_quarantine_has_a_condition_and_stays_as_ready_as_it_was() -> None:
    why = "the agent has ended 2 times"
    probes = ProbeResults(watched=frozenset(ProbeKind))
    pod = make_pod(container(readinessProbe=core.Probe()))
    for was_ready in (True, False):
        old = core.PodStatus(
            containerStatuses=(
                core.ContainerStatus(name="app", containerID="containerd://app-0", started=True, ready=was_ready),
            )
        )
        status = shown(pod, view(running()), probes=probes, old=old, has_worker=False, quarantine=why)
        found = conditions(status)
        assert found["pykubelet/Quarantined"] == ("True", "Quarantined", why)
        assert found["Ready"][0] == str(was_ready) and status.phase == "Running"
    before = replace(pod, status=status)
    assert "pykubelet/Quarantined" not in conditions(shown(before, view(running()), probes=probes, old=status))
