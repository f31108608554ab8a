"""A pod is ended: by removal, deletion, rejection, eviction, or because its containers have ended."""

from __future__ import annotations

from typing import Any

import pytest
from act.pods.playbook import Playbook
from act.pods.scenes import REF, box, container, exited, pod, probes, running, sidecar, view

from pykubelet.act.pods.decide import step
from pykubelet.act.pods.model import PodWorkerState, RuntimeChanged, StopPod, Work
from pykubelet.base.model.lifecycle import KillReason, Stage, StatusOverride
from pykubelet.base.model.probes import ProbeResult

REMOVED, DELETED, EVICTED = KillReason.REMOVED, KillReason.DELETED, KillReason.EVICTED


def at_rest(**spec: Any) -> Playbook:
    play = Playbook(pod(**spec))
    play.runs(box(), running())
    return play


def is_done(state: PodWorkerState) -> bool:
    return state.stage is Stage.FINISHED and state.work is Work.NONE


def test_a_removed_pod_is_stopped_cleaned_and_gone() -> None:
    play = at_rest()
    assert (play.killed(REMOVED), play.state.stage) == (["stop within 30 s"], Stage.TERMINATING)
    assert (play.stop_ended(), play.state.stage) == (["clean up and remove"], Stage.TERMINATED)
    assert play.clean_ended() == []
    assert is_done(play.state)
    assert play.state.removed


@pytest.mark.parametrize(("code", "reason"), [(1, "Error"), (0, "OOMKilled")])
def test_the_history_names_the_init_container_that_failed(code: int, reason: str) -> None:
    play = Playbook(pod(init=(container("eater"),), restart="Never"))
    look = view(box(), exited("eater", code, reason=reason), read_at=play.now)
    (stop,) = step(play.state, RuntimeChanged(look, play.wall), play.now, play.rules)[1]
    assert isinstance(stop, StopPod)
    assert stop.cause == f"init container eater has failed: it ended with {code} ({reason})"


@pytest.mark.parametrize(
    ("own", "deletion", "asked", "grace"),
    [
        (None, None, None, 30),
        (5, None, None, 5),
        (0, None, None, 1),
        (60, 10, None, 10),
        (30, 90, None, 90),
        (30, 0, None, 1),
        (30, None, 1, 1),
        (30, None, 50, 50),
        (30, 60, 5, 5),
        (30, 5, 60, 5),
    ],
)
def test_how_long_a_pod_may_take_to_end(own: int | None, deletion: int | None, asked: int | None, grace: int) -> None:
    deleted = {} if deletion is None else {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    spec: dict[str, Any] = {} if own is None else {"terminationGracePeriodSeconds": own}
    play = Playbook(pod(metadata={"deletionGracePeriodSeconds": deletion, **deleted}, **spec))
    assert play.killed(EVICTED, asked) == [f"stop within {grace} s"]


def test_a_deletion_in_the_api_ends_the_pod() -> None:
    play = at_rest()
    gone = pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 7})
    assert play.spec_changed(gone) == ["stop within 7 s"]
    assert play.state.kill is not None
    assert play.state.kill.reason is DELETED
    assert play.stop_ended() == ["clean up and remove"]


def test_a_container_that_waits_to_start_again_has_ended_when_its_pod_is() -> None:
    play = at_rest()
    play.probes_changed(probes(liveness_app_0=ProbeResult.FAILURE))
    assert play.state.to_restart
    assert play.spec_changed(pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})) == ["abandon now"]
    play.sees(box(), exited(code=3))
    assert play.sync_abandoned() == ["stop within 30 s"]
    assert not play.state.to_restart


def test_the_grace_period_only_shrinks() -> None:
    play = at_rest(terminationGracePeriodSeconds=60)
    assert play.killed(EVICTED, 20) == ["stop within 20 s"]
    assert play.killed(REMOVED, 40) == []
    assert play.killed(REMOVED) == []
    assert play.killed(REMOVED, 20) == []
    assert play.killed(REMOVED, 3) == ["stop within 3 s"]
    assert play.killed(REMOVED, 0) == ["stop within 1 s"]
    assert play.stop_ended() == ["clean up and remove"]


def test_a_longer_grace_of_the_api_is_not_shortened_by_the_pods_own() -> None:
    play = at_rest()
    gone = pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 90})
    assert play.spec_changed(gone) == ["stop within 90 s"]
    assert play.killed(REMOVED) == []


def test_a_kill_abandons_the_running_sync_and_waits_for_its_end() -> None:
    play = Playbook(pod())
    play.sees()
    assert play.killed(REMOVED) == ["abandon now"]
    assert play.sees(box(), running()) == [], "nothing is begun beside the ending sync"
    assert play.sync_abandoned() == ["stop within 30 s"]


def test_a_kill_during_a_sync_takes_the_shortest_grace_asked_for_meanwhile() -> None:
    play = Playbook(pod())
    play.sees()
    play.killed(REMOVED)
    assert play.killed(REMOVED, 4) == []
    assert play.sync_abandoned() == ["stop within 4 s"]


def test_a_sync_that_fails_while_the_pod_is_killed_does_not_delay_the_end() -> None:
    play = Playbook(pod())
    play.sees()
    play.killed(REMOVED)
    assert play.sync_ended(pod_error="CreatePodSandboxError") == ["stop within 30 s"]


def test_a_kill_does_not_wait_for_a_retry_of_the_pod() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(pod_error="CreatePodSandboxError")
    assert play.killed(REMOVED) == ["stop within 30 s"]


def test_a_kill_does_not_wait_for_a_container_held_back() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(app=("ImagePullBackOff", 300))
    play.sees(box())
    assert play.killed(REMOVED) == ["stop within 30 s"]


def test_a_kill_before_the_runtime_was_ever_looked_at() -> None:
    assert Playbook(pod()).killed(REMOVED) == ["stop within 30 s"]


def test_a_stop_that_failed_is_tried_again_ever_more_slowly() -> None:
    play = at_rest()
    play.killed(REMOVED)
    pauses = []
    for _ in range(6):
        (wake,) = play.stop_ended("containers still run: app")
        pauses.append(float(wake.split()[2]))
        assert play.state.failure is not None
        assert play.state.stage is Stage.TERMINATING
        play.passes(pauses[-1])
        assert play.wakes() == ["stop within 30 s"]
    assert pauses == [1, 2, 4, 8, 10, 10]
    assert play.stop_ended() == ["clean up and remove"]
    assert play.state.failure is None


def test_a_clean_up_that_failed_is_tried_again() -> None:
    play = at_rest()
    play.killed(REMOVED)
    play.stop_ended()
    assert play.clean_ended("the pod's cgroup is still in use") == ["wake in 1 s"]
    assert play.state.stage is Stage.TERMINATED
    play.passes(0.5)
    assert play.wakes() == ["wake in 0.5 s"]
    play.passes(0.5)
    assert play.wakes() == ["clean up and remove"]
    play.clean_ended()
    assert is_done(play.state)


def test_a_view_does_not_shorten_the_pause_after_a_failed_stop() -> None:
    play = at_rest()
    play.killed(REMOVED)
    play.stop_ended("no")
    play.passes(0.25)
    assert play.sees(box(), running()) == ["wake in 0.75 s"]


def test_nothing_is_started_again_once_a_pod_is_killed() -> None:
    play = at_rest()
    play.killed(EVICTED)
    for answer in (
        play.sees(box(), exited(code=1)),
        play.sees(box(ready=False)),
        play.spec_changed(pod(container("app", image="busybox:2"))),
        play.probes_changed(probes(liveness_app_0=ProbeResult.FAILURE)),
        play.wakes(),
    ):
        assert answer == []
    assert play.stop_ended() == ["clean up"]
    assert play.sees(box(ready=False), exited(code=1)) == []
    assert play.clean_ended() == []
    assert play.wakes() == []
    assert play.sees() == []
    assert is_done(play.state)


# Pods that end by themselves


@pytest.mark.parametrize(("policy", "code"), [("Never", 0), ("Never", 3), ("OnFailure", 0)])
def test_a_pod_whose_containers_have_ended_is_stopped_and_its_containers_kept(policy: str, code: int) -> None:
    play = at_rest(restart=policy, terminationGracePeriodSeconds=12)
    assert play.sees(box(), exited(code=code)) == ["stop within 12 s"]
    assert play.state.terminal
    assert play.stop_ended() == ["clean up"]
    assert play.clean_ended() == []
    assert is_done(play.state)
    assert not play.state.removed


def test_sidecars_end_with_the_last_regular_container() -> None:
    play = Playbook(pod(init=(sidecar(),), restart="Never"))
    play.runs(box(), running("mesh"), running())
    assert play.sees(box(), running("mesh"), exited(code=0)) == ["stop within 30 s"]


def test_a_failed_init_container_ends_a_pod_that_never_restarts() -> None:
    play = Playbook(pod(init=(container("i1"),), restart="Never"))
    assert play.sees(box(), exited("i1", code=1)) == ["stop within 30 s"]
    assert play.state.terminal


def test_a_completed_pod_is_removed_for_good_later() -> None:
    play = at_rest(restart="Never")
    play.sees(box(), exited())
    play.stop_ended()
    play.clean_ended()
    assert play.killed(REMOVED) == ["clean up and remove"]
    assert play.state.stage is Stage.TERMINATED
    play.clean_ended()
    assert is_done(play.state)
    assert play.state.removed
    assert play.killed(REMOVED) == []


@pytest.mark.parametrize("when", ["stopping", "cleaning"])
def test_a_completed_pod_removed_while_it_is_being_ended(when: str) -> None:
    play = at_rest(restart="Never")
    play.sees(box(), exited())
    if when == "stopping":
        assert play.killed(REMOVED) == []
        assert play.stop_ended() == ["clean up and remove"]
    else:
        play.stop_ended()
        assert play.killed(REMOVED) == []
        assert play.clean_ended() == ["clean up and remove"]
    assert play.clean_ended() == []
    assert is_done(play.state)
    assert play.state.removed


@pytest.mark.parametrize(
    ("policy", "own", "cleaned"),
    [
        ("Always", None, "clean up"),
        ("Always", "Never", "clean up and remove"),
        ("OnFailure", None, "clean up and remove"),
        ("OnFailure", "Always", "clean up"),
        ("Never", None, "clean up and remove"),
    ],
)
def test_a_pod_that_is_desired_again_while_it_ends_keeps_its_containers_only_if_all_start_again(
    policy: str, own: str | None, cleaned: str
) -> None:
    of = pod(container("app", **({"restartPolicy": own} if own else {})), restart=policy)
    play = Playbook(of)
    play.runs(box(), running())
    assert play.killed(KillReason.REMOVED) == ["stop within 30 s"]
    assert play.spec_changed(of) == []
    play.sees(box(ready=False), exited(code=0, ended=play.wall))
    assert play.stop_ended() == [cleaned]


def test_what_is_asked_for_later_never_takes_a_removal_back() -> None:
    play = at_rest()
    play.killed(REMOVED)
    play.killed(EVICTED)
    assert play.state.kill is not None
    assert play.state.kill.reason is REMOVED
    assert play.stop_ended() == ["clean up and remove"]


# Pods that are refused or evicted


def test_a_rejected_pod_keeps_its_reason_and_starts_nothing() -> None:
    refused = StatusOverride("Failed", "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu")
    play = Playbook(pod())
    assert play.killed(KillReason.REJECTED, override=refused) == ["stop within 30 s"]
    assert play.stop_ended() == ["clean up"]
    assert play.clean_ended() == []
    assert play.killed(REMOVED) == ["clean up and remove"]
    assert play.state.kill is not None
    assert play.state.kill.override == refused


def test_an_orphan_ends_quickly_and_completely() -> None:
    play = at_rest()
    assert play.killed(KillReason.ORPHANED, 1) == ["stop within 1 s"]
    assert play.stop_ended() == ["clean up and remove"]
    assert play.state.ref == REF
