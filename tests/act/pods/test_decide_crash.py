"""Containers that end again and again: back-off, its reset, and what is reported of it."""

from __future__ import annotations

import pytest
from act.pods.playbook import Playbook
from act.pods.scenes import box, container, created, exited, pod, probes, rule, running, sidecar

from pykubelet.act.pods.model import RuntimeRestarted
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.lifecycle import KillReason
from pykubelet.base.model.observed import ContainerView, SandboxView
from pykubelet.base.model.probes import ProbeResult


def crash(play: Playbook, attempt: int, name: str = "app", code: int = 1, **how: int) -> list[str]:
    """The container has just ended; the PLEG sees it 30 ms later."""
    ended = play.wall
    play.passes(0.03)
    return play.sees(box(), exited(name, code=code, attempt=attempt, ended=ended, **how))


def comes_up(play: Playbook, attempt: int, name: str = "app") -> None:
    assert play.sync_ended(name) == []
    play.passes(0.01)
    assert play.sees(box(), running(name, attempt=attempt)) == ["wake in 60 s"]


def is_restarting_all(play: Playbook) -> bool:
    return play.state.restarting_all


def up(play: Playbook) -> None:
    play.sees()
    comes_up(play, 0)


def test_the_first_crash_is_answered_at_once() -> None:
    play = Playbook(pod())
    up(play)
    play.passes(30)
    assert crash(play, 0) == ["sync: start app"]


def test_the_next_instance_starts_as_soon_as_an_event_reports_the_end() -> None:
    play = Playbook(pod())
    up(play)
    play.passes(30)
    ended = play.wall
    assert play.hears_of_end(box(), running("app")) == ["sync: start app"]
    play.passes(0.03)
    assert play.sees(box(), exited("app", code=1, attempt=0, ended=ended)) == [], (
        "the runtime reports the same: nothing changes"
    )
    comes_up(play, 1)


def test_a_pod_ends_only_when_the_runtime_has_reported_the_end() -> None:
    play = Playbook(pod(restart="Never"))
    up(play)
    assert play.hears_of_end(box(), running("app"), code=0) == []
    assert play.sees(box(), exited("app")) == ["stop within 30 s"]


def test_an_event_of_a_later_crash_is_answered_by_the_back_off() -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    play.passes(2)
    assert play.hears_of_end(box(), running("app", attempt=1)) == ["say app is held back", "wake in 10 s"]


def test_later_crashes_wait_ten_seconds_doubling_to_five_minutes() -> None:
    play = Playbook(pod())
    up(play)
    assert crash(play, 0) == ["sync: start app"]
    delays = []
    for attempt in range(1, 9):
        comes_up(play, attempt)
        play.passes(2)
        reported, wake = crash(play, attempt)
        assert reported == "say app is held back"
        delays.append(float(wake.split()[2]) + 0.03)
        assert play.errors() == {"app": "CrashLoopBackOff"}
        play.passes(delays[-1])
        assert play.wakes() == ["sync: start app"]
    assert delays == pytest.approx([10, 20, 40, 80, 160, 300, 300, 300], abs=1e-4)


def test_the_message_is_the_one_people_search_for() -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    crash(play, 1)
    assert play.state.start_errors["app"].message == (
        "back-off 10s restarting failed container=app pod=web_shop(uid-1)"
    )


def test_the_pause_counts_from_the_end_of_the_container() -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    ended = play.wall
    play.passes(7)
    assert play.sees(box(), exited(code=1, attempt=1, ended=ended))[1] == "wake in 3 s"


def test_a_long_run_begins_the_series_anew() -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    play.passes(601)
    assert crash(play, 1) == ["sync: start app"]
    comes_up(play, 2)
    _, wake = crash(play, 2)
    assert float(wake.split()[2]) == pytest.approx(10, abs=0.1)


def test_a_run_below_twice_the_cap_goes_on_with_the_series() -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    play.passes(590)
    assert crash(play, 1)[0] == "say app is held back"


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_jump_of_the_wall_clock_changes_nothing(jump: float) -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    ended = play.wall
    assert play.sees(box(), exited(code=1, attempt=1, ended=ended)) == ["say app is held back", "wake in 10 s"]
    play.wall += jump
    play.passes(4)
    assert play.sees(box(), exited(code=1, attempt=1, ended=ended)) == ["wake in 6 s"]
    play.passes(6)
    assert play.wakes() == ["sync: start app"]


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_jump_between_an_end_and_its_sight_changes_nothing(jump: float) -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    ended = play.wall
    play.wall += jump
    assert play.sees(box(), exited(code=1, attempt=1, ended=ended)) == ["say app is held back", "wake in 10 s"]


def test_an_end_in_the_future_counts_as_now() -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    assert play.sees(box(), exited(code=1, attempt=1, ended=play.wall + 3600))[1] == "wake in 10 s"


def test_each_end_is_reported_once() -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    assert crash(play, 1)[0] == "say app is held back"
    assert [word for word in play.wakes() if "say" in word] == []
    play.passes(10)
    assert play.wakes() == ["sync: start app"]
    comes_up(play, 2)
    assert crash(play, 2)[0] == "say app is held back"


def test_one_container_held_back_does_not_hold_the_other() -> None:
    play = Playbook(pod(container("a"), container("b")))
    play.sees()
    play.sync_ended("a", "b")
    play.runs(box(), running("a"), running("b"))
    assert play.sees(box(), exited("a", code=1, ended=play.wall), running("b")) == ["sync: start a"]
    play.sync_ended("a")
    play.runs(box(), running("a", attempt=1), running("b"))
    look = (exited("a", code=1, attempt=1, ended=play.wall), exited("b", code=1, ended=play.wall))
    assert play.sees(box(), *look) == ["say a is held back", "sync: start b"]
    play.sync_ended("b")
    play.passes(1)
    (wake,) = play.sees(box(), look[0], running("b", attempt=1))
    assert float(wake.split()[2]) == pytest.approx(9, abs=0.1)


@pytest.mark.parametrize(
    "changed",
    [
        {"image": "busybox:2"},
        {"resources": {"requests": {"cpu": "1"}}},
    ],
)
def test_a_new_image_or_new_resources_end_the_back_off(changed: dict[str, object]) -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    crash(play, 1)
    assert "sync: start app" in play.spec_changed(pod(container("app", **changed)))


def test_another_field_of_the_container_does_not_end_the_back_off() -> None:
    play = Playbook(pod())
    up(play)
    crash(play, 0)
    comes_up(play, 1)
    crash(play, 1)
    assert play.spec_changed(pod(container("app", stdin=True)))[-1].startswith("wake in 9.9")


def test_init_containers_and_sidecars_back_off_too() -> None:
    play = Playbook(pod(init=(container("i1"),)))
    play.sees()
    comes_up(play, 0, "i1")
    assert crash(play, 0, "i1") == ["sync: start i1"]
    comes_up(play, 1, "i1")
    assert crash(play, 1, "i1")[0] == "say i1 is held back"
    play = Playbook(pod(init=(sidecar("mesh"),)))
    play.sees()
    comes: list[SandboxView | ContainerView] = [box(), running("app")]
    play.sync_ended("mesh")
    play.runs(*comes, running("mesh"))
    assert play.sees(*comes, exited("mesh", ended=play.wall)) == ["sync: start mesh"]
    play.sync_ended("mesh")
    play.runs(*comes, running("mesh", attempt=1))
    assert play.sees(*comes, exited("mesh", attempt=1, ended=play.wall))[0] == "say mesh is held back"


def test_a_restart_of_the_agent_knows_nothing_of_earlier_pauses() -> None:
    play = Playbook(pod())
    assert play.sees(box(), exited(code=1, attempt=4, ended=play.wall - 1)) == ["sync: start app"]
    comes_up(play, 5)
    assert crash(play, 5)[0] == "say app is held back"


def test_a_container_that_probes_kill_again_and_again_is_held_back_too() -> None:
    play = Playbook(pod())
    up(play)
    play.passes(30)
    answer = play.probes_changed(probes(liveness_app_0=ProbeResult.FAILURE))
    assert answer == ["sync: kill app-0 (liveness); start app"]
    ended = play.wall
    play.sync_ended("app")
    assert play.sees(box(), exited(code=137, ended=ended), running(attempt=1)) == ["wake in 60 s"]
    play.passes(30)
    first = exited(code=137, ended=ended)
    answer = play.probes_changed(probes(liveness_app_1=ProbeResult.FAILURE))
    assert answer == ["sync: kill app-1 (liveness); start app"]
    ended = play.wall
    play.sync_ended("app")
    play.sees(box(), first, exited(code=137, attempt=1, ended=ended), running(attempt=2))
    play.passes(5)
    look = (box(), exited(code=137, attempt=1, ended=ended), running(attempt=2))
    assert play.sees(*look) == ["wake in 60 s"]
    answer = play.probes_changed(probes(liveness_app_2=ProbeResult.FAILURE))
    assert answer == ["say app is held back", "sync: kill app-2 (liveness)"], "killed now, started later"
    ended = play.wall
    play.sync_ended()
    (_, wake) = play.sees(box(), exited(code=137, attempt=2, ended=ended))
    assert float(wake.split()[2]) == pytest.approx(10, abs=0.1)


def test_a_container_that_a_probe_kills_restarts_alone_whatever_rule_its_exit_code_meets() -> None:
    play = Playbook(pod(container("app", restartPolicyRules=[rule("RestartAllContainers", 137)]), container("b")))
    play.runs(box(), running(), running("b"))
    answer = play.probes_changed(probes(liveness_app_0=ProbeResult.FAILURE))
    assert answer == ["sync: kill app-0 (liveness); start app"]
    play.passes(0.1)
    look = (box(), exited(code=137, ended=play.wall), running("b"))
    assert play.sees(*look) == ["abandon at the next pause"]
    play.sync_abandoned()
    assert play.sees(*look) == ["sync: start app"]


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_restart_that_was_begun_is_finished_whatever_the_policy_requires(policy: str) -> None:
    play = Playbook(pod(container("app", image="busybox:2"), restart=policy))
    assert play.sees(box(), running()) == ["sync: kill app-0 (changed); start app"]
    play.passes(0.1)
    ended = exited(code=0, ended=play.wall)
    assert play.sees(box(), ended) == ["abandon at the next pause"], "its end is news"
    play.sync_abandoned()
    assert play.sees(box(), ended) == ["sync: start app"]
    play.sync_ended("app")
    new = running(attempt=1, hash_of=container_hash(container("app", image="busybox:2")))
    assert play.sees(box(), new, ended) == ["wake in 60 s"]
    play.sees(box(), exited(code=0, attempt=1), ended)
    assert play.state.terminal, "an end of its own counts again"


def test_a_pod_whose_rule_restarts_all_starts_over() -> None:
    of = pod(container("app", restartPolicyRules=[rule("RestartAllContainers", 88)]), init=(container("i1"),))
    play = Playbook(of)
    play.runs(box(), exited("i1"), running())
    assert play.sees(box(), exited("i1"), exited(code=88)) == ["sync: restart all; remove app-0, i1-0"]
    assert is_restarting_all(play)
    assert play.sync_ended() == []
    assert is_restarting_all(play), "until the first starts again"
    assert play.sees(box()) == ["sync: start i1"]
    play.sync_ended("i1")
    assert not is_restarting_all(play)
    assert play.state.reset_instances == {"app-0", "i1-0"}, "what was removed is known afterwards"


def test_an_agent_that_starts_in_the_middle_of_a_restart_of_all_finishes_it() -> None:
    """The restart was requested by a sidecar of a pod whose other containers never restart."""
    watcher = sidecar("watcher", restartPolicyRules=[rule("RestartAllContainers", 88)])
    play = Playbook(pod(init=(container("i1"), watcher), restart="Never"))
    asks = exited("watcher", code=88, ended=play.wall - 2)
    killed = exited("app", code=137, ended=play.wall - 1)
    assert play.sees(box(), exited("i1"), asks, killed) == ["sync: restart all; remove app-0, i1-0, watcher-0"]
    assert play.sync_ended() == []
    assert play.sees(box()) == ["sync: start i1"]


def test_a_start_that_failed_before_a_restart_of_all_does_not_hold_up_the_start_after_it() -> None:
    play = Playbook(pod(container("app", restartPolicyRules=[rule("RestartAllContainers", 88)]), container("b")))
    play.sees()
    play.sync_ended("app", b=("CreateContainerError", 60))
    play.sees(box(), running())
    assert play.errors() == {"b": "CreateContainerError"}
    assert play.sees(box(), exited(code=88, ended=play.wall)) == ["sync: restart all; remove app-0"]
    assert play.errors() == {}
    play.sync_ended()
    assert play.sees(box()) == ["sync: start app, b"]


def test_restarting_all_again_and_again_waits_ever_longer() -> None:
    """KEP-5532: the back-off of containers holds for such restarts too. They are removed at once, and start later."""
    of = pod(container("app", restartPolicyRules=[rule("RestartAllContainers", 88)]), container("b"))
    play = Playbook(of)
    play.runs(box(), running(), running("b"))
    pauses = []
    for attempt in range(4):
        ended = play.wall
        ends = exited(code=88, attempt=attempt, ended=ended)
        assert play.sees(box(), ends, running("b", attempt=attempt))[0].startswith("sync: restart all; kill b")
        assert play.sync_ended() == []
        answer = play.sees(box())
        while answer != ["sync: start app, b"]:
            assert answer[:-1] in ([], ["say app is held back"])
            assert play.errors() == {"app": "CrashLoopBackOff"}
            assert play.state.restarting_all
            play.passes(float(answer[-1].split()[2]))
            answer = play.wakes()
        pauses.append(play.wall - ended)
        assert play.sync_ended("app", "b") == []
        play.runs(box(), running(attempt=attempt + 1), running("b", attempt=attempt + 1))
    assert pauses == pytest.approx([0, 10, 20, 40], abs=0.1)


def test_removing_all_that_fails_is_tried_again_and_counts_once() -> None:
    of = pod(container("app", restartPolicyRules=[rule("RestartAllContainers", 88)]))
    play = Playbook(of)
    play.runs(box(), running())
    ends = exited(code=88, ended=play.wall)
    assert play.sees(box(), ends) == ["sync: restart all; remove app-0"]
    play.sync_ended(pod_error="KillContainerError")
    play.sees(box(), ends)
    play.passes(1)
    assert play.wakes() == ["sync: restart all; remove app-0"]
    play.sync_ended()
    assert play.sees(box()) == ["sync: start app"], "the first time there is no pause"


def test_a_pod_that_is_killed_while_all_wait_is_not_restarting_any_more() -> None:
    of = pod(container("app", restartPolicyRules=[rule("RestartAllContainers", 88)]))
    play = Playbook(of)
    play.runs(box(), running())
    play.sees(box(), exited(code=88, ended=play.wall))
    play.sync_ended()
    assert play.killed(KillReason.REMOVED) == ["stop within 30 s"]
    assert not play.state.restarting_all


def test_a_sync_that_was_interrupted_before_the_start_does_not_count_as_a_restart() -> None:
    play = Playbook(pod(container("a"), container("b")))
    play.runs(box(), running("a"), running("b"))
    ended = play.wall
    assert play.sees(box(), exited("a", code=1, ended=ended), running("b")) == ["sync: start a"]
    play.passes(0.01)
    both = (exited("a", code=1, ended=ended), exited("b", code=1, ended=ended + 0.01))
    assert play.sees(box(), *both) == ["abandon at the next pause"]
    assert play.sync_abandoned() == []
    assert play.sees(box(), *both) == ["sync: start a, b"], "both ended for the first time"


@pytest.mark.parametrize(
    ("reason", "again_in"),
    [("CreateContainerError", 10), ("ErrImagePull", 10), ("RunContainerError", 10)],
)
def test_a_failed_start_is_tried_again_after_the_ordinary_pause(reason: str, again_in: float) -> None:
    play = Playbook(pod())
    up(play)
    ended = play.wall
    assert play.sees(box(), exited(code=1, ended=ended)) == ["sync: start app"]
    play.sync_ended(app=reason)
    assert play.sees(box(), exited(code=1, ended=ended)) == [f"wake in {again_in} s"]
    play.passes(again_in)
    assert play.wakes() == ["sync: start app"]


def test_a_container_that_could_not_be_started_is_tried_again_at_once_and_then_ever_later() -> None:
    play = Playbook(pod())
    play.sees()
    assert play.start_refused() == []
    assert play.sees(box(), exited(code=128, ended=play.wall)) == ["sync: start app"]
    for attempt, pause in enumerate((10, 20, 40), start=1):
        play.start_refused(attempt)
        held = play.sees(box(), exited(code=128, attempt=attempt, ended=play.wall))
        assert play.errors() == {"app": "CrashLoopBackOff"}
        assert float(held[-1].split()[2]) == pytest.approx(pause, abs=0.01)
        play.passes(pause + 0.01)
        assert play.wakes() == ["sync: start app"]


def test_a_container_that_could_not_be_started_and_that_the_runtime_shows_as_created_waits_the_ordinary_pause() -> None:
    play = Playbook(pod())
    play.sees()
    play.start_refused()
    assert play.sees(box(), created()) == ["wake in 10 s"]
    assert play.errors() == {"app": "RunContainerError"}


def test_the_start_of_what_is_created_has_counted_although_the_pause_is_over_early() -> None:
    """It stays, so that its successor has the next number."""
    play = Playbook(pod())
    play.sees()
    play.start_refused()
    play.sees(box(), created())
    assert play.hears(RuntimeRestarted()) == ["sync: start app"]


def test_a_container_that_could_not_be_started_obeys_its_restart_policy() -> None:
    play = Playbook(pod(restartPolicy="Never"))
    play.sees()
    play.start_refused()
    assert play.sees(box(), exited(code=128, ended=play.wall)) == ["stop within 30 s"]


def test_a_container_whose_hook_failed_starts_again_at_once_and_then_ever_later() -> None:
    play = Playbook(pod())
    play.sees()
    assert play.hook_failed() == []
    assert play.sees(box(), exited(code=137, ended=play.wall)) == ["sync: start app"], (
        "the first time there is no pause"
    )
    for attempt, pause in enumerate((10, 20, 40), start=1):
        play.hook_failed(attempt)
        held = play.sees(box(), exited(code=137, attempt=attempt, ended=play.wall))
        assert play.errors() == {"app": "CrashLoopBackOff"}
        assert float(held[-1].split()[2]) == pytest.approx(pause, abs=0.01)
        play.passes(pause + 0.01)
        assert play.wakes() == ["sync: start app"]


def test_a_container_whose_hook_failed_and_that_could_not_be_stopped_runs_on() -> None:
    play = Playbook(pod())
    play.sees()
    play.hook_failed()
    assert play.sees(box(), running()) == ["wake in 60 s"]
    assert play.errors() == {}


def test_a_container_whose_hook_failed_obeys_its_restart_policy() -> None:
    play = Playbook(pod(restartPolicy="Never"))
    play.sees()
    play.hook_failed()
    assert play.sees(box(), exited(code=137, ended=play.wall)) == ["stop within 30 s"]


def test_a_container_whose_start_fails_after_it_ran_backs_off_ever_longer() -> None:
    play = Playbook(pod())
    up(play)
    ends = exited(code=128, ended=play.wall)
    play.sees(box(), ends)
    pauses = []
    for attempt in range(1, 5):
        play.sync_ended(app="RunContainerError")
        ends = exited(code=128, attempt=attempt, ended=play.wall)
        wake = play.sees(box(), ends)[-1]
        pauses.append(float(wake.split()[2]))
        play.passes(pauses[-1] + 0.001)
        while (answer := play.wakes()) != ["sync: start app"]:
            pauses[-1] += float(answer[-1].split()[2])
            play.passes(float(answer[-1].split()[2]) + 0.001)
    assert pauses == pytest.approx([10, 20, 40, 80], abs=0.1)
