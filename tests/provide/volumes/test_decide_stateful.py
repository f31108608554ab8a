"""Random lives of pods and random ends of operations: what must hold in every moment, and that all settles."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from provide.volumes.samples import check_published, empty_dir, inputs, lifecycles, make_pod, moment, running

from pykubelet.base.api.core import HostPathVolumeSource, Pod, Volume
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.provide.volumes.decide import next_timer, step_all
from pykubelet.provide.volumes.model import (
    CancelSetUp,
    Command,
    DirectoryMade,
    DirectoryRemoved,
    Event,
    FoundPod,
    FoundVolume,
    Inputs,
    InputsChanged,
    MakePodDirectory,
    RecordEvent,
    RemovePodDirectory,
    Result,
    Scan,
    ScanFailed,
    Scanned,
    SetUp,
    SetUpEnded,
    State,
    TearDown,
    TearDownEnded,
    VolumesTimerFired,
)

PATHS = Paths("/k", "/logs")
UIDS = tuple(PodUID(f"u{n}") for n in range(3))
PLUGIN = "kubernetes.io~empty-dir"
POD = st.sampled_from(UIDS)
RESULT = st.sampled_from((Result.DONE, Result.DONE, Result.FAILED, Result.UNCERTAIN))


def pod_of(uid: PodUID) -> Pod:
    checked = Volume(name="checked", hostPath=HostPathVolumeSource(path="/x", type="Directory"))
    return make_pod(empty_dir("one"), empty_dir("two"), checked, uid=uid)


class VolumesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.at = 0.0
        self.desired: set[PodUID] = set()
        self.stages: dict[PodUID, Stage] = {}
        self.alive: set[PodUID] = {UIDS[2]}  # left running by the agent before
        self.sources_ready = False
        self.under_way: list[Command] = []
        # The host as the operations leave it: volumes that are there, and directories.
        self.there: set[tuple[PodUID, str]] = {(UIDS[0], "one"), (UIDS[2], "old")}
        self.see(VolumesTimerFired(scan=True))

    def inputs(self) -> Inputs:
        pods = {uid: RosterPod(pod_of(uid), "file", 1.0) for uid in sorted(self.desired)}
        stages = lifecycles(*((pod_of(uid), stage) for uid, stage in sorted(self.stages.items())))
        return inputs(Roster(pods, self.sources_ready), stages, running(*sorted(self.alive)))

    def see(self, *events: Event) -> None:
        self.state, commands = step_all(self.state, events, moment(self.at), PATHS)
        check_published(self.state)
        for command in commands:
            if not isinstance(command, (CancelSetUp, RecordEvent)):
                self.check(command)
                self.under_way.append(command)

    def check(self, command: Command) -> None:
        if isinstance(command, (SetUp, TearDown)):
            same = [c for c in self.under_way if isinstance(c, (SetUp, TearDown)) and c.uid == command.uid]
            assert command.key not in [c.key for c in same], "two operations on one volume"
        if isinstance(command, SetUp):
            assert command.uid in self.desired
            assert not [c for c in self.under_way if isinstance(c, RemovePodDirectory) and c.uid == command.uid]
        if isinstance(command, (TearDown, RemovePodDirectory)):
            assert command.uid not in self.alive, "unmounted under running containers"
            stage = self.stages.get(command.uid)
            assert stage not in (Stage.SYNCING, Stage.TERMINATING)
            assert stage is not None or command.uid not in self.desired, "unmounted while wanted"
        if isinstance(command, RemovePodDirectory):
            assert not [c for c in self.under_way if getattr(c, "uid", None) == command.uid]

    def end(self, *commands: Command, result: Result) -> None:
        self.see(*[self.ended(command, result) for command in commands])

    def ended(self, command: Command, result: Result) -> Event:
        self.under_way.remove(command)
        done = result is Result.DONE
        error = "" if done else "broken"
        match command:
            case SetUp(uid, key):
                if result is not Result.FAILED:
                    self.there.add((uid, key))
                return SetUpEnded(uid, key, result, error)
            case TearDown(uid, key, _, name):
                if done:
                    self.there.discard((uid, name))
                return TearDownEnded(uid, key, result, error)
            case MakePodDirectory(uid):
                return DirectoryMade(uid, result, error)
            case RemovePodDirectory(uid):
                left = tuple(FoundVolume(PLUGIN, name) for u, name in sorted(self.there) if u == uid)
                return DirectoryRemoved(uid, result, error, left if done else ())
            case Scan():
                names = sorted({uid for uid, _ in self.there})
                found = tuple(
                    FoundPod(uid, tuple(FoundVolume(PLUGIN, name) for u, name in sorted(self.there) if u == uid))
                    for uid in names
                )
                return Scanned(found) if done else ScanFailed(error)
        raise AssertionError(f"{command} has no end")

    @rule(uid=POD)
    def desire(self, uid: PodUID) -> None:
        if uid not in self.desired:
            self.desired.add(uid)
            self.see(InputsChanged(self.inputs()))

    @rule(uid=POD)
    def undesire(self, uid: PodUID) -> None:
        self.desired.discard(uid)
        self.see(InputsChanged(self.inputs()))

    @rule()
    def sources_are_ready(self) -> None:
        self.sources_ready = True
        self.see(InputsChanged(self.inputs()))

    @rule(uid=POD)
    def life_goes_on(self, uid: PodUID) -> None:
        """The pod's state machine takes its next step, as act/pods would."""
        match self.stages.get(uid):
            case None:
                if uid not in self.desired and uid not in self.alive:
                    return
                self.stages[uid] = Stage.SYNCING
            case Stage.SYNCING:
                if uid in self.desired and uid not in self.alive:
                    view = self.state.mounts.pods.get(uid)
                    if view is not None and view.ready:
                        self.alive.add(uid)
                else:
                    self.stages[uid] = Stage.TERMINATING
            case Stage.TERMINATING:
                self.stages[uid] = Stage.TERMINATED  # `Observed` may follow later
            case Stage.TERMINATED:
                if uid not in self.state.mounts.pods:
                    self.stages[uid] = Stage.FINISHED
            case Stage.FINISHED:
                if uid not in self.desired:
                    del self.stages[uid]
        self.see(InputsChanged(self.inputs()))

    @rule(uid=POD)
    def containers_are_seen_to_have_ended(self, uid: PodUID) -> None:
        if self.stages.get(uid) in (None, Stage.TERMINATING, Stage.TERMINATED):
            self.alive.discard(uid)
            self.see(InputsChanged(self.inputs()))

    @rule(result=RESULT)
    def all_operations_end_at_once(self, result: Result) -> None:
        if self.under_way:
            self.end(*self.under_way, result=result)

    @rule(which=st.integers(0, 20), result=RESULT)
    def an_operation_ends(self, which: int, result: Result) -> None:
        if self.under_way:
            self.end(self.under_way[which % len(self.under_way)], result=result)

    @rule(seconds=st.sampled_from((0.1, 0.6, 3.0, 130.0)))
    def time_passes(self, seconds: float) -> None:
        self.at += seconds
        self.see(VolumesTimerFired())

    @rule()
    def the_disk_is_read_again(self) -> None:
        self.see(VolumesTimerFired(scan=True))

    @invariant()
    def what_runs_is_mounted(self) -> None:
        for uid in self.alive:
            if self.stages.get(uid) is Stage.SYNCING and uid != UIDS[2]:
                assert (uid, "one") in self.there
                assert (uid, "two") in self.there
                assert self.state.mounts.pods[uid].ready

    @invariant()
    def ready_pods_have_all_volumes(self) -> None:
        for uid, view in self.state.mounts.pods.items():
            if view.ready:
                assert {"one", "two", "checked"} <= set(view.volumes)
                assert {(uid, "one"), (uid, "two")} <= self.there

    @invariant()
    def what_is_missing_has_a_reason(self) -> None:
        for uid in self.desired:
            if self.stages.get(uid) in (None, Stage.SYNCING):
                view = self.state.mounts.pods.get(uid)
                assert view is None or view.ready or view.waits

    def teardown(self) -> None:
        """The world stands still and nothing fails any more: every desired pod is ready, nothing else is left."""
        self.sources_ready = True
        for uid in UIDS:
            for _ in range(12):
                self.containers_are_seen_to_have_ended(uid)
                if uid not in self.desired or self.stages.get(uid) in (
                    Stage.TERMINATING,
                    Stage.TERMINATED,
                    Stage.FINISHED,
                ):
                    self.desired.discard(uid)
                    self.life_goes_on(uid)
                self.settle()
        for uid in UIDS:
            view = self.state.mounts.pods.get(uid)
            if uid in self.desired:
                assert view is not None
                assert view.ready
                assert view.waits == ()
            else:
                assert view is None
                assert uid not in self.state.pods
                assert not [name for u, name in self.there if u == uid]
        assert self.state.mounts.reconstructed
        assert next_timer(self.state, moment(self.at)) is None

    def settle(self) -> None:
        self.see(InputsChanged(self.inputs()))
        for _ in range(60):
            if self.under_way:
                self.end(self.under_way[0], result=Result.DONE)
                continue
            wake = next_timer(self.state, moment(self.at))
            if wake is None:
                return
            self.at = wake - 1000.0
            self.see(VolumesTimerFired())


TestVolumes = VolumesMachine.TestCase
TestVolumes.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
