"""Statuses of containers: what the API shows for every way a container can be."""

from __future__ import annotations

from typing import Any

import pytest
from report.samples import (
    container,
    exited,
    facts,
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
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.labels import CONTAINER_HASH
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.node import HandlerFeatures
from pykubelet.base.model.observed import ObservedState, ObservedUser, PodView, ResourcesView
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.report.status.project import project_status

IDS = {
    "image": "docker.io/library/busybox:latest",
    "imageID": "docker.io/library/busybox@sha256:abc",
    "resources": {},
}
NOT_LOCATED_AT_END = "The container could not be located when the pod was terminated"
NOT_LOCATED = "The container could not be located when the pod was deleted.  The container used to be Running"


def reported(pod: core.Pod, seen: PodView | None = None, stage: Stage = Stage.SYNCING, **fields: Any) -> dict[str, Any]:
    """The one regular container's status, as JSON has it."""
    status = project_status(facts(pod, seen, stage, **fields))
    (only,) = status.containerStatuses
    shown: dict[str, Any] = to_object(only)
    return shown


def reported_after(pod: core.Pod, *steps: PodView | None, **fields: Any) -> core.PodStatus:
    """The status after these looks, each knowing the one before; `fields` are of the last."""
    old = None
    for number, seen in enumerate(steps, 1):
        more = fields if number == len(steps) else {}
        old = project_status(facts(pod, seen, **{"old": old, **more}))
    assert old is not None
    return old


def ended(**fields: Any) -> dict[str, Any]:
    return {"exitCode": 137, "reason": "ContainerStatusUnknown", **fields}


# Without an instance


@pytest.mark.parametrize(("init", "reason"), [((), "ContainerCreating"), ((container("i"),), "PodInitializing")])
def test_a_container_that_is_not_made_yet_waits(init: tuple[core.Container, ...], reason: str) -> None:
    assert reported(make_pod(init=init), view()) == {
        "name": "app",
        "image": "busybox",
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": reason}},
    }


def test_before_the_runtime_was_looked_at_a_container_waits() -> None:
    assert reported(make_pod())["state"] == {"waiting": {"reason": "ContainerCreating"}}


# One instance


def test_a_running_container() -> None:
    assert reported(make_pod(), view(running())) == {
        "name": "app",
        **IDS,
        "containerID": "containerd://app-0",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-02T03:04:06Z"}},
    }


def test_a_container_that_is_made_but_not_started_waits_without_a_reason() -> None:
    assert reported(make_pod(), view(instance(state=ObservedState.CREATED)))["state"] == {"waiting": {}}


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [(0, "", "Completed"), (0, "Completed", "Completed"), (3, "", "Error"), (137, "OOMKilled", "OOMKilled")],
)
def test_a_container_that_ended(code: int, reason: str, expected: str) -> None:
    shown = reported(make_pod(restartPolicy="Never"), view(exited("app", code, reason=reason)))
    assert shown["state"] == {
        "terminated": {
            "exitCode": code,
            "reason": expected,
            "startedAt": "2026-01-02T03:04:06Z",
            "finishedAt": "2026-01-02T03:04:15Z",
            "containerID": "containerd://app-0",
        }
    }
    assert (shown["ready"], shown["started"]) == (False, False)


@pytest.mark.parametrize(
    ("of_runtime", "of_container", "expected"),
    [("", "went wrong", "went wrong"), ("OOM", "", "OOM"), ("OOM", "went wrong", "OOM: went wrong")],
)
def test_the_termination_message_follows_the_runtimes(of_runtime: str, of_container: str, expected: str) -> None:
    messages = {ContainerID("app-0"): of_container}
    shown = reported(make_pod(), view(exited("app", 1, message=of_runtime)), messages=messages)
    assert shown["state"]["terminated"]["message"] == expected


def test_termination_messages_share_12_kib() -> None:
    pod = make_pod(container("a"), container("b"), container("c"))
    seen = view(*(exited(name, 1) for name in "abc"))
    messages = {ContainerID(f"{name}-0"): "ü" * 4096 for name in "abc"}
    status = project_status(facts(pod, seen, messages=messages))
    sizes = [
        len(s.state.terminated.message.encode()) for s in status.containerStatuses if s.state and s.state.terminated
    ]
    assert sizes == [4096, 4096, 4096]


def test_the_restart_count_is_the_annotations_and_else_the_attempt() -> None:
    assert reported(make_pod(), view(running(number=3)))["restartCount"] == 3
    for text in ("x", "-1", "9" * 5000, str(2**31)):
        strange = replace(running(number=3), annotations={"io.kubernetes.container.restartCount": text})
        assert reported(make_pod(), view(strange))["restartCount"] == 3


# Several instances


def test_the_instance_before_gives_the_last_state() -> None:
    shown = reported(make_pod(), view(exited("app", 1), exited("app", 2, number=1), running(number=2)))
    assert shown["restartCount"] == 2
    assert shown["lastState"]["terminated"]["exitCode"] == 2
    assert shown["lastState"]["terminated"]["containerID"] == "containerd://app-1"


def test_statuses_are_sorted_by_name_and_those_of_init_containers_stay_in_order() -> None:
    pod = make_pod(container("z"), container("a"), init=(container("second"), container("first")))
    status = project_status(facts(pod, view()))
    assert [s.name for s in status.containerStatuses] == ["a", "z"]
    assert [s.name for s in status.initContainerStatuses] == ["second", "first"]


# Containers that cannot be found any more


def test_a_running_container_that_vanished_is_reported_as_ended_before() -> None:
    (shown,) = reported_after(make_pod(), view(running()), view()).containerStatuses
    assert to_object(shown.state) == {"waiting": {"reason": "ContainerCreating"}}
    assert to_object(shown.lastState) == {"terminated": ended(message=NOT_LOCATED)}
    assert shown.restartCount == 1


def test_looking_again_does_not_count_a_vanished_container_twice() -> None:
    status = reported_after(make_pod(), view(running()), view(), view(), view())
    assert status.containerStatuses[0].restartCount == 1
    assert status.phase == "Running"


def test_a_deleted_pods_vanished_container_was_not_restarted() -> None:
    pod = make_pod(meta={"deletionTimestamp": "2026-01-02T03:04:05Z"})
    assert reported_after(pod, view(running()), view()).containerStatuses[0].restartCount == 0


def test_a_vanished_container_of_a_pod_that_never_restarts_does_not_end_the_pod_by_itself() -> None:
    status = reported_after(make_pod(restartPolicy="Never"), view(running()), view())
    assert status.phase == "Running"


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_how_a_container_ended_is_reported_until_its_next_instance_though_the_runtime_forgot_it(policy: str) -> None:
    pod = make_pod(container("a"), container("b"), restartPolicy=policy)
    ends, other = exited("a", 3), running("b")
    first = reported_after(pod, view(ends, other))
    later = reported_after(pod, view(ends, other), view(other))
    assert (later.phase, later.containerStatuses[0]) == (first.phase, first.containerStatuses[0])
    again = reported_after(pod, view(ends, other), view(other), view(running("a", number=1), other))
    assert again.containerStatuses[0].lastState == first.containerStatuses[0].state


def test_a_container_of_unknown_state_that_ran_has_ended() -> None:
    (shown,) = reported_after(
        make_pod(), view(running()), view(instance(state=ObservedState.UNKNOWN))
    ).containerStatuses
    assert to_object(shown.state) == {"terminated": ended(message=NOT_LOCATED_AT_END)}
    assert shown.restartCount == 1


def test_a_container_of_unknown_state_in_a_pod_that_starts_all_again_was_ended_for_that() -> None:
    unknown = view(instance(state=ObservedState.UNKNOWN))
    (shown,) = reported_after(make_pod(), view(running()), unknown, restarting_all=True).containerStatuses
    assert to_object(shown.state) == {"terminated": ended(reason="RestartingAllContainers", message=NOT_LOCATED_AT_END)}


def test_a_container_of_unknown_state_that_never_ran_waits() -> None:
    assert reported(make_pod(), view(instance(state=ObservedState.UNKNOWN)))["state"] == {"waiting": {}}


def test_an_init_container_that_ended_is_remembered_after_its_removal() -> None:
    pod = make_pod(init=(container("i"),))
    status = reported_after(pod, view(exited("i")), view())
    assert to_object(status.initContainerStatuses[0])["state"]["terminated"]["containerID"] == "containerd://i-0"


def test_an_init_container_nothing_remembers_has_ended_well_once_the_pod_has_begun() -> None:
    (shown,) = project_status(facts(make_pod(init=(container("i"),)), view(running()))).initContainerStatuses
    assert to_object(shown.state) == {
        "terminated": {
            "exitCode": 0,
            "reason": "Completed",
            "message": "Unable to get init container status from container runtime and pod has been initialized, "
            "treat it as exited normally",
        }
    }
    assert shown.ready


def test_containers_removed_to_restart_all_say_so() -> None:
    pod = make_pod(container(restartPolicyRules=(core.ContainerRestartRule(action="RestartAllContainers"),)))
    why = {
        "reason": "RestartingAllContainers",
        "message": "The container is removed because RestartAllContainers in place",
    }
    removed = reported_after(pod, view(running()), view(), restarting_all=True)
    (shown,) = removed.containerStatuses
    assert to_object(shown.state) == {"waiting": why}
    assert to_object(shown.lastState) == {"terminated": {"exitCode": 137, **why}}
    assert shown.restartCount == 1
    later = project_status(facts(pod, view(), old=removed, restarting_all=True))
    assert later.containerStatuses == removed.containerStatuses, "counted once"


@pytest.mark.parametrize("is_outdated", [False, True])
def test_a_container_removed_to_restart_all_is_reported_though_the_pod_was_never_seen_without_it(
    is_outdated: bool,
) -> None:
    """With `is_outdated`, the view still has the removed container beside the new one."""
    pod = make_pod(container(restartPolicyRules=(core.ContainerRestartRule(action="RestartAllContainers"),)))
    first = exited(code=0)
    before = reported_after(pod, view(first))
    reset = frozenset({first.id})
    seen = view(running(number=1), first) if is_outdated else view(running(number=1))
    (shown,) = project_status(facts(pod, seen, old=before, reset=reset)).containerStatuses
    assert shown.lastState is not None
    assert shown.lastState.terminated is not None
    assert (shown.lastState.terminated.exitCode, shown.lastState.terminated.reason) == (137, "RestartingAllContainers")
    assert shown.restartCount == 1


@pytest.mark.parametrize("is_reported", [False, True])
def test_an_instance_that_was_started_while_its_sandbox_ended_does_not_count(is_reported: bool) -> None:
    """It is removed, and the instance in the new sandbox gets its number. With `is_reported` it was in a status already. The dead
    instance before it may have been collected."""
    killed, useless = exited(code=137), running(number=1)
    earlier = [view(killed), view(useless, killed)] if is_reported else [view(killed)]
    status = reported_after(make_pod(), view(running()), *earlier)
    uncounted = {useless.id: killed}
    old, new = sandbox(ready=False), sandbox("s1", attempt=1)
    again = replace(running(number=1, sandbox="s1"), id=ContainerID("app-new"))
    views = [
        view(exited(code=128, number=1), killed, sandboxes=(old,)),
        view(exited(code=128, number=1), sandboxes=(old,)),
        view(sandboxes=(old,)),
        view(sandboxes=(new, old)),
        view(again, sandboxes=(new, old)),
    ]
    for seen in views:
        status = project_status(facts(make_pod(), seen, old=status, uncounted=uncounted))
        (shown,) = status.containerStatuses
        assert shown.restartCount == (1 if is_reported or seen is views[-1] else 0)
        assert shown.containerID == ("containerd://app-new" if seen is views[-1] else "containerd://app-0")
    assert shown.lastState is not None
    assert shown.lastState.terminated is not None
    assert (shown.lastState.terminated.exitCode, shown.lastState.terminated.containerID) == (137, "containerd://app-0")


def test_an_instance_that_does_not_count_is_removed_with_its_sandbox() -> None:
    useless = running(number=1)
    before = reported_after(make_pod(), view(running()), view(exited(code=137)), view(useless, exited(code=137)))
    again = replace(running(number=1), id=ContainerID("app-new"))
    status = before
    for seen in (view(sandboxes=()), view(again)):
        status = project_status(facts(make_pod(), seen, old=status, uncounted={useless.id: exited(code=137)}))
    (shown,) = status.containerStatuses
    assert shown.restartCount == 1
    assert shown.lastState is not None
    assert shown.lastState.terminated is not None
    assert shown.lastState.terminated.exitCode == 137


def test_what_was_before_the_only_instance_is_known_from_what_was_reported() -> None:
    """The runtime forgets dead instances: they are collected, or removed to restart all containers."""
    first = exited(code=3)
    again = running(number=1)
    before = reported_after(make_pod(), view(first))
    (shown,) = project_status(facts(make_pod(), view(again), old=before)).containerStatuses
    assert shown.lastState is not None
    assert shown.lastState.terminated is not None
    assert shown.lastState.terminated.exitCode == 3
    later = project_status(facts(make_pod(), view(again), old=reported_after(make_pod(), view(first), view(again))))
    assert later.containerStatuses[0].lastState == shown.lastState


# Start errors

BACK_OFF = {"app": ("CrashLoopBackOff", "back-off 10s restarting failed container=app pod=web_default(uid-1)")}


def test_a_crash_looping_container_waits_and_its_end_becomes_the_last_state() -> None:
    shown = reported(make_pod(), view(exited("app", 1, number=1)), errors=BACK_OFF)
    assert shown["state"]["waiting"] == {"reason": BACK_OFF["app"][0], "message": BACK_OFF["app"][1]}
    assert shown["lastState"]["terminated"]["exitCode"] == 1
    assert shown["restartCount"] == 1


def test_a_container_that_could_not_be_started_waits_with_the_reason() -> None:
    errors = {"app": ("ErrImagePull", "not found")}
    assert reported(make_pod(), view(), errors=errors)["state"] == {
        "waiting": {"reason": "ErrImagePull", "message": "not found"}
    }


@pytest.mark.parametrize(
    ("pod", "seen"),
    [
        (make_pod(), view(running())),
        (make_pod(restartPolicy="Never"), view(exited("app", 1))),
        (make_pod(meta={"deletionTimestamp": "2026-01-02T03:04:05Z"}), view(exited("app", 1))),
    ],
    ids=["runs", "stays ended", "is deleted"],
)
def test_a_stale_start_error_is_not_reported_for_a_container_that_is_not_to_start(pod: core.Pod, seen: PodView) -> None:
    assert "waiting" not in reported(pod, seen, errors=BACK_OFF)["state"]


def test_an_init_container_that_succeeded_never_waits_again() -> None:
    pod = make_pod(init=(container("i"),))
    status = project_status(facts(pod, view(exited("i")), errors={"i": ("RunContainerError", "x")}))
    assert status.initContainerStatuses[0].state is not None
    assert status.initContainerStatuses[0].state.terminated is not None


def test_a_failed_init_container_waits_for_its_next_try() -> None:
    pod = make_pod(init=(container("i"),))
    status = project_status(facts(pod, view(exited("i", 1)), errors={"i": ("CrashLoopBackOff", "x")}))
    assert to_object(status.initContainerStatuses[0].state) == {
        "waiting": {"reason": "CrashLoopBackOff", "message": "x"}
    }
    assert status.phase == "Pending"


# The end of the pod


def test_after_the_end_a_container_that_ran_has_ended() -> None:
    shown = reported(make_pod(), view(running()), Stage.TERMINATED)
    assert shown["state"] == {"terminated": ended(message=NOT_LOCATED_AT_END)}


def test_after_the_end_containers_behind_unfinished_init_containers_still_wait() -> None:
    pod = make_pod(init=(container("i1"), container("i2"), container("i3")), static=False)
    status = project_status(facts(pod, view(exited("i1"), running("i2")), Stage.FINISHED))
    assert [to_object(s.state).popitem()[0] for s in status.initContainerStatuses] == [
        "terminated",
        "terminated",
        "waiting",
    ]
    assert to_object(status.containerStatuses[0].state) == {"waiting": {"reason": "PodInitializing"}}
    assert status.phase == "Failed"


def test_the_end_of_a_container_is_remembered_after_the_pods_removal_from_the_runtime() -> None:
    old = project_status(facts(make_pod(restartPolicy="Never"), view(exited("app", 5)), Stage.TERMINATED))
    status = project_status(facts(make_pod(restartPolicy="Never"), view(sandboxes=()), Stage.FINISHED, old=old))
    assert status.containerStatuses == old.containerStatuses
    assert status.phase == "Failed"


# Ready and started

PROBE = core.Probe(exec=core.ExecAction(command=("true",)))
ALL = frozenset(ProbeKind)


def probes(watched: frozenset[ProbeKind] = ALL, **results: ProbeResult) -> ProbeResults:
    return ProbeResults({(ContainerID("app-0"), ProbeKind(kind)): r for kind, r in results.items()}, watched)


OK, BAD = ProbeResult.SUCCESS, ProbeResult.FAILURE


@pytest.mark.parametrize(
    ("fields", "results", "started", "ready"),
    [
        ({}, probes(), True, True),
        ({"readinessProbe": PROBE}, probes(), True, False),
        ({"readinessProbe": PROBE}, probes(readiness=BAD), True, False),
        ({"readinessProbe": PROBE}, probes(readiness=OK), True, True),
        ({"startupProbe": PROBE}, probes(), False, False),
        ({"startupProbe": PROBE}, probes(startup=OK), True, True),
        ({"startupProbe": PROBE, "readinessProbe": PROBE}, probes(readiness=OK), False, False),
        ({"startupProbe": PROBE, "readinessProbe": PROBE}, probes(startup=OK), True, False),
        ({"startupProbe": PROBE, "readinessProbe": PROBE}, probes(frozenset()), True, True),
        ({"livenessProbe": PROBE}, probes(), True, True),
    ],
)
def test_started_and_ready_follow_the_probes(
    fields: dict[str, Any], results: ProbeResults, started: bool, ready: bool
) -> None:
    shown = reported(make_pod(container(**fields)), view(running()), probes=results)
    assert (shown["started"], shown["ready"]) == (started, ready)


ASSUMED = ProbeResults(
    {(ContainerID("app-0"), ProbeKind.READINESS): OK},
    ALL,
    assumed=frozenset({(ContainerID("app-0"), ProbeKind.READINESS)}),
)


@pytest.mark.parametrize("was_ready", [True, False])
@pytest.mark.parametrize(
    ("now", "ready"),
    [
        pytest.param(probes(), None, id="no result yet"),
        pytest.param(ASSUMED, None, id="only from the age of the container"),
        pytest.param(probes(readiness=OK), True, id="success"),
        pytest.param(probes(readiness=BAD), False, id="failure"),
        pytest.param(replace(probes(), keeps=False), False, id="all begin anew"),
    ],
)
def test_until_there_is_a_result_what_was_reported_of_the_instance_holds(
    was_ready: bool, now: ProbeResults, ready: bool | None
) -> None:
    pod = make_pod(container(readinessProbe=PROBE))
    before = project_status(facts(pod, view(running()), probes=probes(readiness=OK if was_ready else BAD)))
    shown = reported(pod, view(running()), probes=now, old=before)
    assert shown["ready"] is (was_ready if ready is None else ready)
    another = replace(before.containerStatuses[0], containerID="containerd://another")
    shown = reported(pod, view(running()), probes=probes(), old=replace(before, containerStatuses=(another,)))
    assert shown["ready"] is False


@pytest.mark.parametrize(
    ("instances", "started", "ready"),
    [
        ((), False, False),
        ((running("i"),), True, False),
        ((exited("i"),), False, True),
        ((exited("i", 1),), False, False),
    ],
)
def test_an_init_container_is_ready_when_it_has_succeeded(
    instances: tuple[Any, ...], started: bool, ready: bool
) -> None:
    (shown,) = project_status(facts(make_pod(init=(container("i"),)), view(*instances))).initContainerStatuses
    assert (shown.started, shown.ready) == (started, ready)


def test_a_sidecar_is_ready_like_a_regular_container() -> None:
    pod = make_pod(init=(sidecar("app", readinessProbe=PROBE),))
    for result, ready in ((OK, True), (BAD, False)):
        status = project_status(facts(pod, view(running()), probes=probes(readiness=result)))
        assert status.initContainerStatuses[0].ready is ready


# Mounts, user, resources


@pytest.mark.parametrize(
    ("mount", "supported", "expected"),
    [
        ({}, True, {}),
        ({"readOnly": True}, True, {"readOnly": True, "recursiveReadOnly": "Disabled"}),
        (
            {"readOnly": True, "recursiveReadOnly": "IfPossible"},
            True,
            {"readOnly": True, "recursiveReadOnly": "Enabled"},
        ),
        (
            {"readOnly": True, "recursiveReadOnly": "IfPossible"},
            False,
            {"readOnly": True, "recursiveReadOnly": "Disabled"},
        ),
        ({"readOnly": True, "recursiveReadOnly": "Enabled"}, True, {"readOnly": True, "recursiveReadOnly": "Enabled"}),
    ],
)
def test_volume_mounts(mount: dict[str, Any], supported: bool, expected: dict[str, Any]) -> None:
    pod = make_pod(container(volumeMounts=(core.VolumeMount(name="v", mountPath="/v", **mount),)))
    handlers = {"": HandlerFeatures(recursive_read_only_mounts=supported)}
    shown = reported(pod, view(running()), handlers=handlers)
    assert shown["volumeMounts"] == [{"name": "v", "mountPath": "/v", **expected}]


@pytest.mark.parametrize("uid", [1000, 4294967294])
def test_the_user_of_the_first_process(uid: int) -> None:
    shown = reported(make_pod(), view(running(user=ObservedUser(uid, 100, (100, 7)))))
    assert shown["user"] == {"linux": {"uid": uid, "gid": 100, "supplementalGroups": [100, 7]}}


@pytest.mark.parametrize(("gate", "shown"), [(True, "SIGUSR1"), (False, "")])
def test_the_stop_signal_is_reported_with_its_gate_only(gate: bool, shown: str) -> None:
    look = view(running(stop_signal="SIGUSR1"))
    (status,) = project_status(facts(make_pod(), look, reports_stop_signals=gate)).containerStatuses
    assert status.stopSignal == shown


ASKED = core.ResourceRequirements(
    requests={"cpu": "100m", "memory": "64Mi"}, limits={"cpu": "0.5", "memory": "64Mi", "hugepages-2Mi": "2Mi"}
)


@pytest.mark.parametrize(
    ("applied", "limits", "requests"),
    [
        (None, {}, {}),
        (ResourcesView(102, 50_000, 100_000, 64 << 20), {}, {}),
        (ResourcesView(204, 100_000, 100_000, 128 << 20), {"cpu": "1", "memory": "128Mi"}, {"cpu": "200m"}),
        (ResourcesView(0, 0, 0, 1000), {"memory": "1k"}, {}),
    ],
)
def test_resources_of_a_running_container_are_what_the_runtime_applies(
    applied: ResourcesView | None, limits: dict[str, str], requests: dict[str, str]
) -> None:
    shown = reported(make_pod(container(resources=ASKED)), view(running(resources=applied)))
    assert shown["resources"] == {"limits": {**ASKED.limits, **limits}, "requests": {**ASKED.requests, **requests}}
    assert shown["allocatedResources"] == ASKED.requests


def test_tiny_cpu_amounts_keep_what_was_asked_for() -> None:
    tiny = core.ResourceRequirements(requests={"cpu": "1m"}, limits={"cpu": "5m"})
    shown = reported(make_pod(container(resources=tiny)), view(running(resources=ResourcesView(2, 1000, 100_000, 0))))
    assert shown["resources"] == {"limits": {"cpu": "5m"}, "requests": {"cpu": "1m"}}


def test_resources_that_the_runtime_stops_telling_stay_while_the_instance_runs() -> None:
    pod = make_pod(container(resources=ASKED))
    before = view(running(resources=ResourcesView(204, 100_000, 100_000, 128 << 20)))
    (shown,) = reported_after(pod, before, view(running())).containerStatuses
    assert shown.resources is not None
    assert (shown.resources.limits["memory"], shown.resources.requests["cpu"]) == ("128Mi", "200m")
    (again,) = reported_after(pod, before, view(exited("app", 1), running(number=1))).containerStatuses
    assert again.resources == ASKED


def test_an_ephemeral_container_has_a_status_of_its_own() -> None:
    pod = make_pod(ephemeralContainers=(core.EphemeralContainer(name="debug", image="busybox"),))
    status = project_status(facts(pod, view(running(), exited("debug", 1))))
    (shown,) = status.ephemeralContainerStatuses
    assert shown.state is not None
    assert shown.state.terminated is not None
    assert status.phase == "Running"


def test_containers_of_an_older_sandbox_still_report_how_they_ended() -> None:
    seen = view(exited("app", 1, sandbox="s0"), sandboxes=(sandbox("s1"), sandbox("s0", ready=False)))
    assert reported(make_pod(), seen)["state"]["terminated"]["exitCode"] == 1


def test_an_ephemeral_container_that_cannot_be_started_gives_the_reason() -> None:
    pod = make_pod(ephemeralContainers=(core.EphemeralContainer(name="debug", image="nowhere"),))
    error = {"debug": ("ErrImagePull", "no such image")}
    (shown,) = project_status(facts(pod, view(running()), errors=error)).ephemeralContainerStatuses
    assert shown.state is not None and shown.state.waiting is not None
    assert (shown.state.waiting.reason, shown.state.waiting.message) == ("ErrImagePull", "no such image")
    (ended,) = project_status(facts(pod, view(running(), exited("debug", 1)), errors=error)).ephemeralContainerStatuses
    assert ended.state is not None and ended.state.terminated is not None


@pytest.mark.parametrize(
    ("given", "of_runtime", "shown"),
    [
        ("busybox", "docker.io/library/busybox:latest", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1", "docker.io/library/busybox:1"),
        ("localhost:5000/app", "localhost:5000/app:latest", "localhost:5000/app:latest"),
        ("example.com/app:2", "example.com/app:1", "example.com/app:2"),
        ("app:2", "docker.io/library/other:2", "app:2"),
        ("example.com/app:2", "sha256:abc", "sha256:abc"),
        ("example.com/app@sha256:abc", "example.com/app:1", "example.com/app:1"),
    ],
)
def test_of_several_tags_of_an_image_the_one_of_the_spec_is_shown(given: str, of_runtime: str, shown: str) -> None:
    spec = container(image=given)
    own = running(image=of_runtime, annotations={CONTAINER_HASH: container_hash(spec)})
    assert reported(make_pod(spec), view(own))["image"] == shown
    earlier = running(
        image=of_runtime, annotations={CONTAINER_HASH: container_hash(container(image="example.com/old:1"))}
    )
    assert reported(make_pod(spec), view(earlier))["image"] == of_runtime
