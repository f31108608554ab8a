"""Which pods have a worker: rosters and snapshots of the runtime in, actions out, pass by pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from act.pods.scenes import WALL, box, container, exited, pod, running, view
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.act.pods.decide_workers import (
    Action,
    ForgetPod,
    LastPass,
    PodsSnapshot,
    RequestEviction,
    RequestKill,
    RequestRead,
    SendView,
    StartWorker,
    UpdateWorker,
    WorkerRecord,
    crash_pause,
    decide_workers,
    is_worker_done,
    sandbox_in_use,
    workers_of_content,
    workers_of_probes,
)
from pykubelet.act.pods.model import PodWorkerState, Work
from pykubelet.base.api.core import ConfigMap, ObjectMeta, Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, ContentKind, ObjectKey, Present, Unreadable
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID
from pykubelet.base.model.labels import CONFIG_SOURCE
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage, StartError
from pykubelet.base.model.observed import ContainerEnd, Observed, PodView
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.base.model.roster import Rejection, Roster, RosterPod
from pykubelet.base.model.sizing import PodSize, SizeChange
from pykubelet.base.model.waits import Owner, Wait

UNLISTED = "its pods have not been listed yet"
UNREAD = "what it has of the pod is not known yet"


def api(uid: str, name: str = "", **fields: Any) -> RosterPod:
    return entry(pod(metadata={"uid": uid, "name": name or uid}, **fields))


def static(uid: str, name: str = "", seen_at: float = WALL) -> RosterPod:
    metadata = {"uid": uid, "name": name or uid, "annotations": {CONFIG_SOURCE: "file"}}
    return replace(entry(pod(metadata=metadata)), seen_at=seen_at)


def entry(of: Pod) -> RosterPod:
    return RosterPod(of, "api", WALL)


def ref(uid: str, name: str = "") -> PodRef:
    return PodRef("shop", name or uid, PodUID(uid))


def up(uid: str, name: str = "", read_at: float = 1.0) -> PodView:
    """A pod that runs."""
    return view(box(), running(), ref=ref(uid, name), read_at=read_at)


def down(uid: str, read_at: float = 1.0) -> PodView:
    """A pod of which exited containers are left."""
    return view(box(ready=False), exited(), ref=ref(uid), read_at=read_at)


def absent(uid: str, read_at: float = 1.0) -> PodView:
    return PodView(ref(uid), read_at=read_at)


@dataclass
class Fixed:
    """A worker that does nothing but take views, as the real one does."""

    state: PodWorkerState


@dataclass
class Passes:
    """Runs passes and carries out their actions as the loop does. Each pass answers with its actions in words: the same as if it had looked
    at all pods."""

    records: dict[PodUID, WorkerRecord[Fixed]] = field(default_factory=dict)
    shown: dict[PodUID, PodLifecycle] = field(default_factory=dict)
    last: LastPass = field(default_factory=LastPass)
    ends: list[PodUID] = field(default_factory=list)
    roster: Roster = field(default_factory=lambda: Roster(sources_ready=True))
    observed: Observed = field(default_factory=Observed)
    at: float = 10.0

    def want(self, *entries: RosterPod, ready: bool = True) -> list[str]:
        known = self.roster.pods
        pods = {uid: known.get(uid, new) if known.get(uid) == new else new for uid, new in _by_uid(entries).items()}
        self.roster = Roster(pods, sources_ready=ready)
        return self.run()

    def see(self, *views: PodView, listed_at: float | None = 1.0, unread: Iterable[PodRef] = ()) -> list[str]:
        known = self.observed.pods
        pods = {new.ref.uid: known[new.ref.uid] if known.get(new.ref.uid) == new else new for new in views}
        self.observed = Observed(pods, listed_at, frozenset(unread))
        return self.run()

    def run(self) -> list[str]:
        now = PodsSnapshot(self.roster, self.observed, self.at, WALL + self.at)
        decision = decide_workers(self.records, self.shown, self.last, now, self.ends)
        complete = decide_workers(self.records, self.shown, self.last, now, self.ends, all_pods=True)
        assert sorted(map(_words, decision.actions)) == sorted(map(_words, complete.actions))
        assert (decision.shown, decision.last) == (complete.shown, complete.last)
        self.last = decision.last
        self.ends.clear()
        for action in decision.actions:
            self._execute(action)
        merged = {**self.shown, **decision.shown}
        self.shown = {uid: life for uid, life in merged.items() if life is not None}
        return [_words(action) for action in decision.actions]

    def ended(self, uid: str, at: float) -> None:
        """The worker has ended: nothing of its pod is left."""
        record = self.records[PodUID(uid)]
        record.worker, record.entry, record.kill_sent, record.removed_at = None, None, False, at
        self.ends.append(PodUID(uid))
        self.shown.pop(PodUID(uid), None)

    def crashed(self, uid: str) -> None:
        self.ended(uid, self.at)
        record = self.records[PodUID(uid)]
        record.backoff, record.pause = crash_pause(record.backoff, "a bug", self.at, WALL + self.at)

    def state(self, uid: str) -> PodWorkerState:
        worker = self.records[PodUID(uid)].worker
        assert worker is not None
        return worker.state

    def set_state(self, uid: str, **changes: Any) -> None:
        worker = self.records[PodUID(uid)].worker
        assert worker is not None
        worker.state = replace(worker.state, **changes)

    def waits(self, uid: str) -> str:
        assert PodUID(uid) in self.shown
        return self.last.waiting[PodUID(uid)].detail

    def _execute(self, action: Action) -> None:
        match action:
            case StartWorker():
                record = self.records.setdefault(action.state.ref.uid, WorkerRecord())
                assert record.worker is None, "there is one worker already"
                record.worker, record.entry = Fixed(action.state), action.entry
                record.kill_sent, record.removed_at = action.entry is None, None
            case UpdateWorker():
                self.records[action.uid].entry, self.records[action.uid].kill_sent = action.entry, False
            case RequestKill():
                self.records[action.uid].kill_sent = True
            case SendView():
                self.set_state(action.uid, view=action.event.view)
            case ForgetPod():
                del self.records[action.uid]


def _by_uid(entries: Iterable[RosterPod]) -> dict[PodUID, RosterPod]:
    return {PodUID(new.pod.metadata.uid): new for new in entries}


def _words(action: Action) -> str:
    match action:
        case StartWorker():
            return f"start {action.state.ref.uid}: {', '.join(event.cause for event in action.events)}"
        case UpdateWorker():
            return f"update {action.uid}: {', '.join(event.cause for event in action.events)}"
        case RequestKill():
            return f"kill {action.uid}: {action.event.cause}"
        case RequestEviction():
            return f"evict {action.uid}: {action.event.cause}"
        case SendView():
            shown = action.event.view
            return f"send {action.uid}: {'nothing' if shown.is_gone else 'running' if shown.is_running else 'exited'}"
        case RequestRead():
            return f"read {action.ref.uid}"
        case ForgetPod():
            return f"forget {action.uid}"


def listed(*entries: RosterPod) -> Passes:
    """The runtime was listed and is empty, and workers of these pods run."""
    passes = Passes()
    passes.see()
    passes.want(*entries)
    return passes


# Workers start


def test_no_worker_starts_before_the_runtime_is_listed() -> None:
    passes = Passes()
    assert passes.want(api("web")) == []
    assert passes.waits("web") == UNLISTED
    assert passes.see() == ["start web: new pod"]


def test_pods_that_run_already_get_their_worker_first() -> None:
    passes = Passes()
    passes.want(api("new"), api("old"))
    assert passes.see(up("old")) == ["start old: found running", "start new: new pod"]
    assert passes.state("old").view == up("old")


def test_a_pod_that_could_not_be_read_yet_waits() -> None:
    passes = Passes()
    passes.want(api("web"), api("other"))
    assert passes.see(unread=[ref("web")]) == ["start other: new pod"]
    assert passes.waits("web") == UNREAD
    assert passes.see(up("web")) == ["start web: found running"]


def test_a_held_pod_waits_in_the_words_of_the_roster() -> None:
    passes, web = listed(), api("web")
    held = replace(
        web, admission_wait=Wait("admission", Owner.POD_ADMISSION, WALL, detail="devices are being allocated")
    )
    assert passes.want(held) == []
    assert passes.waits("web") == "devices are being allocated"
    assert passes.want(web) == ["start web: new pod"]


def test_a_pod_that_is_refused_gets_that_before_anything_else() -> None:
    passes = Passes()
    passes.want(replace(api("web"), rejection=Rejection("OutOfcpu", "no cpu")))
    assert passes.see(up("web")) == ["start web: rejected by the node, found running"]


@pytest.mark.parametrize(
    ("shown", "stage"),
    [
        pytest.param((), Stage.TERMINATED, id="nothing is left"),
        pytest.param((down("job"),), Stage.TERMINATED, id="exited containers are left"),
        pytest.param((up("job"),), Stage.SYNCING, id="something still runs"),
    ],
)
def test_a_pod_that_has_ended_in_the_api_never_runs_again(shown: tuple[PodView, ...], stage: Stage) -> None:
    job = api("job")
    passes = Passes()
    passes.want(entry(replace(job.pod, status=replace(job.pod.status, phase="Succeeded"))))
    (started,) = passes.see(*shown)
    assert "deleted or ended in the API" in started
    assert passes.state("job").stage is stage


def test_the_start_of_a_pod_is_the_earliest_known_one() -> None:
    passes, web = Passes(at=1000.0), api("web")
    passes.roster = Roster({PodUID("web"): replace(web, seen_at=WALL + 900)}, sources_ready=True)
    sandbox = replace(box(), created_at=int((WALL + 400) * 1e9))
    passes.see(view(sandbox, running(), ref=ref("web")))
    state = passes.state("web")
    assert (state.started_wall, state.active_since) == (WALL + 400, 400.0)


def test_a_sandbox_without_a_creation_time_does_not_date_the_start_of_its_pod() -> None:
    passes, web = Passes(at=1000.0), api("web")
    passes.roster = Roster({PodUID("web"): replace(web, seen_at=WALL + 900)}, sources_ready=True)
    passes.see(view(replace(box(), created_at=0), running(), ref=ref("web")))
    assert passes.state("web").started_wall == WALL + 900


def test_a_resize_that_is_under_way_reports_the_size_of_older_instances() -> None:
    passes, change = Passes(), SizeChange(PodSize(), WALL)
    passes.want(replace(api("web"), change=change), api("other"))
    passes.see(up("web"), up("other"))
    assert passes.state("web").sizes.adopted is change
    assert passes.state("other").sizes.adopted is None


# Static pods of one name


def test_of_two_static_pods_of_one_name_the_older_must_end_first() -> None:
    passes = listed(static("old", "web"))
    assert passes.want(static("new", "web")) == ["kill old: no longer desired"]
    assert passes.waits("new") == "the older pod web_shop(old) must end first"
    passes.ended("old", 11.0)
    assert passes.run() == ["start new: new pod", "forget old"]


@pytest.mark.parametrize("is_read", [True, False])
def test_what_an_earlier_run_has_left_of_the_name_must_end_first(is_read: bool) -> None:
    passes = Passes()
    passes.want(static("new", "web"), ready=False)
    if is_read:
        assert passes.see(up("old", "web")) == []
    else:
        assert passes.see(unread=[ref("old", "web")]) == []
    assert passes.waits("new") == "the older pod web_shop(old) must end first"


def test_a_pod_of_the_api_with_the_same_name_does_not_block_a_static_one() -> None:
    passes = listed(api("a", "web"))
    assert passes.want(api("a", "web"), static("b", "web")) == ["start b: new pod"]


# Workers are sent messages


def test_a_new_entry_is_sent_once() -> None:
    passes = listed(api("web"))
    assert passes.want(api("web", dnsPolicy="ClusterFirst")) == ["update web: manifest changed"]
    assert passes.run() == []


def test_a_pod_that_is_refused_later_gets_only_that_and_after_it_its_changes() -> None:
    passes, refused = listed(api("web")), Rejection("Preempting", "for another")
    assert passes.want(replace(api("web"), rejection=refused)) == ["update web: preempted"]
    changed = replace(api("web", dnsPolicy="ClusterFirst"), rejection=refused)
    assert passes.want(changed) == ["update web: manifest changed"]


def test_a_static_pod_that_went_and_came_back_between_two_passes_is_restarted() -> None:
    passes = listed(static("web"))
    back = passes.want(static("web", seen_at=WALL + 5))
    assert back == ["update web: it was away and has come back, manifest changed"]


def test_a_pod_that_is_no_longer_desired_is_killed_once_and_again_when_it_came_back_meanwhile() -> None:
    passes = listed(api("web"))
    assert passes.want() == ["kill web: no longer desired"]
    assert passes.run() == []
    assert passes.want(api("web", dnsPolicy="ClusterFirst")) == ["update web: manifest changed"]
    assert passes.want() == ["kill web: no longer desired"]


def test_absence_kills_nothing_before_all_sources_have_reported() -> None:
    passes = listed(api("web"))
    assert passes.want(ready=False) == []
    assert passes.see(up("web", read_at=2.0), up("orphan")) == ["send web: running"]
    assert passes.want() == ["kill web: no longer desired", "start orphan: found running, not desired"]


def test_an_orphan_is_killed_within_a_second_and_becomes_a_pod_when_it_is_desired() -> None:
    passes = listed()
    assert passes.see(up("web")) == ["start web: found running, not desired"]
    assert passes.run() == []
    assert passes.want(api("web")) == ["update web: manifest changed"]
    assert passes.want() == ["kill web: no longer desired"]


def test_a_view_is_sent_when_it_changed_and_pending_exits_count() -> None:
    passes = listed(api("web"))
    assert passes.see(up("web", read_at=2.0)) == ["send web: running"]
    assert passes.see(up("web", read_at=2.0)) == []
    ended = up("web", read_at=2.0).add_pending_exits([ContainerEnd(ContainerID("app-0"), 1, 5)])
    assert passes.see(ended) == ["send web: exited"]


@pytest.mark.parametrize(
    ("init", "limits", "code", "state"),
    [
        pytest.param(True, {"memory": "16Mi"}, 0, "running", id="it may have been OOM-killed"),
        pytest.param(True, {"memory": "16Mi"}, 1, "exited", id="it has failed"),
        pytest.param(True, {"cpu": "1"}, 0, "exited", id="its memory is not limited"),
        pytest.param(False, {"memory": "16Mi"}, 0, "exited", id="a regular container"),
    ],
)
def test_exit_code_0_of_an_init_container_is_a_success_when_the_runtime_has_reported_no_oom_kill(
    init: bool, limits: dict[str, str], code: int, state: str
) -> None:
    """The event of the exit may come before that of the OOM kill."""
    limited = container(resources={"limits": limits})
    passes = listed(
        api("web", init=(limited,)) if init else entry(pod(limited, metadata={"uid": "web", "name": "web"}))
    )
    passes.see(up("web", read_at=2.0))
    ended = up("web", read_at=2.0).add_pending_exits([ContainerEnd(ContainerID("app-0"), code, 5)])
    assert passes.see(ended) == [f"send web: {state}"]


def test_a_relist_without_the_pod_is_sent_unless_the_worker_knows() -> None:
    passes = listed(api("web"))
    assert passes.see(up("web", read_at=20.0)) == ["send web: running"]
    assert passes.see(listed_at=15.0) == [], "that list is older"
    assert passes.see(listed_at=25.0, unread=[ref("web")]) == [], "it is there, and not read yet"
    assert passes.see(listed_at=30.0) == ["send web: nothing"]
    assert passes.see(listed_at=40.0) == []
    passes.set_state("web", read_after=45.0)
    assert passes.see(listed_at=50.0) == ["send web: nothing"]


def test_a_pod_whose_view_is_overdue_is_read_after_the_next_relist() -> None:
    passes = listed(api("web"))
    passes.see(up("web", read_at=20.0), listed_at=20.0)
    passes.set_state("web", read_after=25.0)
    assert passes.see(up("web", read_at=20.0), listed_at=20.0) == []
    assert passes.see(up("web", read_at=20.0), listed_at=30.0) == ["read web"]
    passes.set_state("web", work=Work.SYNC)
    assert passes.see(up("web", read_at=20.0), listed_at=40.0) == [], "its end brings a view"


# Workers end and restart


def test_a_removed_pod_starts_again_once_a_newer_view_shows_it_removed() -> None:
    passes = listed(api("web"))
    passes.see(up("web", read_at=20.0))
    passes.ended("web", 25.0)
    assert passes.run() == []
    assert passes.waits("web") == UNREAD
    assert passes.see(absent("web", read_at=25.0)) == ["start web: found running"]


def test_what_was_removed_is_no_orphan_while_the_snapshot_is_older() -> None:
    passes = listed(api("web"))
    passes.see(up("web", read_at=20.0))
    passes.want()
    passes.ended("web", 25.0)
    assert passes.run() == []
    assert passes.see(absent("web", read_at=26.0)) == ["forget web"]


def test_a_pod_whose_worker_crashed_pauses_longer_each_time() -> None:
    passes = listed(api("web"))
    delays = []
    for _ in range(3):
        passes.crashed("web")
        assert passes.see(up("web", read_at=passes.at + 1)) == []
        assert passes.waits("web") == "a bug"
        record = passes.records[PodUID("web")]
        assert record.backoff is not None
        delays.append(record.backoff.delay_s)
        record.pause = None
        assert passes.run() == ["start web: found running"]
        passes.at += 2
    assert delays == [1.0, 2.0, 4.0]
    passes.crashed("web")
    passes.records[PodUID("web")].pause = None
    passes.roster = Roster(sources_ready=True)
    assert passes.see(absent("web", read_at=99.0)) == []
    assert passes.see() == ["forget web"]


D, R = KillReason.DELETED, KillReason.REMOVED


@pytest.mark.parametrize(
    ("stage", "reason", "removed", "is_desired", "is_done"),
    [
        (Stage.TERMINATED, R, True, False, False),
        (Stage.FINISHED, R, True, False, True),
        (Stage.FINISHED, R, False, False, False),
        (Stage.FINISHED, KillReason.ORPHANED, True, False, True),
        (Stage.FINISHED, D, True, True, False),
        (Stage.FINISHED, D, True, False, True),
        (Stage.FINISHED, D, False, False, False),
        (Stage.FINISHED, KillReason.RENEWED, False, True, True),
        (Stage.FINISHED, KillReason.COMPLETED, True, True, False),
        (Stage.FINISHED, None, True, True, False),
    ],
)
def test_when_a_worker_ends(
    stage: Stage, reason: KillReason | None, removed: bool, is_desired: bool, is_done: bool
) -> None:
    lifecycle = PodLifecycle(ref("web"), pod(), stage, WALL, WALL, kill_reason=reason)
    assert is_worker_done(lifecycle, removed, is_desired) is is_done


# Whom probes and objects concern


def test_probe_results_concern_the_pods_of_their_containers_and_a_new_kind_concerns_all() -> None:
    passes = listed(api("a"), api("b"))
    other = view(box(), running("db"), ref=ref("b"), read_at=20.0)
    passes.see(up("a", read_at=20.0), other)
    failing = ProbeResults({(ContainerID("db-0"), ProbeKind.LIVENESS): ProbeResult.FAILURE}, frozenset(ProbeKind))

    def concerned(before: ProbeResults, now: ProbeResults) -> list[str]:
        return [worker.state.ref.uid for worker in workers_of_probes(passes.records, before, now)]

    assert concerned(ProbeResults({}, frozenset(ProbeKind)), failing) == ["b"]
    assert concerned(failing, failing) == []
    assert concerned(ProbeResults(), failing) == ["a", "b"]


def test_a_changed_object_concerns_the_pods_that_could_not_start_without_it() -> None:
    env = container(env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "a"}}}])
    passes = listed(entry(pod(env, metadata={"uid": "a"})), entry(pod(env, metadata={"uid": "b"})), api("c"))
    for uid in ("a", "c"):
        passes.set_state(uid, start_errors={"app": StartError("CreateContainerConfigError", "no conf")})
    key = ObjectKey(ContentKind.CONFIG_MAP, "shop", "conf")

    def content(version: str) -> Content:
        return Content(True, {key: Present(ConfigMap(metadata=ObjectMeta(resourceVersion=version)))})

    def concerned(before: Content, now: Content) -> list[str]:
        return [worker.state.ref.uid for worker in workers_of_content(passes.records, before, now)]

    assert concerned(content("1"), content("2")) == ["a"]
    assert concerned(Content(), content("1")) == [], "the first answer reaches the work that waits for it"


def test_a_pod_of_many_objects_is_tried_again_when_all_are_readable() -> None:
    names = [f"m{number}" for number in range(101)]
    env = [{"name": name, "valueFrom": {"configMapKeyRef": {"name": name, "key": "a"}}} for name in names]
    passes = listed(entry(pod(container(env=env), metadata={"uid": "a"})))
    passes.set_state("a", start_errors={"app": StartError("CreateContainerConfigError", "timed out")})

    def content(readable: int) -> Content:
        found = [Present(ConfigMap()) if number < readable else Unreadable("timed out", 1.0) for number in range(101)]
        return Content(
            True,
            {
                ObjectKey(ContentKind.CONFIG_MAP, "shop", name): answer
                for name, answer in zip(names, found, strict=True)
            },
        )

    concerned = [[*workers_of_content(passes.records, content(n), content(n + 1))] for n in range(101)]
    assert [len(workers) for workers in concerned] == [0] * 100 + [1]


@pytest.mark.parametrize(
    ("changes", "sandbox"),
    [
        ({}, "s0"),
        ({"work": Work.SYNC}, None),
        ({"stage": Stage.TERMINATING}, None),
        ({"view": None}, None),
        ({"view": down("web")}, None),
        ({"view": view(running(), ref=ref("web"))}, None),
    ],
)
def test_which_sandbox_is_in_use(changes: dict[str, Any], sandbox: str | None) -> None:
    state = PodWorkerState(ref("web"), pod(), Stage.SYNCING, WALL, view=up("web"))
    assert sandbox_in_use(replace(state, **changes)) == sandbox


# Invariants

UIDS = ("a", "b", "c")
ENTRIES = st.sampled_from(
    [api("a"), api("a", dnsPolicy="None"), static("b", "web"), static("c", "web"), static("c", "web", WALL + 1)]
)
STEPS = st.one_of(
    st.tuples(st.just("want"), st.lists(ENTRIES, max_size=3), st.booleans()),
    st.tuples(st.just("see"), st.sets(st.sampled_from(UIDS)), st.sets(st.sampled_from(UIDS), max_size=1)),
    st.tuples(st.sampled_from(["end", "crash", "resume"]), st.sampled_from(UIDS), st.just(None)),
)


@given(steps=st.lists(STEPS, max_size=12))
@settings(deadline=None)
def test_whatever_comes_there_is_one_worker_a_pod_and_every_other_pod_shows_its_wait(
    steps: list[tuple[str, Any, Any]],
) -> None:
    passes = Passes()
    for kind, what, how in steps:
        passes.at += 1
        record = passes.records.get(PodUID(what)) if isinstance(what, str) else None
        killed = {uid for uid, kept in passes.records.items() if kept.kill_sent}
        if kind == "want":
            passes.want(*what, ready=how)
        elif kind == "see":
            names = {"a": "a", "b": "web", "c": "web"}
            shown = [up(uid, names[uid], passes.at) for uid in sorted(what - how)]
            passes.see(*shown, listed_at=passes.at, unread=[ref(uid, names[uid]) for uid in how])
        elif record is not None and record.worker is not None and kind in ("end", "crash"):
            passes.ended(what, passes.at) if kind == "end" else passes.crashed(what)
            passes.run()
        elif record is not None:
            record.pause = None
            passes.run()
        working = {uid for uid, kept in passes.records.items() if kept.worker is not None}
        if not passes.roster.sources_ready:
            assert {uid for uid, kept in passes.records.items() if kept.kill_sent} <= killed
        elif passes.observed.listed_at is not None:
            undesired = working - set(passes.roster.pods)
            assert all(passes.records[uid].kill_sent for uid in undesired)
        assert set(passes.shown) >= set(passes.roster.pods) - working, (
            "a pod without a worker publishes what it waits for"
        )
        assert set(passes.shown) <= set(passes.roster.pods) | working
        idle = {uid for uid, kept in passes.records.items() if kept.worker is None and kept.pause is None}
        assert idle <= set(passes.roster.pods) | set(passes.observed.pods), "no record is kept for nothing"
        assert passes.run() == [], "a second pass over the same snapshots has nothing to do"


def test_a_pod_whose_manifest_is_in_quarantine_is_left_alone() -> None:
    passes = listed()
    passes.roster = replace(passes.roster, withheld=frozenset({"web_shop"}))
    assert passes.see(up("u1", "web"), up("u2", "db")) == ["start u2: found running, not desired"]
    passes.roster = replace(passes.roster, withheld=frozenset())
    assert passes.run() == ["start u1: found running, not desired"]
