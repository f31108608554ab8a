"""Random lives of pods that share devices, with restarts of the agent and a controller that attaches and detaches."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from provide.volumes.samples import check_published, lifecycles, make_pod, moment, running

from pykubelet.base.api.core import FCVolumeSource, Pod, Volume
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.provide.volumes import plan as plans
from pykubelet.provide.volumes.decide import next_timer, step_all
from pykubelet.provide.volumes.kind import (
    DevicePlan,
    FoundDevice,
    PlanInputs,
    UndecidedPlan,
    VolumeKind,
    VolumePlan,
)
from pykubelet.provide.volumes.model import (
    CancelSetUp,
    Command,
    DeviceStaged,
    DeviceUnstaged,
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
    StageDevice,
    State,
    TearDown,
    TearDownEnded,
    UnstageDevice,
    VolumesTimerFired,
)

PATHS = Paths("/k", "/logs")
UIDS = tuple(PodUID(f"u{n}") for n in range(3))
PLUGIN = "test.example~shared"
POD = st.sampled_from(UIDS)
#: `attached` is attachable.
USED = {UIDS[0]: ("attached", "plain"), UIDS[1]: ("attached",), UIDS[2]: ("plain",)}
RESULT = st.sampled_from((Result.DONE, Result.DONE, Result.DONE, *Result))
DEVICES = {
    name: DevicePlan(f"unique-{name}", "fc", Beneath("/k/plugins", name), is_attachable=name == "attached")
    for name in ("attached", "plain")
}
IN_USE = frozenset({DEVICES["attached"].name})


class SharedPlan(VolumePlan):
    shared: DevicePlan

    @property
    def device(self) -> DevicePlan:
        return self.shared


def plan(inputs: PlanInputs) -> SharedPlan | UndecidedPlan:
    device, volumes = DEVICES[inputs.volume.name], inputs.node_volumes
    if device.is_attachable and not (device.name in volumes.in_use and device.name in volumes.attached):
        return UndecidedPlan("it is not attached", device=device)
    return SharedPlan(inputs.mounted(inputs.dirs.path), device)


KIND = VolumeKind(name="fc", plugin="test.example/shared", plan=plan)


@pytest.fixture(autouse=True, scope="module")
def kind() -> Iterator[None]:
    """A volume kind whose plans have devices."""
    with patch.dict(plans.KINDS, {"fc": KIND}), patch.dict(plans._BY_DIRECTORY, {PLUGIN: KIND}):
        yield


def pod_of(uid: PodUID) -> Pod:
    return make_pod(*(Volume(name=name, fc=FCVolumeSource()) for name in USED[uid]), uid=uid)


def unique(name: str) -> str:
    return DEVICES[name].name


class DevicesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.at = 0.0
        self.desired: set[PodUID] = set()
        self.stages: dict[PodUID, Stage] = {}
        self.alive: set[PodUID] = {UIDS[0]}  # left running by the agent before
        self.sources_ready = False
        self.under_way: list[Command] = []
        # The host as the operations leave it: pods' mounts, their directories, and staged devices, by unique name.
        self.mounted: set[tuple[PodUID, str]] = {(UIDS[0], name) for name in USED[UIDS[0]]}
        self.directories: set[PodUID] = {UIDS[0]}
        self.staged: set[str] = {unique(name) for name in USED[UIDS[0]]}
        self.left: set[str] = set(self.staged)
        self.api_node = ApiNode(True, volumes_in_use=IN_USE, volumes_attached=dict.fromkeys(IN_USE, ""))
        self.see(VolumesTimerFired(scan=True))

    def inputs(self) -> Inputs:
        pods = {uid: RosterPod(pod_of(uid), "file", 1.0) for uid in sorted(self.desired)}
        stages = lifecycles(*((pod_of(uid), stage) for uid, stage in sorted(self.stages.items())))
        return Inputs(Roster(pods, self.sources_ready), stages, running(*sorted(self.alive)), api_node=self.api_node)

    def see(self, *events: Event) -> None:
        self.state, commands = step_all(self.state, events, moment(self.at), PATHS)
        check_published(self.state)
        for command in commands:
            if not isinstance(command, (CancelSetUp, RecordEvent)):
                self.check(command)
                self.under_way.append(command)

    def device_under(self, command: Command) -> str:
        """The device that an operation works on, itself or by a volume of it."""
        match command:
            case SetUp(plan=SharedPlan(shared=device)):
                return device.name
            case TearDown(name=name) if name in DEVICES:
                return unique(name)
            case StageDevice(plan=device):
                return device.name
            case UnstageDevice(found=found):
                return found.name
        return ""

    def check(self, command: Command) -> None:
        device = self.device_under(command)
        assert not device or device not in map(self.device_under, self.under_way), "two operations on one device"
        match command:
            case SetUp(uid):
                assert uid in self.desired
                assert device in self.staged, "set up before its device was staged"
            case TearDown(uid):
                assert uid not in self.alive, "unmounted under running containers"
            case StageDevice(plan=plan):
                assert not plan.is_attachable or plan.name in self.api_node.volumes_attached, "staged unattached"
            case UnstageDevice(found=found):
                assert not [u for u, name in self.mounted if unique(name) == found.name], "unstaged while mounted"

    def end(self, *commands: Command, result: Result) -> None:
        self.see(*[self.ended(command, result) for command in commands])

    def ended(self, command: Command, result: Result) -> Event:
        self.under_way.remove(command)
        done = result is Result.DONE
        error = "" if done else "broken"
        self.change_host(command, result)
        match command:
            case SetUp(uid, key):
                return SetUpEnded(uid, key, result, error)
            case TearDown(uid, key):
                return TearDownEnded(uid, key, result, error)
            case StageDevice(plan=plan):
                return DeviceStaged(plan.name, result, error)
            case UnstageDevice(found=found):
                return DeviceUnstaged(found.name, result, error)
            case MakePodDirectory(uid):
                return DirectoryMade(uid, result, error)
            case RemovePodDirectory(uid):
                left = self.found(uid)
                if done and not left:
                    self.directories.discard(uid)
                return DirectoryRemoved(uid, result, error, left if done else ())
            case Scan():
                pods = tuple(FoundPod(uid, self.found(uid)) for uid in sorted(self.directories))
                devices = tuple(FoundDevice(name, "fc", Beneath("/k/plugins", name)) for name in sorted(self.staged))
                return Scanned(pods, devices) if done else ScanFailed(error)
        raise AssertionError(f"{command} has no end")

    def change_host(self, command: Command, result: Result) -> None:
        done = result is Result.DONE
        match command:
            case SetUp(uid, key):
                self.directories.add(uid)
                if done or result is Result.UNCERTAIN:
                    self.mounted.add((uid, key))
                elif result is Result.FAILED and uid not in self.alive:
                    self.mounted.discard((uid, key))
            case TearDown(uid, _, _, name) if done:
                self.mounted.discard((uid, name))
            case StageDevice(plan=plan):
                if done or result is Result.UNCERTAIN:
                    self.staged.add(plan.name)
                elif result is Result.FAILED and plan.name not in self.left:
                    self.staged.discard(plan.name)
                if done:
                    self.left.discard(plan.name)
            case UnstageDevice(found=found) if done:
                self.staged.discard(found.name)
                self.left.discard(found.name)

    def found(self, uid: PodUID) -> tuple[FoundVolume, ...]:
        return tuple(FoundVolume(PLUGIN, name, unique(name)) for u, name in sorted(self.mounted) if u == uid)

    @rule(uid=POD)
    def desire(self, uid: PodUID) -> None:
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
                elif uid not in self.desired and self.sources_ready:
                    self.stages[uid] = Stage.TERMINATING
            case Stage.TERMINATING:
                self.stages[uid] = Stage.TERMINATED
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

    @rule()
    def the_node_is_reported(self) -> None:
        if self.state.mounts.in_use is not None:
            self.api_node = replace(self.api_node, volumes_in_use=frozenset(self.state.mounts.in_use))
            self.see(InputsChanged(self.inputs()))

    @rule()
    def the_controller_attaches_and_detaches(self) -> None:
        """It attaches what is in use, and detaches what is not."""
        wanted, attached = self.api_node.volumes_in_use, frozenset(self.api_node.volumes_attached)
        for name in attached - wanted:
            assert name not in self.staged, "a staged device was detached"
        self.api_node = replace(self.api_node, volumes_attached=dict.fromkeys(wanted, ""))
        self.see(InputsChanged(self.inputs()))

    @rule(seconds=st.sampled_from((0.1, 0.6, 3.0, 130.0)))
    def time_passes(self, seconds: float) -> None:
        self.at += seconds
        self.see(VolumesTimerFired())

    @rule(took_effect=st.booleans())
    def the_agent_is_killed(self, took_effect: bool) -> None:
        for command in self.under_way:
            self.change_host(command, Result.UNCERTAIN if took_effect else Result.TRANSIENT)
        self.under_way.clear()
        self.left = set(self.staged)
        self.state, self.stages, self.sources_ready = State(), {}, False
        self.see(VolumesTimerFired(scan=True))
        self.see(InputsChanged(self.inputs()))

    @invariant()
    def what_runs_is_mounted_on_a_staged_device(self) -> None:
        for uid in self.alive:
            assert {(uid, name) for name in USED[uid]} <= self.mounted
        for _, name in self.mounted:
            assert unique(name) in self.staged

    @invariant()
    def what_is_missing_has_a_reason(self) -> None:
        for uid in self.desired:
            if self.stages.get(uid) in (None, Stage.SYNCING):
                view = self.state.mounts.pods.get(uid)
                assert view is None or view.ready or view.waits

    def teardown(self) -> None:
        """Nothing fails any more: every desired pod gets its volumes. Then all pods go, and nothing is left."""
        self.sources_ready = True
        self.finish()
        for uid in self.desired:
            view = self.state.mounts.pods.get(uid)
            assert view is not None and view.ready and view.waits == ()
        self.desired.clear()
        self.finish()
        assert not self.mounted and not self.staged and not self.directories
        assert not self.state.pods and not self.state.devices
        assert self.state.mounts.in_use == ()
        assert next_timer(self.state, moment(self.at)) is None

    def finish(self) -> None:
        for uid in UIDS * 12:
            if uid not in self.desired or self.stages.get(uid) not in (None, Stage.SYNCING):
                self.desired.discard(uid)
                self.containers_are_seen_to_have_ended(uid)
                self.life_goes_on(uid)
            self.settle()

    def settle(self) -> None:
        self.see(InputsChanged(self.inputs()))
        for _ in range(80):
            if self.under_way:
                self.end(self.under_way[0], result=Result.DONE)
                continue
            before = self.api_node
            self.the_node_is_reported()
            self.the_controller_attaches_and_detaches()
            if self.under_way or self.api_node != before:
                continue
            wake = next_timer(self.state, moment(self.at))
            if wake is None:
                return
            self.at = wake - 1000.0
            self.see(VolumesTimerFired())


TestDevices = DevicesMachine.TestCase
TestDevices.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
