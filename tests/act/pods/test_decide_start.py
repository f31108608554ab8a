"""A pod comes up: what is planned, what is waited for, what is adopted."""

from __future__ import annotations

from typing import Any

import pytest
from act.pods.playbook import Playbook
from act.pods.scenes import box, container, created, exited, pod, probes, running, sidecar

from pykubelet.act.pods.model import CgroupGone, CleanEnded, Event, RuntimeRestarted, StopEnded, SyncEnded, Work
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.probes import ProbeResult


def test_nothing_is_done_before_the_runtime_was_looked_at() -> None:
    play = Playbook(pod())
    assert play.wakes() == []
    assert play.state.work is Work.NONE


def test_a_new_pod_comes_up() -> None:
    play = Playbook(pod(container("a"), container("b")))
    assert play.sees() == ["sync: sandbox 0; start a, b"]
    assert play.sync_ended("a", "b") == []
    assert play.sees(box(), running("a"), running("b")) == ["wake in 60 s"]
    assert play.state.stage is Stage.SYNCING


def test_init_containers_follow_each_other() -> None:
    play = Playbook(pod(init=(container("i1"), sidecar("s2"))))
    assert play.sees() == ["sync: sandbox 0; start i1"]
    assert play.sync_ended("i1") == []
    assert play.sees(box(), running("i1")) == ["wake in 60 s"]
    assert play.sees(box(), exited("i1")) == ["sync: start s2"]
    assert play.sync_ended("s2") == []
    assert play.sees(box(), exited("i1"), running("s2")) == ["sync: start app"]


def test_a_sidecars_startup_probe_lets_the_rest_go_on() -> None:
    mesh = sidecar("mesh", startupProbe={"exec": {"command": ["true"]}})
    play = Playbook(pod(init=(mesh,)))
    play.probes_changed(probes())
    assert play.sees(box(), running("mesh")) == ["wake in 60 s"]
    assert play.probes_changed(probes(startup_mesh_0=ProbeResult.SUCCESS)) == ["sync: start app"]


def test_a_view_from_before_the_sync_ended_means_nothing() -> None:
    play = Playbook(pod())
    play.sees()
    play.passes(5)
    play.sync_ended("app")
    assert play.sees(ago=1) == [], "this look began before the container was started"
    assert play.wakes() == []
    play.passes(0.01)
    assert play.sees(box(), running()) == ["wake in 60 s"]


def test_an_older_view_never_replaces_a_newer_one() -> None:
    play = Playbook(pod())
    play.runs(box(), running())
    play.passes(1)
    assert play.sees(ago=5) == []
    assert play.wakes() == ["wake in 60 s"]
    assert play.state.view is not None
    assert play.state.view.running


def test_what_runs_already_is_adopted() -> None:
    play = Playbook(pod(container("a"), container("b"), init=(container("i1"), sidecar("mesh"))))
    assert play.sees(box(), exited("i1"), running("mesh"), running("a"), running("b")) == ["wake in 60 s"]


def test_what_was_half_made_is_gone_on_with() -> None:
    play = Playbook(pod(container("a"), container("b")))
    assert play.sees(box(), running("a")) == ["sync: start b"]
    play = Playbook(pod())
    assert play.sees(box()) == ["sync: start app"]
    play = Playbook(pod())
    assert play.sees(box(), created()) == ["sync: remove app-0; start app"]


def test_an_adopted_pod_that_ended_meanwhile_is_stopped_and_cleaned_but_kept() -> None:
    play = Playbook(pod(restart="Never"))
    assert play.sees(box(), exited(code=0)) == ["stop within 30 s"]
    assert play.stop_ended() == ["clean up"]
    assert play.clean_ended() == []
    assert play.state.terminal


def test_a_change_seen_during_the_sync_interrupts_it_and_is_planned_from() -> None:
    play = Playbook(pod(container("a"), container("b")))
    play.sees()
    play.passes(1)
    assert play.sees(box(), running("a")) == ["abandon at the next pause"]
    play.passes(1)
    assert play.sync_abandoned() == [], "what the sync did last is not in that look"
    assert play.sees(box(), running("a")) == ["sync: start b"]


def test_an_old_view_does_not_interrupt_a_sync() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(app="ErrImagePull")
    play.passes(20)
    assert play.sees(box()) == ["sync: start app"]
    assert play.sees(ago=21) == []


def test_wake_ups_and_probe_results_wait_for_the_end_of_a_sync() -> None:
    play = Playbook(pod())
    play.sees()
    assert play.wakes() == []
    assert play.probes_changed(probes()) == []


def test_the_safety_net_wakes_a_pod_at_rest() -> None:
    play = Playbook(pod())
    play.runs(box(), running())
    play.passes(60)
    assert play.wakes() == ["wake in 60 s"]


def test_a_dead_sandbox_is_replaced_with_everything_in_it() -> None:
    play = Playbook(pod())
    play.runs(box(), running())
    assert play.sees(box(ready=False), running()) == ["sync: stop the pod; sandbox 1; start app"]


def test_a_container_that_fails_its_liveness_probe_is_replaced() -> None:
    play = Playbook(pod())
    play.runs(box(), running())
    assert play.probes_changed(probes(liveness_app_0=ProbeResult.FAILURE)) == ["sync: kill app-0 (liveness); start app"]


# What cannot be started


def test_a_container_that_cannot_be_started_is_tried_again_after_a_pause() -> None:
    play = Playbook(pod(container("a"), container("b")))
    play.sees()
    assert play.sync_ended("b", a="CreateContainerConfigError") == []
    assert play.errors() == {"a": "CreateContainerConfigError"}
    play.passes(1)
    assert play.sees(box(), running("b")) == ["wake in 9 s"]
    play.passes(9)
    assert play.wakes() == ["sync: start a"]
    assert play.sync_ended("a") == []
    assert play.errors() == {}


def test_an_image_pull_decides_when_to_try_again() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(app=("ImagePullBackOff", 40))
    play.passes(10)
    assert play.sees(box()) == ["wake in 30 s"]
    play.passes(30)
    assert play.wakes() == ["sync: start app"]


def test_the_nearest_of_several_retries_comes_first() -> None:
    play = Playbook(pod(container("a"), container("b"), container("c")))
    play.sees()
    play.sync_ended("c", a=("ImagePullBackOff", 40), b=("ErrImagePull", 15))
    assert play.sees(box(), running("c")) == ["wake in 15 s"]


def test_a_container_that_runs_after_all_has_no_error_any_more() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(app="RunContainerError")
    assert play.sees(box(), running()) == ["wake in 60 s"]
    assert play.errors() == {}


def test_a_kill_does_not_wait_until_the_container_may_be_started_again() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(app="RunContainerError")
    assert play.sees(box(), running(hash_of="other")) == ["sync: kill app-0 (changed)"]
    play.sync_ended()
    play.passes(1)
    assert play.sees(box(), exited(code=143, ended=play.wall)) == ["wake in 8.999 s"]


def test_a_pod_that_gets_no_sandbox_is_tried_again_ever_more_slowly() -> None:
    play = Playbook(pod())
    pauses = []
    play.sees()
    for _ in range(6):
        (wake,) = play.sync_ended(pod_error="CreatePodSandboxError")
        pauses.append(float(wake.split()[2]))
        assert play.sees() == [wake], "a look does not shorten the pause"
        play.passes(pauses[-1])
        assert play.wakes() == ["sync: sandbox 0; start app"]
    assert pauses == [1, 2, 4, 8, 10, 10]
    assert play.sync_ended("app") == []
    assert play.state.failure is None
    assert play.sees(box(ready=False)) == ["sync: stop the pod; sandbox 1; start app"]
    assert play.sync_ended(pod_error="CreatePodSandboxError") == ["wake in 1 s"], "a success ended the series"


def test_a_container_that_failed_in_a_dying_sandbox_starts_in_the_new_one() -> None:
    play = Playbook(pod())
    play.runs(box(), running())
    ended = play.wall
    assert play.sees(box(), exited(code=137, ended=ended)) == ["sync: start app"]
    play.sync_ended(app="CreateContainerError")
    assert play.sees(box(ready=False), exited(code=137, ended=ended)) == ["sync: stop the pod; sandbox 1; start app"]


# A changed manifest


@pytest.mark.parametrize(
    "change",
    [
        {"ephemeralContainers": [{"name": "debug", "image": "busybox:1"}]},
        {"tolerations": [{"operator": "Exists"}]},
        {"activeDeadlineSeconds": 60},
    ],
)
def test_a_change_that_leaves_the_containers_as_they_are_cuts_nothing_off(change: dict[str, Any]) -> None:
    play = Playbook(pod())
    play.sees()
    assert play.spec_changed(pod(**change)) == ["abandon at the next pause"]


def test_a_changed_image_ends_the_running_sync_at_once() -> None:
    play = Playbook(pod(container("app", image="busybox:1")))
    play.sees()
    assert play.spec_changed(pod(container("app", image="busybox:2"))) == ["abandon now"]
    assert play.sync_abandoned() == []
    assert play.sees(box()) == ["sync: start app"]
    assert play.state.pod.spec.containers[0].image == "busybox:2"


def test_a_changed_image_replaces_the_running_container() -> None:
    play = Playbook(pod(container("app")))
    play.runs(box(), running())
    assert play.spec_changed(pod(container("app", image="busybox:2"))) == ["sync: kill app-0 (changed); start app"]


def test_a_changed_manifest_ends_all_pauses() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(app=("ImagePullBackOff", 300))
    assert play.sees(box()) == ["wake in 300 s"]
    assert play.spec_changed(pod(container("app", image="busybox:2"))) == ["sync: start app"]
    play = Playbook(pod())
    play.sees()
    play.sync_ended(pod_error="CreatePodSandboxError")
    play.passes(0.1)
    play.sees()
    assert play.spec_changed(pod(container("app", image="busybox:2"))) == ["sync: sandbox 0; start app"]


def test_a_restarted_runtime_ends_all_pauses() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(app="CreateContainerError")
    assert play.sees(box()) == ["wake in 10 s"]
    assert play.hears(RuntimeRestarted()) == ["sync: start app"]
    assert play.hears(RuntimeRestarted()) == [], "what is under way goes on"


def test_changed_labels_do_not_disturb_a_sync() -> None:
    play = Playbook(pod())
    play.sees()
    assert play.spec_changed(pod(metadata={"labels": {"a": "b"}})) == []
    assert play.state.pod.metadata.labels == {"a": "b"}


# Illegal events


@pytest.mark.parametrize("event", [SyncEnded(), StopEnded(), CleanEnded()])
def test_the_end_of_work_that_is_not_under_way_is_a_bug(event: Event) -> None:
    play = Playbook(pod())
    with pytest.raises(ValueError, match="web_shop"):
        play.hears(event)


def test_a_pod_whose_cgroup_is_gone_starts_anew_in_another_sandbox() -> None:
    play = Playbook(pod())
    play.sees(box(), running())
    assert play.hears(CgroupGone(box().id)) == ["sync: stop the pod; sandbox 1; start app"]
    play.sync_ended("app")
    assert play.sees(box(1), running(attempt=1), box(0, ready=False)) == ["wake in 60 s"]


def test_a_pod_that_never_restarts_ends_when_its_cgroup_is_gone() -> None:
    play = Playbook(pod(restart="Never"))
    play.sees(box(), running())
    assert play.hears(CgroupGone(box().id))[0].startswith("stop")
    assert play.state.stage is Stage.TERMINATING


def test_an_init_container_that_has_succeeded_is_waited_for_no_more() -> None:
    """A runtime that is killed may have started it without an answer."""
    play = Playbook(pod(init=(container("i1"),)))
    play.sees(box())
    play.sync_ended(i1="RunContainerError")
    assert play.errors() == {"i1": "RunContainerError"}
    play.sees(box(), exited("i1"))
    assert play.errors() == {}


def test_an_init_container_that_has_failed_is_waited_for() -> None:
    play = Playbook(pod(init=(container("i1"),)))
    play.sees(box())
    play.sync_ended(i1="RunContainerError")
    play.sees(box(), exited("i1", 3))
    assert "i1" in play.errors()
