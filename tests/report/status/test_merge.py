"""What is sent to the API server of a status, and how urgently."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.base.api import core
from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.kit.values import replace
from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet.report.status.merge import (
    Urgency,
    final_delete,
    may_delete,
    newer,
    render_patch,
    revived,
    status_for_api,
    urgency_of,
)
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.patch.strategic import strategic_patch


def condition(kind: str, status: str = "True", **fields: Any) -> core.PodCondition:
    return core.PodCondition(type=kind, status=status, **fields)


def reported(phase: str = "Running", ready: str = "True", **fields: Any) -> core.PodStatus:
    conditions = fields.pop("conditions", (condition("Ready", ready), condition("ContainersReady", ready)))
    return core.PodStatus(phase=phase, conditions=conditions, **fields)


def api_pod(status: core.PodStatus | None = None, **metadata: Any) -> core.Pod:
    there = status if status is not None else core.PodStatus(phase="Pending", qosClass="Burstable")
    return core.Pod(metadata=core.ObjectMeta(name="web", namespace="shop", uid="u1", **metadata), status=there)


def container(**state: Any) -> core.ContainerStatus:
    fields = {key: state.pop(key) for key in ("restartCount", "resources") if key in state}
    return core.ContainerStatus(name="app", image="busybox", state=core.ContainerState(**state), **fields)


RUNNING = container(running=core.ContainerStateRunning(startedAt="2026-01-01T00:00:00Z"))
CREATING = container(waiting=core.ContainerStateWaiting(reason="ContainerCreating"))
PULL_ERROR = container(waiting=core.ContainerStateWaiting(reason="ErrImagePull"))
ENDED = container(terminated=core.ContainerStateTerminated(exitCode=0))


def wanted(api: core.Pod, status: core.PodStatus, *, has_ended: bool = False) -> core.PodStatus:
    found = status_for_api(api, status, has_ended=has_ended)
    assert found is not None
    return found


def urgency(api: core.Pod, status: core.PodStatus, *, has_ended: bool = False) -> Urgency:
    return urgency_of(api, wanted(api, status, has_ended=has_ended))


def test_a_patch_names_the_pod_and_holds_only_what_changed() -> None:
    before = reported("Running", "False", podIP="10.0.0.1")
    patch = render_patch(api_pod(before), wanted(api_pod(before), reported("Running", "True", podIP="10.0.0.1")))
    assert patch is not None
    assert patch == {
        "metadata": {"uid": "u1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]},
    }


def test_no_difference_no_patch() -> None:
    assert render_patch(api_pod(reported()), wanted(api_pod(reported()), reported())) is None


def test_what_others_wrote_stays() -> None:
    gate = condition("example.com/gate")
    claim = core.PodResourceClaimStatus(name="gpu", resourceClaimName="x")
    there = core.PodStatus(
        phase="Pending",
        conditions=(gate,),
        nominatedNodeName="n2",
        resourceClaimStatuses=(claim,),
        qosClass="Guaranteed",
    )
    new = wanted(api_pod(there), reported(conditions=(condition("Ready"), condition("example.com/old"))))
    assert [c.type for c in new.conditions] == ["example.com/gate", "Ready"]
    assert (new.nominatedNodeName, new.resourceClaimStatuses, new.qosClass) == ("n2", (claim,), "Guaranteed")


def test_a_disruption_target_of_another_stays_until_there_is_our_own() -> None:
    theirs, ours = (
        condition("DisruptionTarget", reason="EvictionByEvictionAPI"),
        condition("DisruptionTarget", reason="X"),
    )
    assert theirs in wanted(api_pod(core.PodStatus(conditions=(theirs,))), reported()).conditions
    new = wanted(api_pod(core.PodStatus(conditions=(theirs,))), reported("Failed", conditions=(ours,)), has_ended=True)
    assert new.conditions == (ours,)


def test_why_a_pod_is_disrupted_is_reported_with_its_end() -> None:
    end = reported("Failed", "False", conditions=(condition("DisruptionTarget", reason="TerminationByKubelet"),))
    assert wanted(api_pod(reported("Running")), end).conditions == ()
    assert wanted(api_pod(reported("Running")), replace(end, phase="Running"), has_ended=True).conditions == ()
    assert wanted(api_pod(reported("Running")), end, has_ended=True).conditions == end.conditions


def test_an_end_is_held_back_while_containers_may_run_but_not_that_it_is_unready() -> None:
    there = reported("Running")
    end = reported("Failed", "False", reason="Evicted", message="low on memory")
    held = wanted(api_pod(there), end)
    assert (held.phase, held.reason, held.message) == ("Running", "", "")
    assert [c.status for c in held.conditions] == ["False", "False"]
    ended = wanted(api_pod(there), end, has_ended=True)
    assert (ended.phase, ended.reason) == ("Failed", "Evicted")


def test_an_imposed_end_waits_for_how_the_containers_ended() -> None:
    there, end = (
        reported("Running"),
        reported("Failed", "False", reason="DeadlineExceeded", containerStatuses=(RUNNING,)),
    )
    assert wanted(api_pod(there), end, has_ended=True).phase == "Running", (
        "that status is from before the pod had ended"
    )
    over = replace(end, containerStatuses=(FAILED,))
    assert wanted(api_pod(there), over, has_ended=True).phase == "Failed"


def test_an_end_that_was_reported_is_never_taken_back() -> None:
    assert status_for_api(api_pod(reported("Succeeded", "False")), reported("Running"), has_ended=False) is None


FAILED = container(terminated=core.ContainerStateTerminated(exitCode=7))
SEVEN = core.ContainerRestartRuleOnExitCodes(operator="In", values=(7,))
RULE = core.ContainerRestartRule(action="Restart", exitCodes=SEVEN)
ALL_RULE = core.ContainerRestartRule(action="RestartAllContainers", exitCodes=SEVEN)


@pytest.mark.parametrize(
    ("policy", "there", "now", "refused"),
    [
        ("Never", ENDED, RUNNING, True),
        ("Never", ENDED, CREATING, True),
        ("Never", FAILED, RUNNING, True),
        ("Never", ENDED, ENDED, False),
        ("Never", RUNNING, CREATING, False),
        ("OnFailure", ENDED, RUNNING, True),
        ("OnFailure", FAILED, RUNNING, False),
        ("Always", ENDED, RUNNING, False),
        ("", ENDED, RUNNING, False),
    ],
)
def test_a_container_that_may_not_run_again_stays_ended(
    policy: str, there: core.ContainerStatus, now: core.ContainerStatus, refused: bool
) -> None:
    for containers, statuses in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")):
        of_spec: dict[str, Any] = {containers: (core.Container(name="app"),)}
        was: dict[str, Any] = {statuses: (there,)}
        reported: dict[str, Any] = {statuses: (now,)}
        pod = replace(api_pod(core.PodStatus(**was)), spec=core.PodSpec(restartPolicy=policy, **of_spec))
        assert revived(pod, core.PodStatus(**reported)) == ("app" if refused else "")


def test_a_container_that_has_run_again_is_reported() -> None:
    """Its policy does not allow it, but its end was removed with its sandbox from outside: the status must not stay as it was for ever."""
    spec = core.PodSpec(restartPolicy="OnFailure", containers=(core.Container(name="app", restartPolicy="Never"),))
    pod = replace(api_pod(core.PodStatus(containerStatuses=(FAILED,))), spec=spec)
    assert revived(pod, core.PodStatus(containerStatuses=(RUNNING,))) == "app"
    again = replace(RUNNING, restartCount=FAILED.restartCount + 1)
    assert revived(pod, core.PodStatus(containerStatuses=(again,))) == ""


@pytest.mark.parametrize(
    ("app", "others"),
    [
        (core.Container(name="app", restartPolicy="Always"), {}),
        (core.Container(name="app", restartPolicyRules=(RULE,)), {}),
        (core.Container(name="app"), {"containers": (core.Container(name="b", restartPolicyRules=(ALL_RULE,)),)}),
    ],
    ids=["sidecar", "rule", "a rule that restarts all"],
)
def test_a_container_that_may_run_again_is_reported(app: core.Container, others: Any) -> None:
    spec = core.PodSpec(restartPolicy="Never", initContainers=(app,), **others)
    pod = replace(api_pod(core.PodStatus(initContainerStatuses=(FAILED,))), spec=spec)
    assert revived(pod, core.PodStatus(initContainerStatuses=(RUNNING,))) == ""


def test_a_mirror_pod_reports_no_generation() -> None:
    mirror = api_pod(generation=1, annotations={CONFIG_MIRROR: "h"})
    new = wanted(mirror, reported(observedGeneration=1))
    assert new.observedGeneration is None
    assert {c.observedGeneration for c in new.conditions} == {None}


@pytest.mark.parametrize(
    ("there", "new", "expected"),
    [
        (reported("Pending", "False"), reported("Pending", "False", containerStatuses=(CREATING,)), Urgency.DEFERRABLE),
        (
            core.PodStatus(phase="Pending"),
            reported("Pending", "False", startTime="2026-01-01T00:00:00Z"),
            Urgency.DEFERRABLE,
        ),
        (reported("Pending", "False"), reported("Pending", "False", containerStatuses=(PULL_ERROR,)), Urgency.CHANGED),
        (reported("Pending", "False"), reported("Running", "True", containerStatuses=(RUNNING,)), Urgency.READY),
        (reported("Running", "True"), reported("Running", "False"), Urgency.READY),
        (reported("Running", "False"), reported("Running", "False", containerStatuses=(ENDED,)), Urgency.CHANGED),
        (reported("Running", "True"), reported("Running", "True", podIP="10.0.0.9"), Urgency.DEFERRABLE),
    ],
)
def test_what_is_urgent(there: core.PodStatus, new: core.PodStatus, expected: Urgency) -> None:
    assert urgency(api_pod(there), new) is expected


def test_the_end_of_a_pod_comes_first_and_reports_all_that_came_before_it() -> None:
    dying = api_pod(reported("Running"), deletionTimestamp="2026-01-01T00:00:00Z")
    assert urgency(dying, reported("Running", "False", containerStatuses=(ENDED,))) is Urgency.DEFERRABLE
    assert urgency(dying, reported("Running", containerStatuses=(ENDED,), observedGeneration=2)) is Urgency.SUPERSEDED
    assert urgency(dying, reported("Succeeded", "False", containerStatuses=(ENDED,)), has_ended=True) is Urgency.END


def test_the_last_deletion() -> None:
    dying = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    ended = reported("Failed", "False")
    assert may_delete(api_pod(ended, **dying))
    assert not may_delete(api_pod(reported("Running"), **dying))
    assert not may_delete(api_pod(ended))
    assert not may_delete(api_pod(ended, annotations={CONFIG_MIRROR: "h"}, **dying))
    asked = {**dying, "deletionGracePeriodSeconds": 0}
    assert not may_delete(api_pod(ended, finalizers=("example.com/keep",), **asked))
    options = final_delete(api_pod(ended))
    assert (options["gracePeriodSeconds"], options["preconditions"]) == (0, {"uid": "u1"})


def test_the_newer_of_two_states() -> None:
    old, new = api_pod(resourceVersion="99"), api_pod(resourceVersion="100")
    assert newer(old, new) is new
    assert newer(new, old) is new
    odd = api_pod(resourceVersion="x1")
    assert newer(new, odd) is odd
    endless = api_pod(resourceVersion="9" * 5_000_000)
    assert newer(endless, new) is new and newer(new, endless) is endless, "what comes later counts"


def test_the_patch_makes_what_is_wanted() -> None:
    api = api_pod(reported("Pending", "False", containerStatuses=(CREATING,), podIPs=(core.PodIP(ip="a"),)))
    new = wanted(api, reported("Running", "True", containerStatuses=(RUNNING,), podIPs=(core.PodIP(ip="b"),)))
    patch = render_patch(api, new)
    assert patch is not None
    made = strategic_patch(to_object(api.status), patch["status"], schema_of("io.k8s.api.core.v1.PodStatus"))
    assert from_object(core.PodStatus, made) == replace(new)
