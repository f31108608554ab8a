"""A pod that gets another size while it runs: in place, by a restart, with errors, over a restart of the agent."""

from __future__ import annotations

from typing import Any

from act.pods.playbook import Playbook
from act.pods.scenes import WALL, box, container, exited, pod, running

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import KillReason
from pykubelet.base.model.sizing import ResizeProgress, SizeChange, size_of

RESTART = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]


def sized(cpu: str, *, generation: int = 1, **more: Any) -> Pod:
    app = container(resources={"requests": {"cpu": cpu}}, **more)
    return pod(app, metadata={"generation": generation})


def up(of: Pod) -> Playbook:
    """The pod's container was started and runs."""
    play = Playbook(of)
    play.sees()
    play.sync_ended("app")
    play.runs(box(), running())
    return play


def test_a_new_size_is_given_and_reported() -> None:
    play = up(sized("100m"))
    to = sized("200m", generation=2)
    assert play.spec_changed(to) == ["sync: resize app"]
    assert play.state.sizes.resize == ResizeProgress(2)
    assert play.resized(to) == []
    assert play.sees(box(), running()) == ["wake in 60 s", "say the resize is done"]
    assert play.state.sizes.resize is None


def test_a_resize_by_restart_is_done_when_the_new_instance_runs() -> None:
    play = up(sized("100m", resizePolicy=RESTART))
    assert play.spec_changed(sized("200m", generation=2, resizePolicy=RESTART)) == [
        "sync: resize; kill app-0 (resize); start app"
    ]
    play.sync_ended("app")
    assert play.state.sizes.resize == ResizeProgress(2)
    assert play.sees(box(), running(attempt=1), exited()) == ["wake in 60 s", "say the resize is done"]


def test_what_cannot_be_done_is_reported_once_and_tried_again() -> None:
    play = up(sized("100m"))
    play.spec_changed(sized("1m", generation=2))
    assert play.resized(error="too small") == ["say the resize fails: too small"]
    assert play.state.sizes.resize == ResizeProgress(2, "too small")
    assert play.sees(box(), running()) == ["wake in 10 s"]
    play.passes(10)
    assert play.wakes() == ["sync: resize app"]
    assert play.resized(error="too small") == []
    assert play.state.sizes.resize == ResizeProgress(2, "too small")


def test_another_size_takes_the_place_of_one_that_failed() -> None:
    play = up(sized("100m"))
    play.spec_changed(sized("1m", generation=2))
    play.resized(error="too small")
    play.sees(box(), running())
    to = sized("150m", generation=3)
    assert play.spec_changed(to) == ["sync: resize app"]
    assert play.state.sizes.resize == ResizeProgress(3)
    assert play.resized(to) == []
    assert play.sees(box(), running()) == ["wake in 60 s", "say the resize is done"]


def test_going_back_before_anything_was_done_needs_no_work() -> None:
    play = up(sized("100m"))
    play.spec_changed(sized("1m", generation=2))
    play.resized(error="too small")
    play.sees(box(), running())
    assert play.spec_changed(sized("100m", generation=3))[-1] == "say the resize is done"


def test_a_first_start_is_no_resize() -> None:
    play = Playbook(sized("100m"))
    assert play.sees() == ["sync: sandbox 0; start app"]
    assert play.sync_ended("app") == []
    assert play.sees(box(), running()) == ["wake in 60 s"]


def test_a_pod_that_is_ended_is_not_resized_any_more() -> None:
    play = up(sized("100m"))
    play.spec_changed(sized("200m", generation=2))
    assert play.killed(KillReason.DELETED) == ["abandon now"]
    assert play.state.sizes.resize is None


def test_a_size_change_during_a_start_is_made_up_for() -> None:
    play = Playbook(sized("100m"))
    play.sees()
    assert play.spec_changed(sized("200m", generation=2)) == ["abandon at the next pause"]
    play.sync_abandoned()
    assert play.sees(box(), running()) == ["sync: resize app"]


def test_after_a_restart_of_the_agent_a_resize_goes_on() -> None:
    before, after = sized("100m"), sized("200m", generation=2)
    play = Playbook(after)
    play.state = _found(play, before, at=WALL)
    assert play.sees(box(), running()) == ["sync: resize app"]
    assert play.resized(after) == []
    assert play.sees(box(), running()) == ["wake in 60 s", "say the resize is done"]


def test_after_a_restart_of_the_agent_what_was_created_later_has_the_new_size() -> None:
    before, after = sized("100m"), sized("200m", generation=2)
    play = Playbook(after)
    play.state = _found(play, before, at=0.0)
    assert play.sees(box(), running()) == ["wake in 60 s"]


def test_after_a_restart_of_the_agent_limits_of_the_whole_pod_are_no_resize() -> None:
    """The container has no limits of its own and was given the pod's."""
    play = Playbook(whole("200m"))
    assert play.sees(box(), running()) == ["wake in 60 s"]
    assert play.state.sizes.resize is None
    assert play.spec_changed(whole("300m", generation=2)) == ["sync: resize app"]


def test_after_a_restart_of_the_agent_a_resize_of_the_whole_pod_goes_on() -> None:
    before, after = whole("200m"), whole("300m", generation=2)
    play = Playbook(after)
    play.state = _found(play, before, at=WALL)
    assert play.sees(box(), running()) == ["sync: resize app"]
    assert play.resized(after) == []
    assert play.sees(box(), running()) == ["wake in 60 s", "say the resize is done"]


def whole(cpu: str, *, generation: int = 1) -> Pod:
    """A pod with a limit for the whole of it and none for its container."""
    app = container(resources={"requests": {"cpu": "100m"}})
    return pod(app, metadata={"generation": generation}, resources={"limits": {"cpu": cpu}})


def _found(play: Playbook, before: Pod, at: float) -> Any:

    return replace(play.state, sizes=replace(play.state.sizes, adopted=SizeChange(size_of(before), at)))


def test_after_a_restart_of_the_agent_extensions_are_asked_again() -> None:
    of = sized("100m")
    play = Playbook(of)
    play.state = replace(play.state, sizes=replace(play.state.sizes, asks_again=True))
    assert play.sees(box(), running()) == ["sync: resize app"]
    assert play.state.sizes.resize is None, "no resize is reported"
    assert play.resized(error="busy") == []
    assert play.sees(box(), running()) == ["wake in 10 s"]
    play.passes(10)
    assert play.wakes() == ["sync: resize app"]
    assert play.resized(of) == []
    assert play.sees(box(), running()) == ["wake in 60 s"]
    assert play.spec_changed(sized("200m", generation=2)) == ["sync: resize app"]


def test_what_this_run_of_the_agent_has_started_is_not_asked_for_again() -> None:
    play = Playbook(sized("100m"))
    play.state = replace(play.state, sizes=replace(play.state.sizes, asks_again=True))
    assert play.sees() == ["sync: sandbox 0; start app"]
    assert play.sync_ended("app") == []
    assert play.sees(box(), running()) == ["wake in 60 s"]
