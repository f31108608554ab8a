"""Changes that are declared to have no effect on a status must not change it: compared with the projection itself."""

from __future__ import annotations

from itertools import product

import pytest
from report.samples import container, exited, facts, host_sandbox, lifecycle, make_pod, running, sandbox, sidecar, view

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import KillReason, Stage
from pykubelet.base.model.observed import PodView
from pykubelet.report.status.changes import is_cleaned_up, is_complete, is_final, lifecycle_unchanged
from pykubelet.report.status.project import project_status

PODS: dict[str, Pod] = {
    f"{policy}, static {static}, init {len(init)}": make_pod(init=init, static=static, restartPolicy=policy)
    for policy, static, init in product(
        ("Always", "OnFailure", "Never"), (True, False), ((), (container("first"), sidecar()))
    )
}
SIGHTS: dict[str, PodView | None] = {
    "nothing known": None,
    "gone": view(sandboxes=()),
    "runs": view(running()),
    "runs after the others": view(running(), running("side"), exited("first")),
    "runs, others unseen": view(running(), running("side")),
    "runs, sandbox ended": view(running(), sandboxes=(sandbox(ready=False),)),
    "runs, no address": view(running(), sandboxes=(sandbox(ips=()),)),
    "on the host's network": view(running(), sandboxes=(host_sandbox(),)),
    "ended": view(exited("app", 1), sandboxes=(sandbox(ready=False),)),
    "ended well": view(exited("app"), exited("first"), exited("side"), sandboxes=(sandbox(ready=False),)),
    "no container yet": view(),
}
LIVES = [(stage, kill) for stage in Stage for kill in (None, *KillReason) if (kill is None) == (stage is Stage.SYNCING)]


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("name", PODS)
def test_a_stage_that_is_no_news_changes_no_status(name: str, sight: str) -> None:
    pod, seen, quiet = PODS[name], SIGHTS[sight], 0
    for (stage, kill), (later, reason) in product(LIVES, LIVES):
        before, now = lifecycle(pod, stage, kill_reason=kill), lifecycle(pod, later, kill_reason=reason)
        if list(Stage).index(later) < list(Stage).index(stage) or not lifecycle_unchanged(before, now, seen):
            continue
        quiet += before.stage is not now.stage
        started = project_status(facts(pod, view(running(), running("side"), exited("first"))))
        reported = project_status(facts(pod, seen, lifecycle=before, old=started))
        assert project_status(facts(pod, seen, lifecycle=now, old=reported)) == reported
    assert quiet, "at least that all is done is no news after the end"


@pytest.mark.parametrize("sight", ["ended", "ended well"])
@pytest.mark.parametrize("name", [name for name in PODS if "static False" in name])
def test_that_an_ended_pod_was_removed_is_no_news(name: str, sight: str) -> None:
    pod, seen, gone = PODS[name], SIGHTS[sight], SIGHTS["gone"]
    before = lifecycle(pod, Stage.TERMINATED, kill_reason=KillReason.DELETED)
    now = lifecycle(pod, Stage.FINISHED, kill_reason=KillReason.DELETED)
    started = project_status(facts(pod, view(running(), running("side"), exited("first"))))
    reported = project_status(facts(pod, seen, lifecycle=before, old=started))
    assert is_cleaned_up(seen, gone, before)
    assert project_status(facts(pod, gone, lifecycle=now, old=reported)) == reported


def test_what_still_runs_was_not_reported_to_the_end() -> None:
    pod = PODS["Always, static True, init 0"]
    ending = lifecycle(pod, Stage.TERMINATED, kill_reason=KillReason.REMOVED)
    assert not is_complete(project_status(facts(pod, view(running()))), ending)
    ended = project_status(facts(pod, view(exited("app", 1)), lifecycle=ending))
    assert is_complete(ended, ending)
    assert not is_complete(ended, lifecycle(pod, Stage.TERMINATED, kill_reason=KillReason.DELETED))


@pytest.mark.parametrize("name", [name for name in PODS if "static False" in name])
def test_how_a_deleted_pod_is_taken_down_after_its_end_was_reported_is_no_news(name: str) -> None:
    pod, seen = PODS[name], SIGHTS["ended well"]
    ending = lifecycle(pod, Stage.TERMINATED, kill_reason=KillReason.DELETED)
    reported = project_status(facts(pod, seen, lifecycle=ending))
    assert is_final(reported, ending)
    assert not is_final(reported, lifecycle(pod, Stage.TERMINATING, kill_reason=KillReason.DELETED))
    assert not is_final(reported, lifecycle(pod, Stage.TERMINATED, kill_reason=KillReason.COMPLETED))
    assert not is_final(project_status(facts(pod, view(running()))), ending)
    kept = replace(pod, metadata=replace(pod.metadata, finalizers=("example.com/keep",)))
    assert not is_final(reported, lifecycle(kept, Stage.TERMINATED, kill_reason=KillReason.DELETED))


def test_what_is_left_of_a_pod_is_looked_at() -> None:
    ended = lifecycle(PODS["Always, static False, init 0"], Stage.TERMINATED, kill_reason=KillReason.DELETED)
    left = view(exited(), sandboxes=())
    assert is_cleaned_up(left, view(sandboxes=()), ended)
    assert not is_cleaned_up(view(running()), view(sandboxes=()), ended)
    assert not is_cleaned_up(left, left, ended)
