"""Statuses of containers some of whose instances the runtime has not any more, or not yet in the newest view."""

from __future__ import annotations

from typing import Any

import pytest
from report.samples import container, exited, facts, instance, make_pod, running, sandbox, view

from pykubelet.base.api import core
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.observed import ObservedState, PodView
from pykubelet.report.status.project import project_status

BACK_OFF = {"app": ("CrashLoopBackOff", "back-off 10s restarting failed container=app pod=web_default(uid-1)")}
UNKNOWN = (137, "ContainerStatusUnknown")
BY_RULE = (137, "RestartingAllContainers")
RULE = core.ContainerRestartRule(action="RestartAllContainers")


def after(pod: core.Pod, *steps: PodView | None, **fields: Any) -> core.PodStatus:
    """The status after these views, each projected from the one before; `fields` are of the last."""
    old = None
    for number, seen in enumerate(steps, 1):
        more = fields if number == len(steps) else {}
        old = project_status(facts(pod, seen, **{"old": old, **more}))
    assert old is not None
    return old


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
    shown = of(after(make_pod(), view(newest, exited(code=3)), view(exited(code=3))))
    assert (waiting(shown), end(shown.lastState), shown.restartCount) == ("ContainerCreating", UNKNOWN, 2)


def test_an_instance_before_the_one_in_back_off_is_no_news() -> None:
    status = after(make_pod(), view(exited(code=1, number=1), exited(code=3)), errors=BACK_OFF)
    assert waiting(of(status)) == "CrashLoopBackOff"
    shown = of(project_status(facts(make_pod(), view(exited(code=3)), old=status)))
    assert (waiting(shown), end(shown.lastState), shown.restartCount) == ("ContainerCreating", (1, "Error"), 1)


def test_an_instance_that_was_never_started_is_no_last_state() -> None:
    never = instance(state=ObservedState.CREATED, number=1)
    shown = of(after(make_pod(), view(running(number=2), never, exited(code=3))))
    assert end(shown.lastState) == (3, "Error")


def test_the_last_state_stays_when_the_instance_was_removed_and_an_earlier_one_was_not() -> None:
    before, removed = exited(code=3), exited(code=4, number=1)
    shown = of(after(make_pod(), view(removed, before), view(running(number=2), before)))
    assert end(shown.lastState) == (4, "Error")


def test_an_end_is_not_its_own_last_state_when_the_failed_start_after_it_is_given_up() -> None:
    pod = make_pod(restartPolicy="OnFailure")
    status = after(pod, view(exited(code=3)), errors=BACK_OFF)
    assert end(of(status).lastState) == (3, "Error")
    shown = of(project_status(facts(pod, view(exited(code=3)), old=status)))
    assert (end(shown.state), shown.lastState) == ((3, "Error"), None)


def test_the_end_of_an_instance_that_does_not_count_is_no_last_state() -> None:
    killed, useless = exited(code=137), exited(code=137, number=1)
    status = after(make_pod(), view(killed), view(useless, killed), errors=BACK_OFF)
    assert waiting(of(status)) == "CrashLoopBackOff"
    uncounted = {useless.id: killed}
    shown = of(project_status(facts(make_pod(), view(useless, killed), old=status, uncounted=uncounted)))
    assert (end(shown.state), shown.lastState) == ((137, "Error"), None)


def test_a_restart_counts_also_after_another_instance_of_the_container_did_not_count() -> None:
    killed, useless = exited(code=137), running(number=1)
    uncounted = {useless.id: killed}
    again, third = (replace(running(number=1), id=ContainerID(name)) for name in ("app-new", "app-third"))
    before = after(make_pod(), view(killed), view(again), uncounted=uncounted)
    shown = of(project_status(facts(make_pod(), view(third), old=before, uncounted=uncounted)))
    assert shown.restartCount == 2


def test_a_restart_counts_though_the_ended_instance_and_its_log_were_removed_before_it() -> None:
    """Without both, the new instance has the count of the ended one."""
    pod, ended, again = make_pod(), exited(code=137, number=2), replace(running(number=2), id=ContainerID("app-new"))
    before = after(pod, view(ended), view(ended), errors=BACK_OFF)
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
    status = after(make_pod(), view(running(number=1)), view(killed))
    status = replace(status, containerStatuses=(replace(of(status), containerID="fake://app-0", restartCount=1),))
    for seen in (view(killed), view(useless, killed), view(useless, killed)):
        status = project_status(facts(make_pod(), seen, old=status))
    assert of(status).restartCount == 2
    for seen in (view(killed), view(again)):
        status = project_status(facts(make_pod(), seen, old=status, uncounted=uncounted))
    assert of(status).restartCount == 2


def test_the_restart_of_an_instance_that_has_vanished_counts_once() -> None:
    """It has counted when that was seen."""
    vanished = after(make_pod(), view(running(number=2)), view(sandboxes=(sandbox("s1", attempt=1),)))
    assert of(vanished).restartCount == 3
    again = replace(running(number=2), id=ContainerID("app-new"))
    assert of(project_status(facts(make_pod(), view(again), old=vanished))).restartCount == 3


def test_a_container_that_is_lost_with_its_sandbox_was_not_removed_by_a_rule() -> None:
    pod = make_pod(container(restartPolicyRules=(RULE,)))
    later = replace(sandbox("s1", attempt=1), created_at=running(number=1).created_at)
    seen = view(running(number=1, sandbox="s1"), sandboxes=(later,))
    assert end(of(after(pod, view(running()), seen)).lastState) == UNKNOWN
    kept = view(running(number=1))
    assert end(of(after(pod, view(running()), kept)).lastState) == BY_RULE


@pytest.mark.parametrize("is_removed", [False, True])
def test_an_init_container_that_ran_again_in_a_new_sandbox_has_not_succeeded_when_it_vanishes(is_removed: bool) -> None:
    """With `is_removed`, so has the new sandbox, and that before it is there."""
    pod = make_pod(init=(container("i"),))
    old, new = sandbox(ready=False), sandbox("s1", attempt=1)
    again = view(running("i", number=1, sandbox="s1"), exited(code=137), sandboxes=(new, old))
    lost = view(exited(code=137), sandboxes=(old,) if is_removed else (new, old))
    for looks in (1, 2):
        (shown,) = after(pod, view(exited("i"), running()), again, *[lost] * looks).initContainerStatuses
        assert (waiting(shown), end(shown.lastState), shown.restartCount) == ("PodInitializing", UNKNOWN, 2)


@pytest.mark.parametrize(("is_restarting", "reason"), [(True, "RestartingAllContainers"), (False, "ContainerCreating")])
def test_a_container_in_back_off_that_is_removed_to_restart_all(is_restarting: bool, reason: str) -> None:
    pod = make_pod(container(restartPolicyRules=(RULE,)))
    crashed = exited(code=1)
    status = after(pod, view(crashed), errors=BACK_OFF)
    gone = facts(pod, view(), old=status, reset=frozenset({crashed.id}), restarting_all=is_restarting)
    shown = of(project_status(gone))
    assert (waiting(shown), end(shown.lastState), shown.restartCount) == (reason, BY_RULE, 1)


def test_a_restarted_container_that_vanishes_has_ended() -> None:
    shown = of(after(make_pod(), view(running(number=1), exited(code=3)), view()))
    assert (waiting(shown), end(shown.lastState), shown.restartCount) == ("ContainerCreating", UNKNOWN, 2)


def test_a_container_that_is_being_killed_for_its_restart_is_shown_as_running() -> None:
    alive = running()
    shown = of(after(make_pod(), view(alive), errors=BACK_OFF, to_restart=frozenset({alive.id})))
    assert shown.state is not None
    assert shown.state.running is not None


def test_a_static_pod_that_ended_before_all_its_containers_began_has_failed() -> None:
    pod = make_pod(container(), container("b"), restartPolicy="Never")
    lost = view(exited(code=137), sandboxes=(sandbox(ready=False),))
    assert project_status(facts(pod, lost, Stage.FINISHED, terminal=True)).phase == "Failed"
