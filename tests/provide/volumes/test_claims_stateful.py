"""Random lives of pods that claim one persistent volume, each of them twice, and of an agent that may restart at any moment."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from provide.volumes.samples import NODE, check_published, lifecycles, moment, running

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent, Content, ContentKind, ObjectKey, Present
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.provide.volumes.decide import step, step_all
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
PLUGIN = "kubernetes.io~nfs"
POD = st.sampled_from(UIDS)
RESULT = st.sampled_from((Result.DONE, Result.DONE, Result.FAILED, Result.UNCERTAIN))
CLAIM = ObjectKey(ContentKind.VOLUME_CLAIM, "shop", "data")
VOLUME = ObjectKey(ContentKind.VOLUME, "", "pv")
CLAIM_BODY = {
    "metadata": {"name": "data", "namespace": "shop", "uid": "c1"},
    "spec": {"volumeName": "pv"},
    "status": {"phase": "Bound"},
}
VOLUME_BODY = {
    "metadata": {"name": "pv"},
    "spec": {"claimRef": {"uid": "c1"}, "nfs": {"server": "s", "path": "/e"}, "accessModes": ["ReadWriteOncePod"]},
}
KNOWN = {
    CLAIM: Present(from_object(PersistentVolumeClaim, CLAIM_BODY)),
    VOLUME: Present(from_object(PersistentVolume, VOLUME_BODY)),
}


def pod_of(uid: PodUID) -> Pod:
    claim = {"persistentVolumeClaim": {"claimName": "data"}}
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("a", "b")]
    spec = {
        "containers": [{"name": "main", "image": "x", "volumeMounts": mounts}],
        "volumes": [{"name": name, **claim} for name in ("a", "b")],
    }
    return from_object(Pod, {"metadata": {"name": f"web-{uid}", "namespace": "shop", "uid": uid}, "spec": spec})


PODS = {uid: pod_of(uid) for uid in UIDS}


class ClaimsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0
        self.desired: set[PodUID] = set()
        self.stages: dict[PodUID, Stage] = {}
        self.alive: set[PodUID] = set()
        self.there: set[PodUID] = set()  # the pods with a directory of the volume on the host
        self.known = 2  # how many of claim and volume have been fetched
        self.agent_starts()

    def agent_starts(self) -> None:
        self.state, self.under_way, self.listed = State(), list[Command](), False
        self.see(VolumesTimerFired(scan=True))
        self.see(InputsChanged(self.inputs()))

    def inputs(self) -> Inputs:
        pods = {uid: RosterPod(PODS[uid], "api", 1.0) for uid in sorted(self.desired)}
        stages = lifecycles(*((PODS[uid], stage) for uid, stage in sorted(self.stages.items())))
        observed = running(*sorted(self.alive))
        content = Content(True, dict(list(KNOWN.items())[: self.known]))
        if not self.listed:
            observed = type(observed)()
        return Inputs(Roster(pods, True), stages, observed, NODE, content)

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
            assert not same, "two operations on one directory"
        if isinstance(command, SetUp):
            assert command.plan.path.endswith(f"/{PLUGIN}/pv")
            assert not self.alive - {command.uid}, "set up while another pod uses the volume"
            others = [c for c in self.under_way if isinstance(c, SetUp)]
            assert not others, "set up for two pods at a time"
        if isinstance(command, (TearDown, RemovePodDirectory)):
            assert command.uid not in self.alive, "unmounted under running containers"
        if isinstance(command, TearDown):
            assert (command.plugin, command.name) == (PLUGIN, "pv")
        if isinstance(command, RemovePodDirectory):
            assert not [c for c in self.under_way if getattr(c, "uid", None) == command.uid]

    def found(self, uid: PodUID) -> tuple[FoundVolume, ...]:
        return (FoundVolume(PLUGIN, "pv"),) if uid in self.there else ()

    def end(self, *commands: Command, result: Result) -> None:
        self.see(*[self.ended(command, result) for command in commands])

    def ended(self, command: Command, result: Result) -> Event:
        self.under_way.remove(command)
        done, error = result is Result.DONE, "" if result is Result.DONE else "broken"
        match command:
            case SetUp(uid, key):
                if result is not Result.FAILED:
                    self.there.add(uid)
                return SetUpEnded(uid, key, result, error)
            case TearDown(uid, key):
                if done:
                    self.there.discard(uid)
                return TearDownEnded(uid, key, result, error)
            case MakePodDirectory(uid):
                return DirectoryMade(uid, result, error)
            case RemovePodDirectory(uid):
                return DirectoryRemoved(uid, result, error, self.found(uid) if done else ())
            case Scan():
                return Scanned(tuple(FoundPod(uid, self.found(uid)) for uid in sorted(self.there)))
        raise AssertionError(f"{command} has no end")

    @rule(uid=POD)
    def desire(self, uid: PodUID) -> None:
        if uid not in self.stages:
            self.desired.add(uid)
            self.see(InputsChanged(self.inputs()))

    @rule(uid=POD)
    def undesire(self, uid: PodUID) -> None:
        self.desired.discard(uid)
        self.see(InputsChanged(self.inputs()))

    @rule(known=st.integers(0, 2))
    def content_changes(self, known: int) -> None:
        self.known = known
        self.see(InputsChanged(self.inputs()))

    @rule()
    def the_runtime_is_listed(self) -> None:
        self.listed = True
        self.see(InputsChanged(self.inputs()))

    @rule(uid=POD)
    def life_goes_on(self, uid: PodUID) -> None:
        """The pod's worker takes its next step."""
        match self.stages.get(uid):
            case None if uid in self.desired or uid in self.alive:
                self.stages[uid] = Stage.SYNCING
            case Stage.SYNCING if uid in self.desired:
                view = self.state.mounts.pods.get(uid)
                if self.listed and view is not None and view.ready:
                    self.alive.add(uid)
            case Stage.SYNCING:
                self.stages[uid] = Stage.TERMINATING
            case Stage.TERMINATING:
                self.alive.discard(uid)
                self.stages[uid] = Stage.TERMINATED
            case Stage.TERMINATED if self.listed and uid not in self.state.mounts.pods:
                self.stages[uid] = Stage.FINISHED
            case Stage.FINISHED if uid not in self.desired:
                del self.stages[uid]
        self.see(InputsChanged(self.inputs()))

    @rule(result=RESULT)
    def all_operations_end_at_once(self, result: Result) -> None:
        if self.under_way:
            self.end(*self.under_way, result=result)

    @rule(which=st.integers(0, 20), result=RESULT)
    def an_operation_ends(self, which: int, result: Result) -> None:
        if self.under_way:
            self.end(self.under_way[which % len(self.under_way)], result=result)

    @rule(seconds=st.sampled_from((0.1, 3.0, 130.0)))
    def time_passes(self, seconds: float) -> None:
        self.at += seconds
        self.see(VolumesTimerFired())

    @rule(finished=st.booleans())
    def the_agent_restarts(self, finished: bool) -> None:
        """It is killed: its operations have had their effect or not, and nothing is known but the disk."""
        for command in self.under_way if finished else ():
            if isinstance(command, SetUp):
                self.there.add(command.uid)
            elif isinstance(command, TearDown):
                self.there.discard(command.uid)
        self.stages = {uid: Stage.SYNCING for uid in self.stages if uid in self.alive}
        self.agent_starts()

    @invariant()
    def one_pod_has_the_volume(self) -> None:
        assert len(self.alive) <= 1
        ready = [uid for uid, view in self.state.mounts.pods.items() if view.ready]
        assert len(ready) <= 1

    @invariant()
    def what_runs_is_mounted(self) -> None:
        assert self.alive <= self.there

    def teardown(self) -> None:
        """Nothing fails any more and no pod is wanted: nothing is left on the host."""
        self.known, self.listed = 2, True
        self.desired.clear()
        for _ in range(12):
            for uid in UIDS:
                self.life_goes_on(uid)
            for _ in range(40):
                self.at += 130.0
                self.see(VolumesTimerFired(scan=not self.state.mounts.reconstructed))
                if not self.under_way:
                    break
                self.end(self.under_way[0], result=Result.DONE)
        assert not self.there
        assert not self.state.pods


TestClaims = ClaimsMachine.TestCase
TestClaims.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def set_ups(commands: list[Command]) -> list[PodUID]:
    return [command.uid for command in commands if isinstance(command, SetUp)]


def test_a_started_agent_gives_the_volume_to_the_pod_that_runs_with_it() -> None:
    machine = ClaimsMachine()
    machine.desired = {UIDS[0], UIDS[1]}
    machine.alive = machine.there = {UIDS[1]}
    machine.stages = dict.fromkeys(UIDS[:2], Stage.SYNCING)
    state, commands = step(State(), InputsChanged(machine.inputs()), moment(), PATHS)
    assert set_ups(commands) == []  # neither the disk nor the runtime has been read
    state, commands = step(state, Scanned((FoundPod(UIDS[1], machine.found(UIDS[1])),)), moment(), PATHS)
    assert set_ups(commands) == []
    machine.listed = True
    state, commands = step(state, InputsChanged(machine.inputs()), moment(), PATHS)
    assert set_ups(commands) == [UIDS[1]]
    assert {c.kube_event.message for c in commands if isinstance(c, RecordEvent)} == {
        'MountVolume.SetUp failed for volume "pv" : volume uses the ReadWriteOncePod access mode and is already in use'
        " by another pod"
    }


def test_a_volume_whose_claim_is_gone_is_unmounted_before_its_pod_has_ended() -> None:
    machine = ClaimsMachine()
    machine.desired, machine.there, machine.known, machine.listed = {UIDS[0]}, {UIDS[0]}, 0, True
    gone = {CLAIM: Absent('persistentvolumeclaims "data" not found')}
    inputs = replace(machine.inputs(), content=Content(True, gone))
    state, _ = step(State(), InputsChanged(inputs), moment(), PATHS)
    state, _ = step(state, Scanned((FoundPod(UIDS[0], machine.found(UIDS[0])),)), moment(), PATHS)
    machine.desired, machine.stages = set(), {UIDS[0]: Stage.TERMINATED}
    inputs = replace(machine.inputs(), content=Content(True, gone))
    state, commands = step(state, InputsChanged(inputs), moment(), PATHS)
    (command,) = [command for command in commands if isinstance(command, TearDown)]
    assert (command.plugin, command.name) == (PLUGIN, "pv")
    assert UIDS[0] in state.mounts.pods, "the pod has not ended yet"
    state, _ = step(state, TearDownEnded(UIDS[0], command.key, Result.DONE), moment(), PATHS)
    assert UIDS[0] not in state.mounts.pods


@pytest.mark.parametrize("result", [Result.FAILED, Result.UNCERTAIN])
def test_what_an_earlier_agent_has_mounted_stays_with_its_pod_whatever_comes_of_the_next_set_up(result: Result) -> None:
    machine = ClaimsMachine()
    machine.desired, machine.there, machine.listed = {UIDS[0]}, {UIDS[0]}, True
    state, _ = step(State(), InputsChanged(machine.inputs()), moment(), PATHS)
    state, commands = step(state, Scanned((FoundPod(UIDS[0], machine.found(UIDS[0])),)), moment(), PATHS)
    while begun := [command for command in commands if isinstance(command, SetUp)]:
        assert set(state.pods[UIDS[0]].volumes) == {"a", "b"}
        state, commands = step(state, SetUpEnded(UIDS[0], begun[0].key, result, "broken"), moment(), PATHS)
    machine.desired = set(UIDS[:2])
    state, commands = step(state, InputsChanged(machine.inputs()), moment(0.1), PATHS)
    assert set_ups(commands) == [], "the volume may be mounted for the first pod"


HOST_PATH = {
    "metadata": {"name": "pv"},
    "spec": {"claimRef": {"uid": "c1"}, "hostPath": {"path": "/srv"}, "accessModes": ["ReadWriteOncePod"]},
}


def test_a_pod_gets_a_host_path_of_one_pod_as_soon_as_the_pod_before_has_ended() -> None:
    """After a restart of the agent, only the runtime shows that the pod before uses the volume."""
    machine = ClaimsMachine()
    machine.desired, machine.alive, machine.listed = {UIDS[0]}, {UIDS[1]}, True
    machine.stages = {UIDS[0]: Stage.SYNCING, UIDS[1]: Stage.TERMINATING}
    content = Content(True, {**KNOWN, VOLUME: Present(from_object(PersistentVolume, HOST_PATH))})
    inputs = replace(machine.inputs(), content=content)
    state, _ = step(State(), InputsChanged(inputs), moment(), PATHS)
    state, _ = step(state, Scanned((FoundPod(UIDS[1]),)), moment(), PATHS)
    assert not state.mounts.pods[UIDS[0]].ready and "already in use" in state.mounts.pods[UIDS[0]].waits[0].detail
    machine.alive, machine.stages[UIDS[1]] = set(), Stage.TERMINATED
    state, _ = step(state, InputsChanged(replace(machine.inputs(), content=content)), moment(0.1), PATHS)
    assert state.mounts.pods[UIDS[0]].ready
