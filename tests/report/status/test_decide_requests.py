"""The publisher's decisions as sequences of events, and what holds after any sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api import core
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage
from pykubelet.base.model.node import ApiState
from pykubelet.base.model.roster import Roster, pod_ref
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.status.decide_requests import AT_ONCE, Decision, decide, diagnostics
from pykubelet.report.status.merge import Urgency
from pykubelet.report.status.records import (
    CHANGE_EACH_S,
    CHANGES_AT_ONCE,
    DEFERRED,
    PARTIAL_S,
    Answer,
    Deleted,
    Patched,
    PublishPeriods,
    PublishState,
    Request,
    RequestFailed,
    SendDeletion,
    SendPatch,
    SnapshotsChanged,
)

UNANSWERED = ApiError(0, "", "connection refused")
IS_RUNNING = core.ContainerState(running=core.ContainerStateRunning())
CONFLICT = ApiError(409, "Conflict", "the object has been modified")


def status(phase: str = "Running", ready: bool = True, **fields: Any) -> core.PodStatus:
    condition = core.PodCondition(type="Ready", status="True" if ready else "False")
    return core.PodStatus(phase=phase, conditions=(condition,), **fields)


def creating(**fields: Any) -> core.PodStatus:
    waiting = core.ContainerState(waiting=core.ContainerStateWaiting(reason="ContainerCreating"))
    return status("Pending", False, containerStatuses=(core.ContainerStatus(name="app", state=waiting),), **fields)


def restarted(count: int) -> core.PodStatus:
    return status("Pending", False, containerStatuses=(core.ContainerStatus(name="app", restartCount=count),))


def sized(cpu: str, resize: str = "", reason: str = "") -> core.PodStatus:
    """Of a pod with a running container of this size, and a resize that is Pending or InProgress."""
    resources = core.ResourceRequirements(limits={"cpu": cpu})
    found = status(containerStatuses=(core.ContainerStatus(name="app", state=IS_RUNNING, resources=resources),))
    if not resize:
        return found
    condition = core.PodCondition(type=f"PodResize{resize}", status="True", reason=reason)
    return replace(found, conditions=(*found.conditions, condition))


def with_running(count: int, *, of: int) -> core.PodStatus:
    """Of a starting pod of so many containers, the first of which run."""
    waiting = core.ContainerState(waiting=core.ContainerStateWaiting(reason="ContainerCreating"))
    states = [IS_RUNNING] * count + [waiting] * (of - count)
    containers = tuple(core.ContainerStatus(name=f"c{n}", state=state) for n, state in enumerate(states))
    return status("Pending", False, containerStatuses=containers)


class Play:
    """A node and an API server. The server does what it is asked for when `answer` is called; `there` has its pods."""

    def __init__(self) -> None:
        self.now = 100.0
        self.there: dict[PodUID, core.Pod] = {}
        self.pods: dict[PodUID, core.Pod] = {}
        self.statuses: dict[PodUID, core.PodStatus] = {}
        self.lifecycles: dict[PodUID, PodLifecycle] = {}
        self.api = ApiState()
        self.state = PublishState(self.api)
        self.under_way: list[Request] = []
        self.sent: list[tuple[float, Request]] = []
        self.notes: list[str] = []

    def make(self, name: str, **metadata: Any) -> PodUID:
        uid = PodUID(name)
        meta = core.ObjectMeta(name=name, namespace="shop", uid=uid, resourceVersion="1", **metadata)
        self.there[uid] = core.Pod(metadata=meta, status=core.PodStatus(phase="Pending"))
        self.pods = dict(self.there)
        return uid

    def stage(self, uid: PodUID, stage: Stage, reason: KillReason | None = None, *, is_held_up: bool = False) -> None:
        pod = self.there[uid]
        life = PodLifecycle(pod_ref(pod), pod, stage, 0.0, 0.0, kill_reason=reason, is_held_up=is_held_up)
        self.lifecycles = {**self.lifecycles, uid: life}

    def change(self, uid: PodUID, **fields: Any) -> None:
        """Change the API server's copy."""
        pod = self.there[uid]
        version = str(int(pod.metadata.resourceVersion) + 1)
        wanted: dict[str, Any] = {"metadata": pod.metadata, **fields}
        wanted["metadata"] = replace(wanted["metadata"], resourceVersion=version)
        self.there[uid] = replace(pod, **wanted)

    def watch(self) -> None:
        """The watch shows the API server's pods."""
        self.pods = dict(self.there)

    def decide(self, *answers: Answer) -> list[Request]:
        news = SnapshotsChanged(self.pods, Roster(), Statuses(self.statuses), self.lifecycles, self.api)
        self.state, requests, notes = self.decision((*answers, news))
        self.under_way += requests
        self.sent += [(self.now, request) for request in requests]
        self.notes += [note.text for note in notes]
        check(self)
        return requests

    def decision(self, events: Sequence[Any]) -> Decision:
        return decide(self.state, events, self.now, PublishPeriods())

    def report(self, **statuses: core.PodStatus) -> list[Request]:
        self.statuses = {**self.statuses, **{PodUID(uid): found for uid, found in statuses.items()}}
        return self.decide()

    def answer(self, request: Request, error: ApiError | None = None) -> list[Request]:
        self.under_way.remove(request)
        uid = request.uid
        if error is not None:
            return self.decide(RequestFailed(request, error, self.now, 0.5))
        if isinstance(request, SendDeletion):
            del self.there[uid]
            return self.decide(Deleted(request, self.now))
        self.change(uid, status=request.wanted)
        return self.decide(Patched(request, self.there[uid]))

    def run(self, seconds: float, error: ApiError | None = None) -> list[float]:
        """Let time pass; all requests are answered at once. Returns when requests were sent, from now on."""
        start, end, count = self.now, self.now + seconds, len(self.sent)
        self.decide()
        while True:
            while self.under_way:
                assert len(self.sent) - count < 1000, "requests without end"
                self.answer(self.under_way[0], error)
            wake_at = self.state.wake_at
            if wake_at is None or wake_at > end:
                break
            self.now = max(wake_at, self.now + 0.001)
            self.decide()
        self.now = end
        return [round(at - start, 3) for at, _ in self.sent[count:]]


def check(play: Play) -> None:
    """What always holds: the limits of requests, and an agenda of those that are to be sent."""
    state, pods = play.state, [request.uid for request in play.under_way]
    assert len(pods) == len(set(pods)) == state.under_way <= AT_ONCE
    assert set(pods) == {uid for uid, record in state.records.items() if record.is_under_way}
    agenda = state.agenda
    assert list(agenda.later) == sorted(agenda.later) and list(agenda.due) == sorted(agenda.due)
    urgent = [uid for _, uid in agenda.later] + [uid for _, _, uid in agenda.due]
    waiting = {uid: record for uid, record in state.records.items() if record.urgency is not None}
    assert sorted(agenda.deferred) == sorted(uid for uid, record in waiting.items() if record.urgency in DEFERRED)
    idle = {uid for uid, record in waiting.items() if not record.is_under_way}
    assert sorted(urgent) == sorted(idle - set(agenda.deferred))
    if idle and state.under_way < AT_ONCE:
        assert state.wake_at is not None, "what is to be sent is never forgotten"


def test_what_a_client_waits_for_is_sent_at_once() -> None:
    play = Play()
    play.make("a"), play.make("b"), play.make("c")
    assert len(play.report(a=status(), c=sized("1"))) == 2
    assert play.run(1) == []
    sent = play.report(b=restarted(1), c=sized("2"))
    assert [request.uid for request in sent] == ["b", "c"]


def test_the_changes_of_a_restless_pod_are_sent_at_once_at_first_and_then_ten_a_second() -> None:
    play = Play()
    play.make("a")
    for count in range(1, 201):  # two seconds
        play.report(a=restarted(count))
        play.run(0.01)
    times = [round(at - 100, 3) for at, _ in play.sent]
    assert times[:CHANGES_AT_ONCE] == [n / 100 for n in range(CHANGES_AT_ONCE)]
    assert len(times) <= CHANGES_AT_ONCE + 2 / CHANGE_EACH_S
    play.run(1)
    assert play.there[PodUID("a")].status.containerStatuses[0].restartCount == 200, "the newest is sent, only later"
    assert len(play.report(a=restarted(201))) == 1, "after some rest at once again"


def test_a_resize_is_one_patch_unless_it_takes_long() -> None:
    play = Play()
    play.make("a")
    (first,) = play.report(a=sized("1"))
    play.answer(first)
    assert play.report(a=sized("1", "InProgress")) == []
    assert play.run(0.015) == []
    assert play.report(a=sized("2", "InProgress")) == []
    (last,) = play.report(a=sized("2"))
    play.answer(last)
    play.report(a=sized("2", "InProgress"))
    assert play.run(1) == [PARTIAL_S], "a client sees a slow one while it lasts"
    assert len(play.report(a=sized("2"))) == 1, "and its end"


def test_a_resize_that_has_to_wait_or_has_failed_is_reported_at_once() -> None:
    play = Play()
    play.make("a"), play.make("b")
    play.report(a=sized("1"), b=sized("1"))
    play.run(1)
    sent = play.report(a=sized("1", "Pending", "Deferred"), b=sized("1", "InProgress", "Error"))
    assert [request.uid for request in sent] == ["a", "b"]


def test_the_containers_of_a_pod_that_start_together_are_one_patch() -> None:
    play = Play()
    play.make("a")
    sent = []
    for count in range(1, 5):
        play.report(a=with_running(count, of=5))
        sent += play.run(0.015)
    assert sent == []
    assert len(play.report(a=replace(with_running(5, of=5), phase="Running"))) == 1
    assert play.run(60) == []


def test_a_container_that_runs_is_reported_while_another_takes_long() -> None:
    play = Play()
    play.make("a")
    assert play.report(a=with_running(1, of=2)) == []
    assert play.run(1) == [PARTIAL_S]


def test_a_start_is_one_patch() -> None:
    play = Play()
    play.make("a")
    assert play.report(a=creating()) == []
    assert play.run(0.5) == []
    (request,) = play.report(a=status())
    assert isinstance(request, SendPatch) and request.wanted.phase == "Running"
    assert play.run(60) == []


def test_a_crowd_of_starting_pods_waits_longer() -> None:
    play = Play()
    for n in range(20):
        play.make(f"p{n}")
    play.report(**{f"p{n}": creating() for n in range(20)})
    times = play.run(60)
    assert len(times) == 20 and 5.0 <= min(times) <= max(times) < 5.4, "1 s, and 0.2 s for each"


def test_the_second_report_of_a_slow_start_waits_for_long_unless_a_condition_changes() -> None:
    play = Play()
    play.make("a"), play.make("b")
    play.report(a=creating(), b=creating())
    first = max(play.run(3))
    has_network = core.PodCondition(type="PodReadyToStartContainers", status="True")
    slow = creating()
    play.report(a=creating(podIP="10.0.0.1"), b=replace(slow, conditions=(*slow.conditions, has_network)))
    early, late = play.run(60)
    assert early < 2 and play.sent[-2][1].uid == "b"
    assert late >= 20 - (3 - first) and play.sent[-1][1].uid == "a"


def test_ends_overtake_and_so_many_are_sent_at_once() -> None:
    play = Play()
    names = [f"p{n:02}" for n in range(15)]
    for name in (*names, "end"):
        play.make(name)
    play.stage(PodUID("end"), Stage.TERMINATED)
    first = play.report(**{name: status() for name in names}, end=status("Succeeded", False))
    assert [request.uid for request in first] == ["end", *names[: AT_ONCE - 1]]
    assert play.run(1) == [0.0] * 6


def test_the_newest_status_is_sent_after_the_request_that_is_under_way() -> None:
    play = Play()
    play.make("a")
    (request,) = play.report(a=status())
    for count in range(3):
        assert play.report(a=status(ready=False, podIP=f"10.0.0.{count}")) == []
    (again,) = play.answer(request)
    assert isinstance(again, SendPatch) and again.wanted.podIP == "10.0.0.2"
    assert play.answer(again) == []
    assert play.run(60) == []


def test_what_the_server_drops_is_not_sent_again() -> None:
    play = Play()
    uid = play.make("a")
    (request,) = play.report(a=status(podIP="10.0.0.1"))
    assert isinstance(request, SendPatch)
    play.under_way.clear()
    play.change(uid, status=replace(request.wanted, podIP=""))
    assert play.decide(Patched(request, play.there[uid])) == []
    play.watch()
    assert play.run(60) == []
    play.change(uid, status=status(ready=False))
    play.watch()
    assert len(play.run(60)) == 1, "what another client has overwritten is restored"


def test_failures_are_repeated_with_back_off_and_logged_once() -> None:
    play = Play()
    play.make("a")
    play.report(a=status())
    times = play.run(10, CONFLICT)
    assert times == [0.2, 0.6, 1.4, 3.0, 6.2]
    (found,) = diagnostics(play.state).pods[PodUID("a")].waits
    assert (found.what, found.subject, found.reason, found.since) == ("the API server", "status", "Conflict", 100.0)
    play.run(60)
    assert play.notes == ["cannot publish a pod's status", "a pod's status is published again"]
    assert not diagnostics(play.state).pods


def test_a_server_that_asks_for_a_pause_gets_it() -> None:
    play = Play()
    play.make("a")
    (request,) = play.report(a=status())
    play.answer(request, ApiError(429, "TooManyRequests", "busy", retry_after_s=7.0))
    assert play.run(60) == [7.0]


def test_a_pod_that_is_not_there_any_more_is_left_alone() -> None:
    play = Play()
    play.make("a")
    (request,) = play.report(a=status())
    play.answer(request, ApiError(404, "NotFound", "pods not found"))
    assert play.run(60) == []


def test_all_wait_for_a_server_that_cannot_be_reached_and_are_sent_when_it_is_back() -> None:
    play = Play()
    play.make("a"), play.make("b")
    (request,) = play.report(a=status())
    play.answer(request, UNANSWERED)
    assert play.report(b=status()) == [], "not even one that has not failed"
    assert play.run(5, UNANSWERED)
    play.api = ApiState(error="connection refused")
    assert play.decide() == []
    play.api = ApiState()
    assert {request.uid for request in play.decide()} == {"a", "b"}


def test_a_finished_pod_is_deleted_after_its_final_status() -> None:
    play = Play()
    uid = play.make("a", deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=30)
    play.stage(uid, Stage.FINISHED, KillReason.DELETED)
    (patch,) = play.report(a=status("Failed", False))
    (deletion,) = play.answer(patch)
    assert isinstance(patch, SendPatch) and patch.urgency is Urgency.END
    assert isinstance(deletion, SendDeletion)
    assert play.answer(deletion) == []
    assert play.report(a=status("Failed", False, podIP="10.0.0.1")) == []
    play.watch()
    play.decide()
    assert not play.state.records


def test_a_pod_that_is_gone_during_its_request_is_forgotten_after_it() -> None:
    play = Play()
    play.make("a")
    (request,) = play.report(a=status())
    play.pods = {}
    assert play.decide() == []
    assert play.answer(request) == []
    assert not play.state.records


def test_a_status_that_would_revert_the_end_of_a_container_is_withheld() -> None:
    play = Play()
    uid = play.make("a")
    ended = core.ContainerState(terminated=core.ContainerStateTerminated())
    there = status(containerStatuses=(core.ContainerStatus(name="app", state=ended),))
    spec = core.PodSpec(restartPolicy="Never", containers=(core.Container(name="app"),))
    play.change(uid, status=there, spec=spec)
    play.watch()
    running = core.ContainerState(running=core.ContainerStateRunning())
    assert play.report(a=status(containerStatuses=(core.ContainerStatus(name="app", state=running),))) == []
    assert play.notes == ["not publishing: the status would revert a terminated container to running"]


def test_a_change_touches_only_the_records_of_changed_pods() -> None:
    """Also while thousands of statuses wait for a server that cannot be reached."""
    play = Play()
    for n in range(300):
        play.make(f"p{n}")
    (request, *_) = play.report(**{f"p{n}": status() for n in range(300)})
    play.answer(request, UNANSWERED)
    before = play.state.records
    play.report(p7=status(ready=False))
    changed = [uid for uid, record in play.state.records.items() if record is not before[uid]]
    assert changed == ["p7"]


# Any sequence

KINDS: dict[str, Callable[[int], core.PodStatus]] = {
    "creating": lambda n: creating(podIP=f"10.0.0.{n}"),
    "ready": lambda n: status(podIP=f"10.0.0.{n}"),
    "unready": lambda n: status(ready=False, podIP=f"10.0.0.{n}"),
    "restarted": restarted,
    "ended": lambda n: status("Failed", False, message=str(n)),
}
NAMES = [f"p{n:02}" for n in range(AT_ONCE + 4)]
ERRORS = [None, None, UNANSWERED, CONFLICT, ApiError(500, "InternalError", "etcd", retry_after_s=3.0)]
EVENTS = st.one_of(
    st.tuples(st.just("report"), st.sampled_from(NAMES), st.sampled_from(sorted(KINDS))),
    st.tuples(st.just("report all"), st.just(""), st.sampled_from(sorted(KINDS))),
    st.tuples(st.just("answer"), st.integers(0, AT_ONCE - 1), st.sampled_from(ERRORS)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.05, 0.2, 1.5, 30.0]), st.none()),
    st.tuples(
        st.sampled_from(["watch", "overwrite", "terminate", "finish", "gone"]), st.sampled_from(NAMES), st.none()
    ),
    st.tuples(st.just("server"), st.sampled_from(["", "connection refused"]), st.none()),
)


def take(play: Play, n: int, event: tuple[str, Any, Any]) -> None:
    """Do what the event names, and decide."""
    kind, what, more = event
    uid = PodUID(str(what))
    reports = {"report": [what], "report all": NAMES}.get(kind, [])
    play.statuses = {**play.statuses, **{PodUID(name): KINDS[more](n) for name in reports}}
    if kind == "answer" and what < len(play.under_way):
        request = play.under_way[what]
        is_gone = request.uid not in play.there
        play.answer(request, ApiError(404, "NotFound", "gone") if is_gone else more)
    elif kind == "wait":
        play.now += what
    elif kind == "watch":
        play.watch()
    elif kind == "server":
        play.api = ApiState(error=what)
    elif uid in play.there:
        match kind:
            case "overwrite":
                play.change(uid, status=replace(play.there[uid].status, message=f"overwritten {n}"))
            case "terminate":
                meta = replace(play.there[uid].metadata, deletionTimestamp="x", deletionGracePeriodSeconds=30)
                play.change(uid, metadata=meta)
                play.stage(uid, Stage.TERMINATED, KillReason.DELETED)
            case "finish" if play.there[uid].metadata.deletionTimestamp:
                play.stage(uid, Stage.FINISHED, KillReason.DELETED)
            case "gone":
                del play.there[uid]
    play.decide()


@given(st.lists(EVENTS, max_size=40))
def test_the_newest_status_of_every_pod_arrives_whatever_happened(events: list[tuple[str, Any, Any]]) -> None:
    """The limits of requests, and that no request is forgotten, are checked after each event."""
    play = Play()
    for name in NAMES:
        play.make(name)
    for n, event in enumerate(events):
        take(play, n, event)
    while play.under_way:
        request = play.under_way[0]
        play.answer(request, None if request.uid in play.there else ApiError(404, "NotFound", "gone"))
    play.watch()
    play.api = ApiState()
    play.run(120)
    assert not play.under_way
    agenda = play.state.agenda
    assert not (agenda.due or agenda.later or agenda.deferred)
    for uid, pod in play.there.items():
        newest, is_final = play.statuses.get(uid), pod.status.phase == "Failed"
        life = play.lifecycles.get(uid)
        if life is not None and life.stage is Stage.FINISHED:
            assert not is_final, "its object was deleted for good"
        elif newest is not None and not is_final:
            shown = (newest.podIP, newest.conditions, newest.containerStatuses)
            assert (pod.status.podIP, pod.status.conditions, pod.status.containerStatuses) == shown
