"""The point `restart`: what an extension gets of an exit, and what becomes of the container after its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from act.pods.playbook import RULES, Playbook
from act.pods.scenes import box, container, exited, pod, rule, running, sidecar
from app.extensions.conftest import Host

from pykubelet.act.pods.model import PodWorkerState
from pykubelet.act.pods.recording import as_document
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.observed import ContainerView, SandboxView
from pykubelet.base.model.phase import Phase, pod_phase
from pykubelet.base.model.restart import restartable_pod
from pykubelet.extension import Container, Extension, RestartAfter, RestartAnswer, RestartHistory, RestartNever

Answer = Callable[[Container, RestartHistory], Any]


class Restarts(Extension):
    name, api = "restarts", "1.0"

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer
        self.seen: list[tuple[Container, RestartHistory]] = []

    def restart(self, container: Container, history: RestartHistory) -> RestartAnswer:
        self.seen.append((container, history))
        answer: RestartAnswer = self.answer(container, history)
        return answer


def played(host: Host, of: Pod) -> Playbook:
    """A pod that asks the extensions, with its container `app` running."""
    play = Playbook(of, rules=replace(RULES, ask_extensions=host.points.restart))
    play.sees()
    play.sync_ended("app")
    play.runs(box(), running("app"))
    return play


def crash(play: Playbook, attempt: int = 0, code: int = 1, *others: SandboxView | ContainerView) -> list[str]:
    """The container `app` has just ended, and the runtime reports it."""
    return play.sees(box(), exited("app", code=code, attempt=attempt, ended=play.wall), *others)


def comes_up(play: Playbook, attempt: int) -> None:
    play.sync_ended("app")
    play.passes(0.01)
    play.runs(box(), running("app", attempt=attempt))


def test_what_an_extension_gets_of_an_exit(hosts: Callable[..., Host]) -> None:
    extension = Restarts(lambda container, history: None)
    play = played(hosts(extension), pod())
    play.passes(30)
    assert crash(play, code=137) == ["sync: start app"]
    ((seen, history),) = extension.seen
    assert (seen.name, seen.kind, history.pod.name) == ("app", "app", play.pod.metadata.name)
    (end,) = history.exits
    assert (end.exit_code, end.signal) == (137, 9) and end.finished_at == pytest.approx(play.wall)
    assert (history.restarts, history.delay_s) == (0, 0.0)
    comes_up(play, 1)
    crash(play, 1, 3)
    history = extension.seen[1][1]
    assert [(found.exit_code, found.signal) for found in history.exits] == [(3, 0), (137, 9)]
    assert (history.restarts, history.delay_s) == (1, 10.0)


def test_it_is_asked_once_for_each_exit(hosts: Callable[..., Host]) -> None:
    extension = Restarts(lambda container, history: RestartAfter(100))
    play = played(hosts(extension), pod())
    ended = play.wall
    assert crash(play) == ["say app is held back", "wake in 100 s"]
    for _ in range(5):
        play.passes(10)
        play.wakes()
        play.sees(box(), exited("app", code=1, attempt=0, ended=ended))
    assert len(extension.seen) == 1


def test_another_delay_than_the_back_off(hosts: Callable[..., Host]) -> None:
    delays = {0: 7.5, 1: 0.0, 2: None}
    extension = Restarts(
        lambda container, history: None if (wait := delays[history.restarts]) is None else RestartAfter(wait)
    )
    play = played(hosts(extension), pod())
    assert crash(play) == ["say app is held back", "wake in 7.5 s"]
    (error,) = play.state.start_errors.values()
    assert (error.reason, error.extension) == ("CrashLoopBackOff", "restarts")
    assert error.message.startswith("back-off 7.5s restarting failed container=app pod=")
    assert error.message.endswith(" (extension restarts)")
    play.passes(7.5)
    assert play.wakes() == ["sync: start app"]
    comes_up(play, 1)
    assert crash(play, 1) == ["sync: start app"]  # at once, where the back-off would be 10 s
    comes_up(play, 2)
    assert crash(play, 2) == ["say app is held back", "wake in 20 s"]  # the back-off has counted all exits


def test_never_is_the_end_of_the_pod(hosts: Callable[..., Host]) -> None:
    extension = Restarts(lambda container, history: RestartNever("it is broken"))
    play = played(hosts(extension), pod())
    assert crash(play) == ["say app stays: it is broken (restarts)", "stop within 30 s"]
    assert play.state.stage is Stage.TERMINATING and play.state.terminal and len(extension.seen) == 1
    assert phase_of(play.state) is Phase.FAILED


def phase_of(state: PodWorkerState) -> Phase:
    """The phase as the status has it."""
    as_decided = restartable_pod(state.pod, state.view, state.back_offs.stays)
    return pod_phase(as_decided, state.view, state.start_errors, ended=True)


def test_the_others_of_the_pod_go_on(hosts: Callable[..., Host]) -> None:
    extension = Restarts(lambda container, history: RestartNever() if container.name == "app" else None)
    play = Playbook(
        pod(container("app"), container("log")), rules=replace(RULES, ask_extensions=hosts(extension).points.restart)
    )
    play.sees()
    play.sync_ended("app", "log")
    play.runs(box(), running("app"), running("log"))
    assert crash(play, 0, 1, running("log")) == ["say app stays:  (restarts)", "wake in 60 s"]
    assert play.errors() == {}
    assert phase_while_running(play.state) is Phase.RUNNING
    end = exited("app", code=1, attempt=0, ended=play.wall)
    assert play.sees(box(), end, exited("log", code=1, ended=play.wall)) == ["sync: start log"]
    play.sync_ended("log")
    play.passes(0.01)
    play.runs(box(), end, running("log", attempt=1))
    assert [found.name for found, _ in extension.seen] == ["app", "log"]


def phase_while_running(state: PodWorkerState) -> Phase:
    as_decided = restartable_pod(state.pod, state.view, state.back_offs.stays)
    return pod_phase(as_decided, state.view, state.start_errors, ended=False)


def test_the_exit_itself_is_awaited(hosts: Callable[..., Host]) -> None:
    """An event of an exit has no reason."""
    extension = Restarts(lambda container, history: None)
    play = played(hosts(extension), pod())
    ended = play.wall
    assert play.hears_of_end(box(), running("app")) == ["wake in 60 s"] and extension.seen == []
    play.passes(0.03)
    assert play.sees(box(), exited("app", code=1, attempt=0, ended=ended)) == ["sync: start app"]
    assert len(extension.seen) == 1


@pytest.mark.parametrize(
    ("of", "code"),
    [
        (pod(restart="Never"), 1),
        (pod(restart="OnFailure"), 0),
        (pod(container(restartPolicyRules=[rule("RestartAllContainers", 3)])), 3),
    ],
)
def test_it_is_not_asked_where_the_container_would_not_start_alone(
    hosts: Callable[..., Host], of: Pod, code: int
) -> None:
    extension = Restarts(lambda container, history: RestartAfter(5))
    crash(played(hosts(extension), of), 0, code)
    assert extension.seen == []


def test_a_sidecar_can_be_delayed_and_not_ended(hosts: Callable[..., Host]) -> None:
    extension = Restarts(lambda container, history: RestartNever())
    host = hosts(extension)
    play = Playbook(pod(init=(sidecar("proxy"),)), rules=replace(RULES, ask_extensions=host.points.restart))
    play.sees()
    play.sync_ended("proxy", "app")
    play.runs(box(), running("proxy"), running("app"))
    assert play.sees(box(), exited("proxy", code=1, ended=play.wall), running("app")) == ["sync: start proxy"]
    assert host.state.error == "restart: proxy is a sidecar: it is always restarted"
    play.sync_ended("proxy")
    extension.answer = lambda container, history: RestartAfter(3)
    play.runs(box(), running("proxy", attempt=1), running("app"))
    answer = play.sees(box(), exited("proxy", code=1, attempt=1, ended=play.wall), running("app"))
    assert answer == ["say proxy is held back", "wake in 3 s"]


def test_of_the_past_ten_exits_are_kept(hosts: Callable[..., Host]) -> None:
    extension = Restarts(lambda container, history: RestartAfter(0))
    play = played(hosts(extension), pod())
    for attempt in range(15):
        crash(play, attempt, attempt + 1)
        comes_up(play, attempt + 1)
    _, history = extension.seen[-1]
    assert [found.exit_code for found in history.exits] == list(range(15, 5, -1))
    assert history.restarts == 14
    assert len(play.state.back_offs.verdicts) <= 1  # what the runtime does not show any more is forgotten


def test_a_restarted_agent_asks_again_about_the_last_exit(hosts: Callable[..., Host]) -> None:
    extension = Restarts(lambda container, history: RestartNever("broken"))
    play = Playbook(pod(), rules=replace(RULES, ask_extensions=hosts(extension).points.restart))
    ends = exited("app", code=1, attempt=4, ended=play.wall - 20)
    assert play.sees(box(), ends) == ["say app stays: broken (restarts)", "stop within 30 s"]
    (_, history) = extension.seen[0]
    assert history.restarts == 4 and len(history.exits) == 1


WRONG: list[tuple[Any, str]] = [
    (RestartAfter(-1), "restart: `delay_s` must be from 0 to 300: it is -1"),
    (RestartAfter(301), "restart: `delay_s` must be from 0 to 300: it is 301"),
    (RestartAfter(float("nan")), "restart: `delay_s` must be from 0 to 300: it is nan"),
    (RestartNever(3), "restart: `message` must be a text"),  # type: ignore[arg-type]
    (10, "restart: the answer must be RestartAfter, RestartNever or None: it is int"),
]


@pytest.mark.parametrize(("answer", "problem"), WRONG)
def test_after_a_wrong_answer_the_back_off_decides(hosts: Callable[..., Host], answer: Any, problem: str) -> None:
    host = hosts(Restarts(lambda container, history: answer))
    play = played(host, pod())
    assert crash(play) == ["sync: start app"]
    assert host.state.error.startswith(problem)
    comes_up(play, 1)
    assert crash(play, 1) == ["say app is held back", "wake in 10 s"]


def test_the_answer_is_in_recordings(hosts: Callable[..., Host]) -> None:
    play = played(hosts(Restarts(lambda container, history: RestartAfter(100))), pod())
    crash(play)
    again = msgspec.convert(as_document(play.state), PodWorkerState)
    assert again == play.state
    assert again.back_offs.verdicts[ContainerID("app-0")] is not None
