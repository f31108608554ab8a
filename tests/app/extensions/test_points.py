"""How the agent asks extensions: what they get, what counts of their answers, and what happens when they fail."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from app.extensions.conftest import Host
from desired.roster.wants import Desk, facts, make_pod
from observe.eviction.samples import make_pod as make_user
from observe.eviction.samples import make_use

from pykubelet.app.extensions.guard import CALLS, FAILURES, MAX_FAILURES, SECONDS
from pykubelet.app.parts import Points
from pykubelet.base.model.ids import PodUID
from pykubelet.extension import Admission, EvictionCandidate, Extension, Hold, Node, Pod, Reject
from pykubelet.observe.eviction.model import Candidate

Admit = Callable[[Pod, Node], Any]


class Admitting(Extension):
    name, api = "price", "1.0"

    def __init__(self, answer: Admit) -> None:
        super().__init__()
        self.answer = answer
        self.seen: list[tuple[Pod, Node]] = []

    def admit(self, pod: Pod, node: Node) -> Admission:
        self.seen.append((pod, node))
        answer: Admission = self.answer(pod, node)
        return answer


class Ranking(Extension):
    name, api = "stalls", "1.0"

    def __init__(self, answer: Callable[[Sequence[EvictionCandidate], str], Any]) -> None:
        super().__init__()
        self.answer = answer

    def rank_for_eviction(self, candidates: Sequence[EvictionCandidate], signal: str) -> Any:
        return self.answer(candidates, signal)


def admitted(host: Host, pod: Any, **circumstances: Any) -> tuple[Desk, Any]:
    desk = Desk()
    desk.send(pod, at=facts(ask_extensions=host.points.admit, **circumstances))
    return desk, desk.roster.pods[pod.metadata.uid]


def test_points_that_no_extension_has_are_not_asked(hosts: Callable[..., Host]) -> None:
    host = hosts(Admitting(lambda pod, node: None))
    assert host.points.admit is not None and host.points.rank_for_eviction is None
    assert Host().points == Points()


def test_what_an_extension_gets_of_a_pod_and_the_node(hosts: Callable[..., Host]) -> None:
    extension = Admitting(lambda pod, node: None)
    pod = make_pod(cpu="500m", memory="64Mi", priority=7)
    _, entry = admitted(hosts(extension), pod)
    assert entry.rejection is None and entry.admission_wait is None
    ((seen, node),) = extension.seen
    assert (seen.namespace, seen.name, seen.uid) == ("shop", pod.metadata.name, pod.metadata.uid)
    assert seen.requests == {"cpu": 500, "memory": 64 << 20} and seen.priority == 7
    assert [container.name for container in seen.containers] == [c.name for c in pod.spec.containers]
    assert node.allocatable["cpu"] > 0 and node.requested["cpu"] == 0 and node.pods == 0
    with pytest.raises(TypeError):
        seen.labels["a"] = "b"  # type: ignore[index]


def test_a_rejection_names_the_extension(hosts: Callable[..., Host]) -> None:
    pod = make_pod()
    desk, entry = admitted(hosts(Admitting(lambda pod, node: Reject("TooExpensive", "not now"))), pod)
    assert entry.rejection.reason == "TooExpensive" and entry.rejection.message == "not now (extension price)"
    assert desk.events == [(pod.metadata.name, "TooExpensive", "not now (extension price)")]


def test_a_pod_is_held_until_the_extension_admits_it(hosts: Callable[..., Host]) -> None:
    answers: list[Admission] = [None, Hold("cheap power", "until 22:00", again_s=30)]
    extension = Admitting(lambda pod, node: answers.pop())
    host, pod = hosts(extension), make_pod()
    desk, entry = admitted(host, pod)
    wait = entry.admission_wait
    assert (wait.what, wait.owner, wait.detail) == ("cheap power", "extension", "until 22:00 (extension price)")
    at = facts(ask_extensions=host.points.admit)
    desk.settle_again(at, now=29)
    assert len(extension.seen) == 1  # it is not asked again before its time
    desk.settle_again(at, now=30)
    assert len(extension.seen) == 2 and desk.roster.pods[PodUID(pod.metadata.uid)].admission_wait is None


def test_the_built_in_checks_come_first(hosts: Callable[..., Host]) -> None:
    extension = Admitting(lambda pod, node: None)
    _, entry = admitted(hosts(extension), make_pod(cpu="1000"))
    assert entry.rejection.reason == "OutOfcpu" and extension.seen == []


def test_the_first_answer_counts(hosts: Callable[..., Host]) -> None:
    silent, loud = Admitting(lambda pod, node: None), Admitting(lambda pod, node: Reject("No", ""))
    loud.name = "loud"  # type: ignore[misc]
    _, entry = admitted(hosts(silent, loud), make_pod())
    assert entry.rejection.message == " (extension loud)" and len(silent.seen) == 1


class Endless(Exception):
    def __str__(self) -> str:
        return str(_forever())


def _raise(error: BaseException) -> Any:
    raise error


def _forever() -> Any:
    while True:
        pass


FAILURES_OF_ADMIT: list[tuple[Admit, str]] = [
    (lambda pod, node: _raise(ValueError("bad")), "admit: ValueError: bad (test_points.py:"),
    (lambda pod, node: sys.exit(1), "admit: SystemExit: 1 (test_points.py:"),
    (lambda pod, node: _raise(Endless()), "admit: it used "),
    (lambda pod, node: _forever(), "admit: it used "),
    (lambda pod, node: "x" * (1 << 30), "admit: it wanted more memory than it may have"),
    (lambda pod, node: True, "admit: the answer must be Reject, Hold or None: it is bool"),
    (lambda pod, node: Reject("two words", ""), "admit: `reason` must be one word in CamelCase: it is 'two words'"),
    (lambda pod, node: Reject("No", "x" * 2000), "admit: `message` must be a text of at most 1024 characters"),
    (lambda pod, node: Reject("No", 3), "admit: `message` must be a text"),  # type: ignore[arg-type]
    (lambda pod, node: Hold("x", again_s=0), "admit: `again_s` must be from 1 to 3600: it is 0"),
    (lambda pod, node: Hold("x", again_s=float("nan")), "admit: `again_s` must be from 1 to 3600: it is nan"),
]


@pytest.mark.parametrize(("answer", "problem"), FAILURES_OF_ADMIT)
def test_a_failure_leaves_the_built_in_decision(hosts: Callable[..., Host], answer: Admit, problem: str) -> None:
    host = hosts(Admitting(answer))
    failures, calls = FAILURES.value("price", "admit"), CALLS.value("price", "admit")
    _, entry = admitted(host, make_pod())
    assert entry.rejection is None and entry.admission_wait is None
    assert problem in host.state.error and host.state.off == ""
    (event,) = host.events.take_all()
    assert (event.reason, event.pod) == ("ExtensionFailed", None)
    assert event.message.startswith("Extension price has failed in admit: ")
    assert (FAILURES.value("price", "admit") - failures, CALLS.value("price", "admit") - calls) == (1, 1)


def test_after_repeated_failures_it_is_off_until_it_is_enabled(hosts: Callable[..., Host]) -> None:
    extension = Admitting(lambda pod, node: _raise(ValueError("bad")))
    host = hosts(extension)
    for _ in range(MAX_FAILURES + 2):
        admitted(host, make_pod())
    assert len(extension.seen) == MAX_FAILURES
    assert host.state.off == f"it has failed {MAX_FAILURES} times in a row"
    last = host.events.take_all()[-1]
    assert last.message.endswith("it is off until the agent starts again or `pykubelet extensions enable price`")
    extension.answer = lambda pod, node: Reject("No", "")
    host.guards[0].enable()
    _, entry = admitted(host, make_pod())
    assert entry.rejection.reason == "No" and host.state.off == ""


def test_a_success_forgives_failures(hosts: Callable[..., Host]) -> None:
    extension = Admitting(lambda pod, node: None)
    host = hosts(extension)
    for _ in range(3):
        for _ in range(MAX_FAILURES - 1):
            extension.answer = lambda pod, node: _raise(ValueError("bad"))
            admitted(host, make_pod())
        extension.answer = lambda pod, node: None
        admitted(host, make_pod())
    assert host.state.off == ""


def test_cpu_time_is_counted(hosts: Callable[..., Host]) -> None:
    def busy(pod: Pod, node: Node) -> None:
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass

    host, before = hosts(Admitting(busy)), SECONDS.value("price", "admit")
    began = time.thread_time()
    admitted(host, make_pod())
    assert 0.002 <= SECONDS.value("price", "admit") - before <= time.thread_time() - began


# Eviction

USERS = [Candidate(make_user(name), make_use(name, memory=memory)) for name, memory in (("a", 3), ("b", 1), ("c", 2))]


def ranked(host: Host) -> list[str] | None:
    ask = host.points.rank_for_eviction
    assert ask is not None
    found = ask(USERS, "memory.available")
    return None if found is None else [candidate.pod.metadata.name for candidate in found]


def test_another_order_of_eviction(hosts: Callable[..., Host]) -> None:
    def by_memory(candidates: Sequence[EvictionCandidate], signal: str) -> Any:
        assert signal == "memory.available"
        return sorted(candidates, key=lambda candidate: candidate.usage.memory if candidate.usage else 0)

    assert ranked(hosts(Ranking(by_memory))) == ["b", "c", "a"]
    assert ranked(hosts(Ranking(lambda candidates, signal: None))) is None


@pytest.mark.parametrize(
    "answer",
    [
        lambda candidates, signal: candidates[:2],
        lambda candidates, signal: [candidates[0]] * 3,
        lambda candidates, signal: "abc",
        lambda candidates, signal: [EvictionCandidate(c.pod) for c in candidates],
        lambda candidates, signal: iter(candidates),
    ],
)
def test_an_order_must_have_each_candidate_once(hosts: Callable[..., Host], answer: Any) -> None:
    host = hosts(Ranking(answer))
    assert ranked(host) is None
    assert "rank_for_eviction: the answer must" in host.state.error


@pytest.mark.parametrize(
    ("annotation", "asked"), [("", "plain exact other"), ("x.io/a", "exact"), ("x.io/", "exact other"), ("y.io/", "")]
)
def test_an_extension_is_asked_about_pods_with_its_annotation(
    hosts: Callable[..., Host], annotation: str, asked: str
) -> None:
    class About(Admitting):
        admit = Admitting.admit  # a point of the class itself

    About.annotation = annotation
    extension = About(lambda pod, node: Reject("No", ""))
    host = hosts(extension)
    notes: dict[str, dict[str, str]] = {"plain": {}, "exact": {"x.io/a": ""}, "other": {"x.io/b": ""}}
    rejected = []
    for name, found in notes.items():
        _, entry = admitted(host, make_pod(name, metadata={"annotations": found}))
        rejected += [name] if entry.rejection is not None else []
    assert [pod.name for pod, _ in extension.seen] == rejected == asked.split()
