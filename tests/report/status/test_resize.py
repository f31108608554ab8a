"""What people see of a pod's size: its conditions while another one is asked for, and what holds for it as a whole."""

from __future__ import annotations

from report.samples import WALL, container, exited, facts, instance, make_pod, running, view
from report.status.test_project import NOW, conditions, shown

from pykubelet.base.api import core
from pykubelet.base.api.core import ResourceRequirements
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.sizing import PendingResize, ResizeProgress
from pykubelet.report.status.project import project_status

HALF = ResourceRequirements(requests={"cpu": "500m"}, limits={"memory": "64Mi"})


def condition(status: core.PodStatus, kind: str) -> core.PodCondition:
    return next(c for c in status.conditions if c.type == kind)


def test_a_size_without_capacity_is_pending() -> None:
    pending = PendingResize("Deferred", "no capacity", 3, WALL)
    status = shown(make_pod(meta={"generation": 3}), view(running()), pending=pending)
    reported = condition(status, "PodResizePending")
    assert (reported.status, reported.reason, reported.message) == ("True", "Deferred", "no capacity")
    assert (reported.observedGeneration, reported.lastTransitionTime, reported.lastProbeTime) == (3, NOW, NOW)
    assert status.conditions[0] is reported, "before the agent's usual ones"


def test_a_pod_that_has_ended_waits_for_no_size() -> None:
    pending = PendingResize("Infeasible", "never", 3, WALL)
    status = shown(make_pod(), view(exited()), Stage.TERMINATED, pending=pending)
    assert "PodResizePending" not in conditions(status)


def test_a_size_that_does_not_hold_yet_is_in_progress() -> None:
    pod = make_pod()
    first = shown(pod, view(running()), resize=ResizeProgress(2))
    reported = condition(first, "PodResizeInProgress")
    assert (reported.status, reported.reason, reported.observedGeneration) == ("True", "", 2)
    failed = project_status(
        facts(pod, view(running()), old=first, resize=ResizeProgress(2, "busy"), now_wall=WALL + 60)
    )
    reported = condition(failed, "PodResizeInProgress")
    assert (reported.reason, reported.message, reported.lastTransitionTime) == ("Error", "busy", "2026-01-02T03:05:05Z")
    later = project_status(
        facts(pod, view(running()), old=failed, resize=ResizeProgress(2, "busy"), now_wall=WALL + 99)
    )
    assert condition(later, "PodResizeInProgress") == reported, "nothing is reported twice"
    done = project_status(facts(pod, view(running()), old=later, now_wall=WALL + 99))
    assert "PodResizeInProgress" not in conditions(done)


def test_a_pod_as_a_whole_has_what_its_containers_have_together() -> None:
    pod = make_pod(container("a", resources=HALF), container("b", resources=HALF))
    status = shown(pod, view(running("a"), running("b")))
    assert status.allocatedResources == {"cpu": "1"}
    assert status.resources == ResourceRequirements(requests={"cpu": "1"}, limits={"memory": "128Mi"})


def test_what_a_pod_states_itself_comes_first() -> None:
    pod = make_pod(container(resources=HALF), resources=ResourceRequirements(requests={"cpu": "2"}))
    status = shown(pod, view(running()))
    assert status.allocatedResources == {"cpu": "2"}
    assert status.resources == ResourceRequirements(requests={"cpu": "2"}, limits={"memory": "64Mi"})


def test_a_pod_without_any_reports_none() -> None:
    status = shown(make_pod(), view(running()))
    assert status.allocatedResources == {} and status.resources is None


def test_until_a_new_size_holds_the_old_one_is_reported() -> None:
    before = shown(make_pod(container(resources=HALF)), view(running()))
    larger = make_pod(container(resources=ResourceRequirements(requests={"cpu": "1"})))
    status = project_status(facts(larger, view(running()), old=before, resize=ResizeProgress(2)))
    assert status.resources == before.resources
    assert status.allocatedResources == {"cpu": "1"}


def test_the_forerunner_that_is_gone_is_the_last_state() -> None:
    pod = make_pod()
    before = shown(pod, view(exited(code=42)))
    after = project_status(facts(pod, view(instance(number=1)), old=before))
    (reported,) = after.containerStatuses
    assert reported.lastState is not None and reported.lastState.terminated is not None
    assert reported.lastState.terminated.exitCode == 42
    again = project_status(facts(pod, view(instance(number=1)), old=after))
    assert again.containerStatuses == after.containerStatuses, "and stays it"


def test_the_count_of_restarts_never_goes_back() -> None:
    pod = make_pod()
    before = shown(pod, view(exited(code=42, number=3)))
    fresh = instance(number=0, annotations={})
    after = project_status(facts(pod, view(fresh), old=before))
    assert after.containerStatuses[0].restartCount == 4


def test_a_forerunner_that_ran_and_left_no_trace() -> None:
    pod = make_pod()
    before = shown(pod, view(running()))
    after = project_status(facts(pod, view(instance(number=1)), old=before))
    (reported,) = after.containerStatuses
    assert reported.lastState is not None and reported.lastState.terminated is not None
    assert (reported.lastState.terminated.reason, reported.restartCount) == ("ContainerStatusUnknown", 1)
    rules = (core.ContainerRestartRule(action="RestartAllContainers"),)
    of = make_pod(container("a", restartPolicyRules=rules), container("b"))
    before = shown(of, view(running("a"), running("b")))
    after = project_status(facts(of, view(instance("a", number=1), instance("b", number=1)), old=before))
    reasons = [s.lastState.terminated.reason for s in after.containerStatuses if s.lastState and s.lastState.terminated]
    assert reasons == ["RestartingAllContainers"] * 2


def test_a_container_killed_to_be_started_again_runs_until_it_does() -> None:
    pod = make_pod(restartPolicy="Never")
    before = shown(pod, view(running()))
    to_restart = frozenset({ContainerID("app-0")})
    between = project_status(facts(pod, view(exited(code=137)), old=before, to_restart=to_restart))
    assert between.containerStatuses == before.containerStatuses and between.phase == "Running"
    again = project_status(facts(pod, view(instance(number=1), exited(code=137)), old=between, to_restart=to_restart))
    (reported,) = again.containerStatuses
    assert reported.restartCount == 1 and reported.state is not None and reported.state.running is not None
    assert reported.lastState is not None and reported.lastState.terminated is not None, (
        "though the debt is not struck off yet"
    )
    assert reported.lastState.terminated.exitCode == 137
    errors = {"app": ("ErrImagePull", "no such image")}
    refused = project_status(facts(pod, view(exited(code=137)), old=before, to_restart=to_restart, errors=errors))
    (reported,) = refused.containerStatuses
    assert reported.state is not None and reported.state.waiting is not None
    assert reported.state.waiting.reason == "ErrImagePull" and refused.phase == "Running"
