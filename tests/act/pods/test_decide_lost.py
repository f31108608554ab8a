"""Sandboxes that are stopped or removed from outside while their pod runs.

The runtime ends the containers first. Their ends are known before that of the sandbox, in any order and with any delay.
"""

from __future__ import annotations

import pytest
from act.pods.playbook import Playbook
from act.pods.scenes import box, container, created, exited, pod, probes, rule, running, sidecar

from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import ContainerView, SandboxView
from pykubelet.base.model.probes import ProbeResult


def up(*views: SandboxView | ContainerView, restart: str = "Always") -> Playbook:
    names = dict.fromkeys(item.name for item in views if isinstance(item, ContainerView))
    play = Playbook(pod(*(container(name) for name in names), restart=restart))
    play.runs(box(), *views)
    play.passes(30)
    return play


def restart_in_old_sandbox(play: Playbook) -> ContainerView:
    """Container `app` is killed from outside and started again in its sandbox, which will end too."""
    killed = exited(code=137, ended=play.wall)
    assert play.sees(box(), killed) == ["sync: start app"]
    play.passes(0.1)
    return killed


def renamed(instance: ContainerView) -> ContainerView:
    """The instance that has the number of one in an earlier sandbox."""
    return replace(instance, id=ContainerID(f"{instance.id}-in-{instance.sandbox_id}"))


def uncounted(play: Playbook) -> list[str]:
    return [useless.id for useless in play.state.loss.uncounted]


def test_a_sandbox_whose_end_is_seen_with_that_of_its_container() -> None:
    play = up(running())
    killed = exited(code=137, ended=play.wall)
    assert play.sees(box(ready=False), killed) == ["sync: stop the pod; sandbox 1; start app"]
    assert uncounted(play) == []


@pytest.mark.parametrize(
    "useless",
    [
        exited(code=128, attempt=1, reason="StartError"),
        exited(code=137, attempt=1),
        running(attempt=1),
        created(attempt=1),
    ],
    ids=["could not start", "was killed", "still runs", "was only created"],
)
def test_an_instance_that_was_started_while_its_sandbox_ended_does_not_count(useless: ContainerView) -> None:
    play = up(running())
    killed = restart_in_old_sandbox(play)
    play.sync_ended("app")
    assert play.sees(box(ready=False), killed, useless) == [
        "sync: remove with its log app-1; stop the pod; sandbox 1; start app"
    ]
    assert play.errors() == {}
    assert play.state.view is not None
    assert [c.id for c in play.state.view.containers] == ["app-0"], "the next instance gets the number after this one's"
    play.sync_ended("app")
    again = renamed(running(attempt=1, sandbox=1))
    assert play.sees(box(1), box(ready=False), killed, again) == ["wake in 60 s"]


def test_the_end_of_a_container_is_known_after_the_instance_was_collected() -> None:
    play = up(running())
    restart_in_old_sandbox(play)
    play.sync_ended("app")
    useless = exited(code=137, attempt=1, ended=play.wall)
    assert play.sees(box(), useless) == ["say app is held back", "wake in 10 s"]
    assert play.sees(box(ready=False), useless) == [
        "sync: remove with its log app-1; stop the pod; sandbox 1; start app"
    ]
    assert [useless.ended.id for useless in play.state.loss.uncounted] == ["app-0"]


def test_a_start_that_failed_because_the_sandbox_ended_does_not_count() -> None:
    play = up(running())
    killed = restart_in_old_sandbox(play)
    refused = exited(code=128, attempt=1, reason="StartError", ended=play.wall)
    play.start_refused(attempt=1)
    assert play.sees(box(), killed, refused)[0] == "say app is held back"
    play.passes(0.1)
    assert play.sees(box(ready=False), killed, refused) == [
        "sync: remove with its log app-1; stop the pod; sandbox 1; start app"
    ]
    assert play.errors() == {}


def test_the_back_off_is_raised_once_for_the_end_of_a_sandbox() -> None:
    play = up(running())
    killed = restart_in_old_sandbox(play)
    play.sync_ended("app")
    play.sees(box(ready=False), killed, exited(code=137, attempt=1, ended=play.wall))
    play.sync_ended("app")
    play.runs(box(1), box(ready=False), killed, renamed(running(attempt=1, sandbox=1)))
    play.passes(2)
    crashed = renamed(exited(code=1, attempt=1, sandbox=1, ended=play.wall))
    assert play.sees(box(1), box(ready=False), killed, crashed) == ["say app is held back", "wake in 10 s"]


def test_a_later_end_has_its_back_off_although_an_earlier_one_did_not_count() -> None:
    play = up(running())
    killed = restart_in_old_sandbox(play)
    play.sync_ended("app")
    play.sees(box(ready=False), killed, exited(code=137, attempt=1, ended=play.wall))
    play.sync_ended("app")
    boxes = (box(1), box(ready=False))
    play.runs(*boxes, killed, renamed(running(attempt=1, sandbox=1)))
    play.passes(2)
    crashed = renamed(exited(code=1, attempt=1, sandbox=1, ended=play.wall))
    play.sees(*boxes, killed, crashed)
    play.passes(10)
    assert play.wakes() == ["sync: start app"]
    play.sync_ended("app")
    play.runs(*boxes, killed, crashed, renamed(running(attempt=2, sandbox=1)))
    play.passes(1)
    assert play.sees(*boxes, killed, crashed)[0].startswith("wake in"), "its successor was removed"


def test_a_restart_of_all_containers_ends_the_memory_of_instances_that_do_not_count() -> None:
    play = Playbook(pod(container("app", restartPolicyRules=[rule("RestartAllContainers", 88)])))
    play.runs(box(), running())
    play.passes(30)
    killed = restart_in_old_sandbox(play)
    play.sync_ended("app")
    play.sees(box(ready=False), killed, exited(code=137, attempt=1, ended=play.wall))
    play.sync_ended("app")
    play.runs(box(1), box(ready=False), killed, renamed(running(attempt=1, sandbox=1)))
    assert uncounted(play) == ["app-1"]
    play.passes(60)
    asks = renamed(exited(code=88, attempt=1, sandbox=1, ended=play.wall))
    assert play.sees(box(1), asks)[-1].startswith("sync: restart all")
    assert uncounted(play) == [], "its predecessor is not shown again"


def test_a_container_that_a_probe_killed_has_not_ended_with_its_sandbox() -> None:
    play = up(running())
    assert play.probes_changed(probes(liveness_app_0=ProbeResult.FAILURE)) == ["sync: kill app-0 (liveness); start app"]
    killed = exited(code=137, ended=play.wall)
    play.sync_ended("app")
    play.runs(box(), killed, running(attempt=1))
    play.passes(1)
    with_sandbox = exited(code=137, attempt=1, ended=play.wall)
    assert play.sees(box(ready=False), killed, with_sandbox) == ["sync: stop the pod; sandbox 1; start app"]
    assert uncounted(play) == [], "its restart counts"


def test_a_sandbox_that_had_ended_before_the_first_view_takes_no_restart_back() -> None:
    # the wall clock may have been set since, so dates do not show how close the ends were
    play = Playbook(pod(container("app")))
    crashed, killed = exited(code=1, ended=play.wall + 60), exited(code=255, attempt=1, ended=play.wall - 1)
    for _ in range(2):
        play.sees(box(ready=False), crashed, killed)
    assert uncounted(play) == []


def test_the_end_of_the_sandbox_may_be_seen_while_the_useless_start_is_under_way() -> None:
    play = up(running())
    killed = restart_in_old_sandbox(play)
    assert play.sees(box(ready=False), killed) == ["abandon at the next pause"]
    play.start_refused(attempt=1)
    refused = exited(code=128, attempt=1, reason="StartError", ended=play.wall)
    assert play.sees(box(ready=False), killed, refused) == [
        "sync: remove with its log app-1; stop the pod; sandbox 1; start app"
    ]


def test_containers_end_one_after_the_other() -> None:
    play = up(running("a"), running("b"))
    first = exited("a", code=137, ended=play.wall)
    assert play.sees(box(), first, running("b")) == ["sync: start a"]
    play.sync_ended("a")
    play.passes(1)
    second = exited("b", code=137, ended=play.wall)
    assert play.sees(box(), first, running("a", attempt=1), second) == ["sync: start b"]
    play.sync_ended("b")
    play.passes(1)
    look = (box(ready=False), first, running("a", attempt=1), second, running("b", attempt=1))
    assert play.sees(*look) == ["sync: remove with its log a-1, b-1; stop the pod; sandbox 1; start a, b"]


def test_a_busy_runtime_needs_seconds_for_each_container() -> None:
    play = up(running("a"), running("b"))
    first = exited("a", code=137, ended=play.wall)
    assert play.sees(box(), first, running("b")) == ["sync: start a"]
    play.sync_ended("a")
    play.passes(4)
    second = exited("b", code=137, ended=play.wall)
    assert play.sees(box(), first, running("a", attempt=1), second) == ["sync: start b"]
    play.sync_ended("b")
    play.passes(3)
    look = (box(ready=False), first, running("a", attempt=1), second, running("b", attempt=1))
    assert play.sees(*look) == ["sync: remove with its log a-1, b-1; stop the pod; sandbox 1; start a, b"]


def test_a_crash_before_the_containers_of_the_sandbox_are_killed_counts() -> None:
    play = up(running("a"), running("b"))
    first = exited("a", code=1, ended=play.wall)
    assert play.sees(box(), first, running("b")) == ["sync: start a"]
    play.sync_ended("a")
    play.passes(4)
    second = exited("b", code=137, ended=play.wall)
    assert play.sees(box(), first, running("a", attempt=1), second) == ["sync: start b"]
    play.sync_ended("b")
    play.passes(6)
    look = (box(ready=False), first, running("a", attempt=1), second, running("b", attempt=1))
    play.sees(*look)
    assert uncounted(play) == []


def test_a_sandbox_that_is_removed_after_a_useless_start() -> None:
    play = up(running())
    killed = restart_in_old_sandbox(play)
    play.sync_ended("app")
    assert play.sees(box(), killed, running(attempt=1)) == ["wake in 60 s"]
    play.passes(0.1)
    assert play.sees() == ["sync: remove with its log app-1; sandbox 0; start app"]


def test_an_earlier_crash_in_the_sandbox_counts() -> None:
    play = up(running())
    killed = restart_in_old_sandbox(play)
    play.sync_ended("app")
    play.runs(box(), killed, running(attempt=1))
    play.passes(6)
    second = exited(code=137, attempt=1, ended=play.wall)
    assert play.sees(box(ready=False), killed, second) == [
        "say app is held back",
        "sync: stop the pod; sandbox 1",
    ]
    assert uncounted(play) == []


def test_a_pod_that_never_restarts_ends_with_its_sandbox() -> None:
    play = up(running(), restart="Never")
    assert play.sees(box(), exited(code=137, ended=play.wall)) == ["stop within 30 s"]
    assert play.sees(box(ready=False), exited(code=137, ended=play.wall)) == []
    assert uncounted(play) == []


def test_a_sidecar_ends_with_the_sandbox() -> None:
    play = Playbook(pod(init=(sidecar("mesh"),)))
    play.runs(box(), running("mesh"), running())
    play.passes(30)
    killed = exited("mesh", code=137, ended=play.wall)
    assert play.sees(box(), killed, running()) == ["sync: start mesh"]
    play.sync_ended("mesh")
    play.passes(0.2)
    over = exited(code=137, ended=play.wall)
    assert play.sees(box(ready=False), killed, running("mesh", attempt=1), over) == [
        "sync: remove with its log mesh-1; stop the pod; sandbox 1; start mesh"
    ]
