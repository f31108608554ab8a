"""Statuses of containers: what the API shows for every way a container can be."""

from __future__ import annotations

import pytest
from report.samples import (
    container,
    exited,
    facts,
    instance,
    make_pod,
    reported,
    running,
    sandbox,
    view,
)

from pykubelet.base.api import core
from pykubelet.base.api.codec import to_object
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.observed import ObservedState, PodView
from pykubelet.report.status.project import project_status

IDS = {
    "image": "docker.io/library/busybox:latest",
    "imageID": "docker.io/library/busybox@sha256:abc",
    "resources": {},
}


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
