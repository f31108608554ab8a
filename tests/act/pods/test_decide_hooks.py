"""postStart hooks that are cut off run again while their container runs."""

from __future__ import annotations

from act.pods.playbook import Playbook
from act.pods.scenes import box, container, created, exited, pod, running, sidecar

from pykubelet.act.pods.model import StartFailed, SyncEnded
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import KillReason, StartError

HOOKED = container(lifecycle={"postStart": {"exec": {"command": ["migrate"]}}})
AGAIN = ["sync: run the hook of app"]
AT_REST = ["wake in 60 s"]


def adopted(attempt: int = 0) -> Playbook:
    """A pod that an agent takes over while the hook of this instance is not known to have ended."""
    play = Playbook(pod(HOOKED))
    play.state = replace(play.state, unhooked={"app": attempt})
    return play


def ended(play: Playbook, *left: str) -> list[str]:
    """The sync has ended; the hooks of `left` have not."""
    play.passes(0.001)
    return play.hears(SyncEnded(unhooked=dict.fromkeys(left, 0)))


def test_an_agent_that_starts_runs_a_hook_again_that_is_not_known_to_have_ended() -> None:
    play = adopted()
    assert play.sees(box(), running()) == AGAIN
    assert ended(play) == []
    assert play.sees(box(), running()) == AT_REST


def test_a_hook_that_is_cut_off_again_is_run_again() -> None:
    play = adopted()
    play.sees(box(), running())
    assert ended(play, "app") == []
    assert play.sees(box(), running()) == AGAIN


def test_a_hook_that_was_cut_off_with_its_sync_is_run_again() -> None:
    play = Playbook(pod(HOOKED))
    assert play.sees() == ["sync: sandbox 0; start app"]
    play.passes(0.001)
    assert play.hears(SyncEnded(unfinished=True, unhooked={"app": 0})) == []
    assert play.sees(ago=1.0) == [], "this view is older than the start"
    assert play.sees(box(), running()) == AGAIN


def test_the_hook_of_a_container_that_does_not_run_any_more_is_not_run() -> None:
    assert adopted().sees(box(), exited(code=1)) == ["sync: start app"]
    assert adopted().sees(box(), created()) == ["sync: remove app-0; start app"]
    assert adopted(attempt=1).sees(box(), running(attempt=0)) == AT_REST, "it was to be created, and was not"


def test_the_hook_of_a_container_with_a_higher_attempt_is_run() -> None:
    """The runtime may have reserved the name of the attempt that was recorded."""
    assert adopted(attempt=1).sees(box(), running(attempt=2)) == AGAIN


def test_a_hook_that_is_not_in_the_manifest_any_more_is_not_run() -> None:
    play = adopted()
    play.spec_changed(pod(container()))
    assert play.sees(box(), running()) == AT_REST


def test_a_hook_that_fails_when_it_is_run_again_stops_its_container() -> None:
    play = adopted()
    play.sees(box(), running())
    play.passes(0.001)
    failure = StartFailed(StartError("PostStartHookError", "no"), instance=ContainerID("app-0"))
    assert play.hears(SyncEnded(failed={"app": failure}, unhooked={"app": 0})) == []
    assert play.errors() == {"app": "PostStartHookError"}
    assert play.sees(box(), exited(code=137, ended=play.wall)) == ["sync: start app"]
    assert play.state.unhooked == {}


def test_a_container_is_hidden_until_the_runtime_shows_its_end_during_its_hook() -> None:
    """The event of its exit comes first; a sidecar that was shown as running would make the pod Initialized."""
    play = adopted()
    assert play.sees(box(), running()) == AGAIN
    play.passes(0.001)
    play.hears(SyncEnded(unhooked={"app": 0}))
    assert play.hears_of_end(box(), running(), code=137) == ["sync: start app"]
    assert play.state.unhooked == {"app": 0}
    ended(play, "app")
    play.sees(box(), exited(code=137))
    assert play.state.unhooked == {}


def test_containers_start_after_the_hook_of_a_sidecar_before_them() -> None:
    hooked = sidecar(lifecycle={"postStart": {"exec": {"command": ["migrate"]}}})
    play = Playbook(pod(init=(hooked,)))
    play.state = replace(play.state, unhooked={"mesh": 0})
    assert play.sees(box(), running("mesh")) == ["sync: run the hook of mesh"], (
        "its startup probe counts after the hook"
    )
    assert ended(play) == []
    assert play.sees(box(), running("mesh")) == ["sync: start app"]


def test_no_hook_is_run_in_a_pod_that_is_being_ended() -> None:
    play = adopted()
    play.sees(box(), running())
    assert play.killed(KillReason.REMOVED) == ["abandon now"]
    assert ended(play, "app") == ["stop within 30 s"]
    assert play.state.unhooked == {}
