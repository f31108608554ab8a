"""Decisions about volumes, as sequence diagrams: events in, commands and `Mounts` out."""

from __future__ import annotations

import pytest
from provide.volumes.samples import NODE, empty_dir, inputs, lifecycles, make_pod, moment, roster, running

from pykubelet.base.api.core import (
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    HostPathVolumeSource,
    ImageVolumeSource,
    ObjectFieldSelector,
    SecretVolumeSource,
    Volume,
)
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.mounts import MountedVolume, PodMounts
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.waits import Owner
from pykubelet.provide.volumes.decide import next_timer, step
from pykubelet.provide.volumes.kinds.empty_dir import EmptyDirPlan
from pykubelet.provide.volumes.model import (
    CancelSetUp,
    Command,
    DirectoryMade,
    DirectoryRemoved,
    Event,
    FoundPod,
    FoundVolume,
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
from pykubelet.provide.volumes.payloads.payload import PayloadPlan

PATHS = Paths("/k", "/logs")
UID = PodUID("u1")
DIR = Beneath("/k/pods", "u1/volumes/kubernetes.io~empty-dir/data")
PRIVATE = Beneath("/k/pods", "u1/plugins/kubernetes.io~empty-dir/data")
MOUNTED = MountedVolume("data", "emptyDir", DIR, supports_relabel=True)


class Driver:
    """The decisions, without I/O."""

    def __init__(self) -> None:
        self.state = State()
        self.at = 0.0

    def see(self, event: Event, after: float = 0.0) -> list[Command]:
        self.at += after
        self.state, commands = step(self.state, event, moment(self.at), PATHS)
        return commands

    def messages(self, event: Event, after: float = 0.0) -> list[str]:
        return [c.kube_event.message for c in self.see(event, after) if isinstance(c, RecordEvent)]

    def pod(self) -> PodMounts | None:
        return self.state.mounts.pods.get(UID)

    def up(self) -> PodMounts:
        pod = self.pod()
        assert pod is not None
        return pod

    def wake(self) -> float | None:
        at = next_timer(self.state, moment(self.at))
        return None if at is None else at - 1000.0


def labels_volume(name: str = "info") -> Volume:
    item = DownwardAPIVolumeFile(path="labels", fieldRef=ObjectFieldSelector(fieldPath="metadata.labels"))
    return Volume(name=name, downwardAPI=DownwardAPIVolumeSource(items=(item,)))


def mounted_driver(pod: object = None) -> Driver:
    driver = Driver()
    driver.see(Scanned(()))
    driver.see(InputsChanged(inputs(roster(make_pod(empty_dir())))))
    driver.see(SetUpEnded(UID, "data", Result.DONE))
    assert driver.up().ready
    return driver


def test_a_pod_without_volumes_is_ready_in_the_same_step() -> None:
    driver = Driver()
    assert driver.see(InputsChanged(inputs(roster(make_pod())))) == [MakePodDirectory(UID, "changed")]
    assert driver.up() == PodMounts(ready=True)


def test_host_path_of_any_type_and_image_are_ready_in_the_same_step() -> None:
    driver = Driver()
    host = Volume(name="host", hostPath=HostPathVolumeSource(path="/srv"))
    image = Volume(name="files", image=ImageVolumeSource(reference="x:1"))
    driver.see(InputsChanged(inputs(roster(make_pod(host, image)))))
    assert driver.up().ready
    assert driver.up().volumes["host"].host_path == "/srv"
    assert driver.up().volumes["files"].kind == "image"
    assert driver.up().volumes["files"].host_path == ""


def test_an_empty_dir_is_set_up_and_then_ready() -> None:
    driver = Driver()
    commands = driver.see(InputsChanged(inputs(roster(make_pod(empty_dir(), fs_group=2000)))))
    assert commands == [SetUp(UID, "data", EmptyDirPlan(MOUNTED, DIR, PRIVATE, fs_group=2000), "changed")]
    assert not driver.up().ready
    assert [(w.what, w.owner, w.subject) for w in driver.up().waits] == [("volume", Owner.VOLUME_MANAGER, "data")]
    assert driver.see(SetUpEnded(UID, "data", Result.DONE), after=0.001) == []
    assert driver.up().ready
    assert driver.up().volumes["data"].host_path == DIR
    assert driver.up().waits == ()


def test_volumes_no_container_uses_are_not_set_up() -> None:
    driver = Driver()
    pod = make_pod(empty_dir(), Volume(name="keys", secret=SecretVolumeSource(secretName="s")), unused=("data", "keys"))
    assert driver.see(InputsChanged(inputs(roster(pod)))) == [MakePodDirectory(UID, "changed")]
    assert driver.up().ready


def test_failures_are_reported_and_tried_again_later_and_later() -> None:
    driver = Driver()
    driver.see(InputsChanged(inputs(roster(make_pod(empty_dir())))))
    failed = SetUpEnded(UID, "data", Result.FAILED, "mkdir /k: no space left on device")
    expected = 'MountVolume.SetUp failed for volume "data" : mkdir /k: no space left on device'
    delays = []
    for _ in range(10):
        assert driver.messages(failed) == [expected]
        wait = driver.up().waits[0]
        assert (wait.reason, wait.detail) == ("FailedMount", "mkdir /k: no space left on device")
        assert wait.since == 5000.0
        assert wait.next_at is not None
        delay = wait.next_at - 5000.0 - driver.at
        delays.append(delay)
        assert not [c for c in driver.see(VolumesTimerFired(), after=delay - 0.1) if isinstance(c, SetUp)]
        again = driver.see(VolumesTimerFired(), after=0.11)
        assert [type(c) for c in again if not isinstance(c, (RecordEvent, MakePodDirectory))] == [SetUp]
    assert [round(d, 3) for d in delays] == [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122]
    driver.see(SetUpEnded(UID, "data", Result.DONE))
    assert driver.up().ready
    assert driver.up().waits == ()


def test_a_wait_that_is_merely_long_records_no_event() -> None:
    driver = Driver()
    driver.see(InputsChanged(inputs(roster(make_pod(empty_dir("logs"), empty_dir("data"))))))
    assert driver.wake() == pytest.approx(123)
    assert driver.see(VolumesTimerFired(), after=123) == []
    assert driver.wake() == pytest.approx(246)


def test_an_answer_that_never_came_is_uncertain_and_torn_down_like_a_mounted_one() -> None:
    driver = Driver()
    pod = make_pod(empty_dir())
    driver.see(InputsChanged(inputs(roster(pod))))
    driver.see(SetUpEnded(UID, "data", Result.UNCERTAIN, "no answer after 30s"))
    assert driver.up().waits[0].detail == "no answer after 30s"
    gone = driver.see(InputsChanged(inputs(roster(), lifecycles((pod, Stage.TERMINATED)))))
    assert gone == [TearDown(UID, "data", "kubernetes.io~empty-dir", "data", "changed")]


def test_a_set_up_is_abandoned_when_its_pod_has_ended() -> None:
    driver, pod = Driver(), make_pod(empty_dir())
    driver.see(InputsChanged(inputs(roster(pod))))
    terminating = inputs(roster(pod), lifecycles((pod, Stage.TERMINATING)))
    assert driver.see(InputsChanged(terminating)) == []
    ended = inputs(roster(), lifecycles((pod, Stage.TERMINATED)))
    assert driver.see(InputsChanged(ended)) == [CancelSetUp(UID, "data")]
    assert driver.see(VolumesTimerFired(), after=10.0) == []
    commands = driver.see(SetUpEnded(UID, "data", Result.UNCERTAIN, "it was abandoned"))
    assert commands == [TearDown(UID, "data", "kubernetes.io~empty-dir", "data", "set up")], "and no Event"


def test_volumes_that_need_the_api_server_are_refused_once_by_kind() -> None:
    driver = Driver()
    keys = Volume(name="keys", secret=SecretVolumeSource(secretName="s"))
    seen = inputs(roster(make_pod(keys)))
    error = "kube client is not configured"
    assert driver.messages(InputsChanged(seen)) == [f'MountVolume.SetUp failed for volume "keys" : {error}']
    wait = driver.up().waits[0]
    assert (wait.subject, wait.reason, wait.detail, wait.next_at) == ("keys", "FailedMount", error, None)
    assert driver.messages(VolumesTimerFired(), after=10) == []
    assert driver.messages(InputsChanged(replace(seen, node=replace(NODE, name="other")))) == []
    assert not driver.up().ready


def test_a_stopping_pod_keeps_its_volumes_until_its_containers_have_ended() -> None:
    driver = mounted_driver()
    pod = make_pod(empty_dir())
    assert driver.see(InputsChanged(inputs(roster(), lifecycles((pod, Stage.SYNCING)), running("u1")))) == []
    assert driver.see(InputsChanged(inputs(roster(), lifecycles((pod, Stage.TERMINATING)), running("u1")))) == []
    assert driver.up().volumes["data"].host_path == DIR
    # The state machine is done before the runtime's pods are listed again.
    assert driver.see(InputsChanged(inputs(roster(), lifecycles((pod, Stage.TERMINATED)), running("u1")))) == []
    ended = driver.see(InputsChanged(inputs(roster(), lifecycles((pod, Stage.TERMINATED)))))
    assert ended == [TearDown(UID, "data", "kubernetes.io~empty-dir", "data", "changed")]
    assert driver.up().volumes == {}
    driver.see(TearDownEnded(UID, "data", Result.DONE))
    assert driver.pod() is None
    # The directory of an unknown pod is removed, no other.
    assert driver.see(InputsChanged(inputs(roster()))) == [RemovePodDirectory(UID, "changed")]
    assert driver.see(DirectoryRemoved(UID, Result.DONE)) == []
    assert driver.state.pods == {}


def test_a_finished_pod_that_is_still_desired_keeps_its_directory() -> None:
    driver = mounted_driver()
    pod = make_pod(empty_dir())
    driver.see(InputsChanged(inputs(roster(pod), lifecycles((pod, Stage.TERMINATED)))))
    driver.see(TearDownEnded(UID, "data", Result.DONE))
    assert driver.see(InputsChanged(inputs(roster(pod), lifecycles((pod, Stage.FINISHED))))) == []
    assert driver.pod() is None


def test_nothing_is_given_up_before_all_sources_are_ready_and_the_runtime_was_seen() -> None:
    driver = mounted_driver()
    assert driver.see(InputsChanged(inputs(roster(ready=False)))) == []
    assert driver.see(InputsChanged(inputs(roster(), observed=Observed()))) == []
    assert [type(c) for c in driver.see(InputsChanged(inputs(roster())))] == [TearDown]


def test_a_rejected_pod_gets_no_volumes() -> None:
    driver = Driver()
    assert driver.see(InputsChanged(inputs(roster(make_pod(empty_dir()), rejected=True)))) == []
    assert driver.pod() is None


def test_unmounting_that_fails_is_tried_again_and_visible() -> None:
    driver = mounted_driver()
    pod = make_pod(empty_dir())
    driver.see(InputsChanged(inputs(roster(), lifecycles((pod, Stage.TERMINATED)))))
    assert driver.see(TearDownEnded(UID, "data", Result.FAILED, "unmount: device or resource busy")) == []
    assert driver.up().waits[0].detail == "unmount: device or resource busy"
    assert driver.wake() == pytest.approx(0.5)
    assert [type(c) for c in driver.see(VolumesTimerFired(), after=0.5)] == [TearDown]


def test_a_due_retry_that_has_to_wait_for_others_does_not_spin() -> None:
    driver = mounted_driver()
    pod = make_pod(empty_dir())
    driver.see(InputsChanged(inputs(roster(), lifecycles((pod, Stage.TERMINATED)))))
    driver.see(TearDownEnded(UID, "data", Result.FAILED, "busy"))
    driver.see(InputsChanged(inputs(roster(), lifecycles((pod, Stage.TERMINATED)), running("u1"))))
    assert driver.see(VolumesTimerFired(), after=5) == []
    assert driver.wake() is None


def test_a_pod_that_returns_while_it_is_given_up_is_set_up_again_afterwards() -> None:
    driver = mounted_driver()
    pod = make_pod(empty_dir())
    driver.see(InputsChanged(inputs(roster())))
    assert driver.see(InputsChanged(inputs(roster(pod)))) == []
    assert [type(c) for c in driver.see(TearDownEnded(UID, "data", Result.DONE))] == [SetUp]
    driver.see(SetUpEnded(UID, "data", Result.DONE))
    assert driver.up().ready


def test_nothing_is_set_up_while_the_directory_is_being_removed() -> None:
    driver = mounted_driver()
    pod = make_pod(empty_dir())
    driver.see(InputsChanged(inputs(roster())))
    assert [type(c) for c in driver.see(TearDownEnded(UID, "data", Result.DONE))] == [RemovePodDirectory]
    assert driver.see(InputsChanged(inputs(roster(pod)))) == []
    assert not driver.up().ready
    assert [type(c) for c in driver.see(DirectoryRemoved(UID, Result.DONE))] == [SetUp]


def test_what_is_left_below_a_directory_is_torn_down_before_it_is_removed() -> None:
    driver = mounted_driver()
    driver.see(InputsChanged(inputs(roster())))
    driver.see(TearDownEnded(UID, "data", Result.DONE))
    left = (FoundVolume("kubernetes.io~nfs", "share"),)
    commands = driver.see(DirectoryRemoved(UID, Result.DONE, left=left))
    assert commands == [TearDown(UID, "share", "kubernetes.io~nfs", "share", "directory removed")]
    assert driver.see(TearDownEnded(UID, "share", Result.DONE)) == []
    assert [type(c) for c in driver.see(VolumesTimerFired(), after=0.5)] == [RemovePodDirectory]


def test_making_the_directory_fails() -> None:
    driver = Driver()
    driver.see(InputsChanged(inputs(roster(make_pod()))))
    assert driver.messages(DirectoryMade(UID, Result.FAILED, "mkdir /k: read-only file system")) == [
        "error making pod data directories: mkdir /k: read-only file system"
    ]
    assert not driver.up().ready
    assert [type(c) for c in driver.see(VolumesTimerFired(), after=0.5)] == [MakePodDirectory]
    driver.see(DirectoryMade(UID, Result.DONE))
    assert driver.up().ready


def test_labels_that_change_are_written_again_and_the_pod_stays_ready() -> None:
    driver = Driver()
    first = make_pod(labels_volume(), labels={"a": "1"})
    driver.see(InputsChanged(inputs(roster(first))))
    driver.see(SetUpEnded(UID, "info", Result.DONE))
    same = make_pod(labels_volume(), labels={"a": "1"})
    assert driver.see(InputsChanged(inputs(roster(same)))) == []
    [command] = driver.see(InputsChanged(inputs(roster(make_pod(labels_volume(), labels={"a": "2"})))))
    assert isinstance(command, SetUp)
    assert isinstance(command.plan, PayloadPlan)
    assert command.plan.files[0].content == b'a="2"'
    assert driver.up().ready
    # It changes again while it is being written.
    assert driver.see(InputsChanged(inputs(roster(make_pod(labels_volume(), labels={"a": "3"}))))) == []
    assert [type(c) for c in driver.see(SetUpEnded(UID, "info", Result.DONE))] == [SetUp]
    assert driver.messages(SetUpEnded(UID, "info", Result.FAILED, "disk")) != []
    assert driver.up().ready
    assert [type(c) for c in driver.see(VolumesTimerFired(), after=0.5)] == [SetUp]
    assert driver.see(SetUpEnded(UID, "info", Result.DONE)) == []


def test_memory_volumes_wait_until_the_node_is_known() -> None:
    driver = Driver()
    pod = make_pod(empty_dir(medium="Memory", size_limit="64Mi"))
    unknown = replace(NODE, allocatable={})
    driver.see(InputsChanged(inputs(roster(pod), node=unknown)))
    assert driver.up().waits[0].detail == "what the node can allocate is not known yet"
    commands = driver.see(InputsChanged(inputs(roster(pod), node=NODE)))
    assert [c.plan for c in commands if isinstance(c, SetUp)] == [
        EmptyDirPlan(MOUNTED, DIR, PRIVATE, "Memory", size=64 << 20)
    ]


def test_after_a_restart_what_is_unknown_is_unmounted_and_removed() -> None:
    driver = Driver()
    assert driver.see(VolumesTimerFired(scan=True)) == [Scan("safety net")]
    kept, lost = FoundPod(UID, (FoundVolume("kubernetes.io~empty-dir", "data"),)), FoundPod(PodUID("u2"))
    live = FoundPod(PodUID("u3"), (FoundVolume("kubernetes.io~empty-dir", "x"),))
    assert [driver.state.mounts.reconstructed] == [False]
    assert driver.see(Scanned((kept, live, lost))) == []
    assert driver.state.mounts.reconstructed
    pod = make_pod(empty_dir())
    commands = driver.see(InputsChanged(inputs(roster(pod, ready=False), observed=running("u1", "u3"))))
    assert [type(c) for c in commands] == [SetUp]
    driver.see(SetUpEnded(UID, "data", Result.DONE))
    assert driver.up().ready
    assert driver.see(InputsChanged(inputs(roster(pod), observed=running("u1", "u3")))) == [
        RemovePodDirectory(PodUID("u2"), "changed")
    ]
    commands = driver.see(InputsChanged(inputs(roster(pod), observed=running("u1"))))
    assert commands == [TearDown(PodUID("u3"), "x", "kubernetes.io~empty-dir", "x", "changed")]


def test_a_volume_that_is_not_planned_yet_is_the_one_that_a_scan_finds() -> None:
    """Otherwise one directory would have two records, and two operations at once."""
    driver = Driver()
    driver.see(VolumesTimerFired(scan=True))
    pod = make_pod(empty_dir(medium="Memory"))
    driver.see(InputsChanged(inputs(roster(pod), node=replace(NODE, allocatable={}))))
    driver.see(InputsChanged(inputs(roster(), lifecycles((pod, Stage.TERMINATING)))))
    driver.see(Scanned((FoundPod(UID, (FoundVolume("kubernetes.io~empty-dir", "data"),)),)))
    assert list(driver.state.pods[UID].volumes) == ["data"]


def test_a_scan_that_ends_while_a_directory_is_removed_begins_no_second_operation() -> None:
    driver = Driver()
    driver.see(VolumesTimerFired(scan=True))
    driver.see(InputsChanged(inputs(roster(make_pod()))))
    driver.see(DirectoryMade(UID, Result.DONE))
    assert driver.see(InputsChanged(inputs(roster()))) == [RemovePodDirectory(UID, "changed")]
    left = (FoundVolume("kubernetes.io~empty-dir", "data"),)
    assert driver.see(Scanned((FoundPod(UID, left),))) == []
    assert [type(c) for c in driver.see(DirectoryRemoved(UID, Result.DONE, left=left))] == [TearDown]


def test_a_disk_that_cannot_be_read_is_scanned_again() -> None:
    driver = Driver()
    driver.see(VolumesTimerFired(scan=True))
    driver.see(ScanFailed("readdir: input/output error"))
    assert not driver.state.mounts.reconstructed
    assert driver.see(VolumesTimerFired(), after=0.5) == [Scan("failed before")]
    driver.see(Scanned(()))
    assert driver.state.mounts.reconstructed


def test_host_paths_used_in_part_lose_their_binds() -> None:
    driver = Driver()
    host = Volume(name="host", hostPath=HostPathVolumeSource(path="/srv"))
    pod = make_pod(host, sub_path="a/b")
    driver.see(InputsChanged(inputs(roster(pod))))
    driver.see(DirectoryMade(UID, Result.DONE))
    assert driver.see(InputsChanged(inputs(roster(), lifecycles((pod, Stage.TERMINATED))))) == [
        TearDown(UID, "host", "", "host", "changed")
    ]


def test_the_end_of_an_operation_that_was_not_begun_is_a_bug() -> None:
    driver = mounted_driver()
    with pytest.raises(RuntimeError, match="not begun"):
        driver.see(SetUpEnded(UID, "data", Result.DONE))


def test_nothing_is_published_when_nothing_changed() -> None:
    driver = mounted_driver()
    before = driver.state.mounts
    driver.see(InputsChanged(inputs(roster(make_pod(empty_dir())))))
    driver.see(VolumesTimerFired())
    assert driver.state.mounts is before


def test_empty_roster_changes_nothing() -> None:
    driver = Driver()
    assert driver.see(InputsChanged(inputs(Roster()))) == []
    assert driver.state.mounts.pods == {}
