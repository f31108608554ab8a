"""Statuses of containers that have instances which the runtime has not any more, or not yet in the newest view."""

from __future__ import annotations

from typing import Any

import pytest
from report.samples import (
    container,
    exited,
    facts,
    instance,
    make_pod,
    reported,
    reported_after,
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

BACK_OFF = {"app": ("CrashLoopBackOff", "back-off 10s restarting failed container=app pod=web_default(uid-1)")}
UNKNOWN = (137, "ContainerStatusUnknown")
BY_RULE = (137, "RestartingAllContainers")
RULE = core.ContainerRestartRule(action="RestartAllContainers")


def of(status: core.PodStatus) -> core.ContainerStatus:
    return status.containerStatuses[0]


def waiting(status: core.ContainerStatus) -> str:
    return status.state.waiting.reason if status.state is not None and status.state.waiting is not None else ""


def end(state: core.ContainerState | None) -> tuple[int, str] | None:
    """Exit code and reason."""
    found = state.terminated if state is not None else None
    return (found.exitCode, found.reason) if found is not None else None


def test_an_instance_before_the_published_one_is_no_news() -> None:
    newest = running(number=1)
    shown = of(reported_after(make_pod(), view(newest, exited(code=3)), view(exited(code=3))))
    assert (waiting(shown), end(shown.lastState), shown.restartCount) == ("ContainerCreating", UNKNOWN, 2)


def test_an_instance_before_the_one_in_back_off_is_no_news() -> None:
    status = reported_after(make_pod(), view(exited(code=1, number=1), exited(code=3)), errors=BACK_OFF)
    assert waiting(of(status)) == "CrashLoopBackOff"
    shown = of(project_status(facts(make_pod(), view(exited(code=3)), old=status)))
    assert (waiting(shown), end(shown.lastState), shown.restartCount) == ("ContainerCreating", (1, "Error"), 1)


def test_an_instance_that_was_never_started_is_no_last_state() -> None:
    never = instance(state=ObservedState.CREATED, number=1)
    shown = of(reported_after(make_pod(), view(running(number=2), never, exited(code=3))))
    assert end(shown.lastState) == (3, "Error")


def test_the_last_state_stays_when_the_instance_was_removed_and_an_earlier_one_was_not() -> None:
    before, removed = exited(code=3), exited(code=4, number=1)
    shown = of(reported_after(make_pod(), view(removed, before), view(running(number=2), before)))
    assert end(shown.lastState) == (4, "Error")


def test_an_end_is_not_its_own_last_state_when_the_failed_start_after_it_is_given_up() -> None:
    pod = make_pod(restartPolicy="OnFailure")
    status = reported_after(pod, view(exited(code=3)), errors=BACK_OFF)
    assert end(of(status).lastState) == (3, "Error")
    shown = of(project_status(facts(pod, view(exited(code=3)), old=status)))
    assert (end(shown.state), shown.lastState) == ((3, "Error"), None)


def test_the_end_of_an_instance_that_does_not_count_is_no_last_state() -> None:
    killed, useless = exited(code=137), exited(code=137, number=1)
    status = reported_after(make_pod(), view(killed), view(useless, killed), errors=BACK_OFF)
    assert waiting(of(status)) == "CrashLoopBackOff"
    uncounted = {useless.id: killed}
    shown = of(project_status(facts(make_pod(), view(useless, killed), old=status, uncounted=uncounted)))
    assert (end(shown.state), shown.lastState) == ((137, "Error"), None)


def test_a_restart_counts_also_after_another_instance_of_the_container_did_not_count() -> None:
    killed, useless = exited(code=137), running(number=1)
    uncounted = {useless.id: killed}
    again, third = (replace(running(number=1), id=ContainerID(name)) for name in ("app-new", "app-third"))
    before = reported_after(make_pod(), view(killed), view(again), uncounted=uncounted)
    shown = of(project_status(facts(make_pod(), view(third), old=before, uncounted=uncounted)))
    assert shown.restartCount == 2


def test_a_restart_counts_though_the_ended_instance_and_its_log_were_removed_before_it() -> None:
    """Without both, the new instance has the count of the ended one."""
    pod, ended, again = make_pod(), exited(code=137, number=2), replace(running(number=2), id=ContainerID("app-new"))
    before = reported_after(pod, view(ended), view(ended), errors=BACK_OFF)
    gone = project_status(facts(pod, view(sandboxes=(sandbox("s1", attempt=1),)), old=before))
    assert of(gone).restartCount == 2
    shown = of(project_status(facts(pod, view(again), old=gone)))
    assert (shown.restartCount, end(shown.lastState)) == (3, (137, "Error"))
    assert of(project_status(facts(pod, view(again), old=project_status(facts(pod, view(again), old=gone))))) == shown


def test_a_restart_counts_once_though_a_start_that_did_not_count_came_between() -> None:
    """The published count is higher than that of the instances, after the runtime and the logs had lost some."""
    killed, useless = exited(code=137), instance(state=ObservedState.CREATED, number=1)
    uncounted = {useless.id: killed}
    again = replace(running(number=1), id=ContainerID("app-new"))
    status = reported_after(make_pod(), view(running(number=1)), view(killed))
    status = replace(status, containerStatuses=(replace(of(status), containerID="fake://app-0", restartCount=1),))
    for seen in (view(killed), view(useless, killed), view(useless, killed)):
        status = project_status(facts(make_pod(), seen, old=status))
    assert of(status).restartCount == 2
    for seen in (view(killed), view(again)):
        status = project_status(facts(make_pod(), seen, old=status, uncounted=uncounted))
    assert of(status).restartCount == 2


@pytest.mark.parametrize("left", [view(exited(code=3)), view()], ids=["with its predecessor", "alone"])
def test_a_restart_counts_once_though_what_was_created_for_it_was_removed(left: PodView) -> None:
    """The agent was ended before the start: the next run creates the container anew, with the same count."""
    created, again = (
        instance(state=ObservedState.CREATED, number=1),
        replace(running(number=1), id=ContainerID("app-new")),
    )
    status = reported_after(make_pod(), view(exited(code=3)), view(created, exited(code=3)), left, view(again))
    assert (of(status).restartCount, end(of(status).lastState)) == (1, (3, "Error"))
    over = reported_after(make_pod(), view(created, exited(code=3)), view(exited(code=3)), stage=Stage.TERMINATED)
    assert end(of(over).state) == (3, "Error")


def test_the_restart_of_an_instance_that_has_vanished_counts_once() -> None:
    """It has counted when that was seen."""
    vanished = reported_after(make_pod(), view(running(number=2)), view(sandboxes=(sandbox("s1", attempt=1),)))
    assert of(vanished).restartCount == 3
    again = replace(running(number=2), id=ContainerID("app-new"))
    assert of(project_status(facts(make_pod(), view(again), old=vanished))).restartCount == 3


def test_a_container_that_is_lost_with_its_sandbox_was_not_removed_by_a_rule() -> None:
    pod = make_pod(container(restartPolicyRules=(RULE,)))
    later = replace(sandbox("s1", attempt=1), created_at=running(number=1).created_at)
    seen = view(running(number=1, sandbox="s1"), sandboxes=(later,))
    assert end(of(reported_after(pod, view(running()), seen)).lastState) == UNKNOWN
    kept = view(running(number=1))
    assert end(of(reported_after(pod, view(running()), kept)).lastState) == BY_RULE


@pytest.mark.parametrize("is_removed", [False, True])
def test_an_init_container_that_ran_again_in_a_new_sandbox_has_not_succeeded_when_it_vanishes(is_removed: bool) -> None:
    """With `is_removed`, so has the new sandbox, and that before it is there."""
    pod = make_pod(init=(container("i"),))
    old, new = sandbox(ready=False), sandbox("s1", attempt=1)
    again = view(running("i", number=1, sandbox="s1"), exited(code=137), sandboxes=(new, old))
    lost = view(exited(code=137), sandboxes=(old,) if is_removed else (new, old))
    for looks in (1, 2):
        (shown,) = reported_after(pod, view(exited("i"), running()), again, *[lost] * looks).initContainerStatuses
        assert (waiting(shown), end(shown.lastState), shown.restartCount) == ("PodInitializing", UNKNOWN, 2)


@pytest.mark.parametrize(("is_restarting", "reason"), [(True, "RestartingAllContainers"), (False, "ContainerCreating")])
def test_a_container_in_back_off_that_is_removed_to_restart_all(is_restarting: bool, reason: str) -> None:
    pod = make_pod(container(restartPolicyRules=(RULE,)))
    crashed = exited(code=1)
    status = reported_after(pod, view(crashed), errors=BACK_OFF)
    gone = facts(pod, view(), old=status, reset=frozenset({crashed.id}), restarting_all=is_restarting)
    shown = of(project_status(gone))
    assert (waiting(shown), end(shown.lastState), shown.restartCount) == (reason, BY_RULE, 1)


def test_a_container_with_a_start_that_failed_with_its_sandbox_is_removed_to_restart_all() -> None:
    """As one beside it that was not started again: its end was before the restart of all, which the failed start does not hide."""
    pod = make_pod(container(restartPolicyRules=(RULE,)))
    useless = instance(state=ObservedState.CREATED, number=1)
    status = reported_after(pod, view(exited(code=137)), view(useless, exited(code=137)))
    for looks in (1, 2):
        status = project_status(facts(pod, view(), old=status, restarting_all=True))
        shown = of(status)
        assert (waiting(shown), end(shown.lastState), shown.restartCount) == ("RestartingAllContainers", BY_RULE, 1), (
            looks
        )


def test_a_restarted_container_that_vanishes_has_ended() -> None:
    shown = of(reported_after(make_pod(), view(running(number=1), exited(code=3)), view()))
    assert (waiting(shown), end(shown.lastState), shown.restartCount) == ("ContainerCreating", UNKNOWN, 2)


def test_a_container_that_is_being_killed_for_its_restart_is_shown_as_running() -> None:
    alive = running()
    shown = of(reported_after(make_pod(), view(alive), errors=BACK_OFF, to_restart=frozenset({alive.id})))
    assert shown.state is not None
    assert shown.state.running is not None


def test_a_static_pod_that_ended_before_all_its_containers_began_has_failed() -> None:
    pod = make_pod(container(), container("b"), restartPolicy="Never")
    lost = view(exited(code=137), sandboxes=(sandbox(ready=False),))
    assert project_status(facts(pod, lost, Stage.FINISHED, terminal=True)).phase == "Failed"


NOT_LOCATED_AT_END = "The container could not be located when the pod was terminated"


NOT_LOCATED = "The container could not be located when the pod was deleted.  The container used to be Running"


def ended(**fields: Any) -> dict[str, Any]:
    return {"exitCode": 137, "reason": "ContainerStatusUnknown", **fields}


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


def test_after_the_end_a_container_that_ran_has_ended() -> None:
    shown = reported(make_pod(), view(running()), Stage.TERMINATED)
    assert shown["state"] == {"terminated": ended(message=NOT_LOCATED_AT_END)}


def test_the_end_of_a_container_is_remembered_after_the_pods_removal_from_the_runtime() -> None:
    old = project_status(facts(make_pod(restartPolicy="Never"), view(exited("app", 5)), Stage.TERMINATED))
    status = project_status(facts(make_pod(restartPolicy="Never"), view(sandboxes=()), Stage.FINISHED, old=old))
    assert status.containerStatuses == old.containerStatuses
    assert status.phase == "Failed"
