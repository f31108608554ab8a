"""Decisions about volumes, as sequence diagrams: events in, commands and `Mounts` out."""

from __future__ import annotations

import pytest
from act.volumes.samples import NODE, empty_dir, inputs, lifecycles, make_pod, moment, roster, running

from pykubelet.act.volumes.decide import next_wake, step
from pykubelet.act.volumes.kinds.empty_dir import EmptyDirPlan
from pykubelet.act.volumes.model import (
    Command,
    Event,
    FoundPod,
    FoundVolume,
    Looked,
    MakeTree,
    RemoveTree,
    Result,
    Scan,
    ScanFailed,
    Scanned,
    SetUp,
    SetUpEnded,
    State,
    TearDown,
    TearDownEnded,
    Tell,
    TreeMade,
    TreeRemoved,
    Woke,
)
from pykubelet.act.volumes.payload import PayloadPlan
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
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.roster import Roster

PATHS = Paths("/k", "/logs")
UID = PodUID("u1")
DIR = "/k/pods/u1/volumes/kubernetes.io~empty-dir/data"
PRIVATE = "/k/pods/u1/plugins/kubernetes.io~empty-dir/data"
MOUNTED = MountedVolume("data", "emptyDir", DIR, supports_relabel=True)


class Room:
    """The room without its I/O."""

    def __init__(self) -> None:
        self.state = State()
        self.at = 0.0

    def see(self, event: Event, after: float = 0.0) -> list[Command]:
        self.at += after
        self.state, commands = step(self.state, event, moment(self.at), PATHS)
        return commands

    def told(self, event: Event, after: float = 0.0) -> list[str]:
        return [c.happening.message for c in self.see(event, after) if isinstance(c, Tell)]

    def pod(self) -> PodMounts | None:
        return self.state.mounts.pods.get(UID)

    def up(self) -> PodMounts:
        pod = self.pod()
        assert pod is not None
        return pod

    def wake(self) -> float | None:
        at = next_wake(self.state, moment(self.at))
        return None if at is None else at - 1000.0


def labels_volume(name: str = "info") -> Volume:
    item = DownwardAPIVolumeFile(path="labels", fieldRef=ObjectFieldSelector(fieldPath="metadata.labels"))
    return Volume(name=name, downwardAPI=DownwardAPIVolumeSource(items=(item,)))


def mounted_room(pod: object = None) -> Room:
    room = Room()
    room.see(Scanned(()))
    room.see(Looked(inputs(roster(make_pod(empty_dir())))))
    room.see(SetUpEnded(UID, "data", Result.DONE))
    assert room.up().ready
    return room


def test_a_pod_without_volumes_is_ready_in_the_same_step() -> None:
    room = Room()
    assert room.see(Looked(inputs(roster(make_pod())))) == [MakeTree(UID, "changed")]
    assert room.up() == PodMounts(ready=True)


def test_host_path_of_any_type_and_image_are_ready_in_the_same_step() -> None:
    room = Room()
    host = Volume(name="host", hostPath=HostPathVolumeSource(path="/srv"))
    image = Volume(name="files", image=ImageVolumeSource(reference="x:1"))
    room.see(Looked(inputs(roster(make_pod(host, image)))))
    assert room.up().ready
    assert room.up().volumes["host"].host_path == "/srv"
    assert room.up().volumes["files"].kind == "image"
    assert room.up().volumes["files"].host_path == ""


def test_an_empty_dir_is_set_up_and_then_ready() -> None:
    room = Room()
    commands = room.see(Looked(inputs(roster(make_pod(empty_dir(), fs_group=2000)))))
    assert commands == [SetUp(UID, "data", EmptyDirPlan(MOUNTED, PRIVATE, fs_group=2000), "changed")]
    assert not room.up().ready
    assert [(w.what, w.owner, w.subject) for w in room.up().waits] == [("volume", "act/volumes", "data")]
    assert room.see(SetUpEnded(UID, "data", Result.DONE), after=0.001) == []
    assert room.up().ready
    assert room.up().volumes["data"].host_path == DIR
    assert room.up().waits == ()


def test_volumes_no_container_uses_are_not_set_up() -> None:
    room = Room()
    pod = make_pod(empty_dir(), Volume(name="keys", secret=SecretVolumeSource(secretName="s")), unused=("data", "keys"))
    assert room.see(Looked(inputs(roster(pod)))) == [MakeTree(UID, "changed")]
    assert room.up().ready


def test_failures_are_told_and_tried_again_later_and_later() -> None:
    room = Room()
    room.see(Looked(inputs(roster(make_pod(empty_dir())))))
    failed = SetUpEnded(UID, "data", Result.FAILED, "mkdir /k: no space left on device")
    expected = 'MountVolume.SetUp failed for volume "data" : mkdir /k: no space left on device'
    delays = []
    for _ in range(10):
        assert room.told(failed) == [expected]
        wait = room.up().waits[0]
        assert (wait.reason, wait.detail) == ("FailedMount", "mkdir /k: no space left on device")
        assert wait.since == 5000.0
        assert wait.next_at is not None
        delay = wait.next_at - 5000.0 - room.at
        delays.append(delay)
        assert not [c for c in room.see(Woke(), after=delay - 0.1) if isinstance(c, SetUp)]
        again = room.see(Woke(), after=0.11)
        assert [type(c) for c in again if not isinstance(c, (Tell, MakeTree))] == [SetUp]
    assert [round(d, 3) for d in delays] == [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122]
    room.see(SetUpEnded(UID, "data", Result.DONE))
    assert room.up().ready
    assert room.up().waits == ()


def test_a_pod_that_waits_too_long_says_so_like_the_reference() -> None:
    room = Room()
    room.see(Looked(inputs(roster(make_pod(empty_dir("logs"), empty_dir("data"))))))
    assert room.wake() == pytest.approx(123)
    assert room.told(Woke(), after=123) == [
        "Unable to attach or mount volumes: unmounted volumes=[data logs], unattached volumes=[], "
        "failed to process volumes=[]: context deadline exceeded"
    ]
    assert room.wake() == pytest.approx(246)


def test_an_answer_that_never_came_is_uncertain_and_torn_down_like_a_mounted_one() -> None:
    room = Room()
    pod = make_pod(empty_dir())
    room.see(Looked(inputs(roster(pod))))
    room.see(SetUpEnded(UID, "data", Result.UNCERTAIN, "no answer after 30s"))
    assert room.up().waits[0].detail == "no answer after 30s"
    gone = room.see(Looked(inputs(roster(), lifecycles((pod, Stage.TERMINATED)))))
    assert gone == [TearDown(UID, "data", "kubernetes.io~empty-dir", "data", "changed")]


def test_volumes_that_need_the_api_server_are_refused_once_by_kind() -> None:
    room = Room()
    keys = Volume(name="keys", secret=SecretVolumeSource(secretName="s"))
    seen = inputs(roster(make_pod(keys)))
    error = "kube client is not configured"
    assert room.told(Looked(seen)) == [f'MountVolume.SetUp failed for volume "keys" : {error}']
    wait = room.up().waits[0]
    assert (wait.subject, wait.reason, wait.detail, wait.next_at) == ("keys", "FailedMount", error, None)
    assert room.told(Woke(), after=10) == []
    assert room.told(Looked(replace(seen, node=replace(NODE, name="other")))) == []
    assert not room.up().ready


def test_a_stopping_pod_keeps_its_volumes_until_its_containers_have_ended() -> None:
    room = mounted_room()
    pod = make_pod(empty_dir())
    assert room.see(Looked(inputs(roster(), lifecycles((pod, Stage.SYNCING)), running("u1")))) == []
    assert room.see(Looked(inputs(roster(), lifecycles((pod, Stage.TERMINATING)), running("u1")))) == []
    assert room.up().volumes["data"].host_path == DIR
    # The state machine is done before the runtime was looked at again.
    assert room.see(Looked(inputs(roster(), lifecycles((pod, Stage.TERMINATED)), running("u1")))) == []
    ended = room.see(Looked(inputs(roster(), lifecycles((pod, Stage.TERMINATED)))))
    assert ended == [TearDown(UID, "data", "kubernetes.io~empty-dir", "data", "changed")]
    assert room.up().volumes == {}
    room.see(TearDownEnded(UID, "data", Result.DONE))
    assert room.pod() is None
    # Only when nobody knows the pod any more its directory goes.
    assert room.see(Looked(inputs(roster()))) == [RemoveTree(UID, "changed")]
    assert room.see(TreeRemoved(UID, Result.DONE)) == []
    assert room.state.pods == {}


def test_a_finished_pod_that_is_still_desired_keeps_its_directory() -> None:
    room = mounted_room()
    pod = make_pod(empty_dir())
    room.see(Looked(inputs(roster(pod), lifecycles((pod, Stage.TERMINATED)))))
    room.see(TearDownEnded(UID, "data", Result.DONE))
    assert room.see(Looked(inputs(roster(pod), lifecycles((pod, Stage.FINISHED))))) == []
    assert room.pod() is None


def test_nothing_is_given_up_before_all_sources_are_ready_and_the_runtime_was_seen() -> None:
    room = mounted_room()
    assert room.see(Looked(inputs(roster(ready=False)))) == []
    assert room.see(Looked(inputs(roster(), observed=Observed()))) == []
    assert [type(c) for c in room.see(Looked(inputs(roster())))] == [TearDown]


def test_a_rejected_pod_gets_no_volumes() -> None:
    room = Room()
    assert room.see(Looked(inputs(roster(make_pod(empty_dir()), rejected=True)))) == []
    assert room.pod() is None


def test_unmounting_that_fails_is_tried_again_and_visible() -> None:
    room = mounted_room()
    pod = make_pod(empty_dir())
    room.see(Looked(inputs(roster(), lifecycles((pod, Stage.TERMINATED)))))
    assert room.see(TearDownEnded(UID, "data", Result.FAILED, "unmount: device or resource busy")) == []
    assert room.up().waits[0].detail == "unmount: device or resource busy"
    assert room.wake() == pytest.approx(0.5)
    assert [type(c) for c in room.see(Woke(), after=0.5)] == [TearDown]


def test_a_due_retry_that_has_to_wait_for_others_does_not_spin() -> None:
    room = mounted_room()
    pod = make_pod(empty_dir())
    room.see(Looked(inputs(roster(), lifecycles((pod, Stage.TERMINATED)))))
    room.see(TearDownEnded(UID, "data", Result.FAILED, "busy"))
    room.see(Looked(inputs(roster(), lifecycles((pod, Stage.TERMINATED)), running("u1"))))
    assert room.see(Woke(), after=5) == []
    assert room.wake() is None


def test_a_pod_that_returns_while_it_is_given_up_is_set_up_again_afterwards() -> None:
    room = mounted_room()
    pod = make_pod(empty_dir())
    room.see(Looked(inputs(roster())))
    assert room.see(Looked(inputs(roster(pod)))) == []
    assert [type(c) for c in room.see(TearDownEnded(UID, "data", Result.DONE))] == [SetUp]
    room.see(SetUpEnded(UID, "data", Result.DONE))
    assert room.up().ready


def test_nothing_is_set_up_while_the_directory_is_being_removed() -> None:
    room = mounted_room()
    pod = make_pod(empty_dir())
    room.see(Looked(inputs(roster())))
    assert [type(c) for c in room.see(TearDownEnded(UID, "data", Result.DONE))] == [RemoveTree]
    assert room.see(Looked(inputs(roster(pod)))) == []
    assert not room.up().ready
    assert [type(c) for c in room.see(TreeRemoved(UID, Result.DONE))] == [SetUp]


def test_what_is_left_below_a_directory_is_torn_down_before_it_is_removed() -> None:
    room = mounted_room()
    room.see(Looked(inputs(roster())))
    room.see(TearDownEnded(UID, "data", Result.DONE))
    left = (FoundVolume("kubernetes.io~nfs", "share"),)
    commands = room.see(TreeRemoved(UID, Result.DONE, left=left))
    assert commands == [TearDown(UID, "share", "kubernetes.io~nfs", "share", "directory removed")]
    assert room.see(TearDownEnded(UID, "share", Result.DONE)) == []
    assert [type(c) for c in room.see(Woke(), after=0.5)] == [RemoveTree]


def test_making_the_directory_fails() -> None:
    room = Room()
    room.see(Looked(inputs(roster(make_pod()))))
    assert room.told(TreeMade(UID, Result.FAILED, "mkdir /k: read-only file system")) == [
        "error making pod data directories: mkdir /k: read-only file system"
    ]
    assert not room.up().ready
    assert [type(c) for c in room.see(Woke(), after=0.5)] == [MakeTree]
    room.see(TreeMade(UID, Result.DONE))
    assert room.up().ready


def test_labels_that_change_are_written_again_and_the_pod_stays_ready() -> None:
    room = Room()
    first = make_pod(labels_volume(), labels={"a": "1"})
    room.see(Looked(inputs(roster(first))))
    room.see(SetUpEnded(UID, "info", Result.DONE))
    same = make_pod(labels_volume(), labels={"a": "1"})
    assert room.see(Looked(inputs(roster(same)))) == []
    [command] = room.see(Looked(inputs(roster(make_pod(labels_volume(), labels={"a": "2"})))))
    assert isinstance(command, SetUp)
    assert isinstance(command.plan, PayloadPlan)
    assert command.plan.files[0].data == b'a="2"'
    assert room.up().ready
    # It changes again while it is being written.
    assert room.see(Looked(inputs(roster(make_pod(labels_volume(), labels={"a": "3"}))))) == []
    assert [type(c) for c in room.see(SetUpEnded(UID, "info", Result.DONE))] == [SetUp]
    assert room.told(SetUpEnded(UID, "info", Result.FAILED, "disk")) != []
    assert room.up().ready
    assert [type(c) for c in room.see(Woke(), after=0.5)] == [SetUp]
    assert room.see(SetUpEnded(UID, "info", Result.DONE)) == []


def test_memory_volumes_wait_until_the_node_is_known() -> None:
    room = Room()
    pod = make_pod(empty_dir(medium="Memory", size_limit="64Mi"))
    unknown = replace(NODE, allocatable={})
    room.see(Looked(inputs(roster(pod), node=unknown)))
    assert room.up().waits[0].detail == "what the node can allocate is not known yet"
    commands = room.see(Looked(inputs(roster(pod), node=NODE)))
    assert [c.plan for c in commands if isinstance(c, SetUp)] == [
        EmptyDirPlan(MOUNTED, PRIVATE, "Memory", size=64 << 20)
    ]


def test_after_a_restart_what_nobody_knows_is_unmounted_and_removed() -> None:
    room = Room()
    assert room.see(Woke(scan=True)) == [Scan("safety net")]
    kept, lost = FoundPod(UID, (FoundVolume("kubernetes.io~empty-dir", "data"),)), FoundPod(PodUID("u2"))
    live = FoundPod(PodUID("u3"), (FoundVolume("kubernetes.io~empty-dir", "x"),))
    assert not room.state.mounts.reconstructed
    assert room.see(Scanned((kept, live, lost))) == []
    assert room.state.mounts.reconstructed
    pod = make_pod(empty_dir())
    commands = room.see(Looked(inputs(roster(pod, ready=False), observed=running("u1", "u3"))))
    assert [type(c) for c in commands] == [SetUp]
    room.see(SetUpEnded(UID, "data", Result.DONE))
    assert room.up().ready
    assert room.see(Looked(inputs(roster(pod), observed=running("u1", "u3")))) == [RemoveTree(PodUID("u2"), "changed")]
    commands = room.see(Looked(inputs(roster(pod), observed=running("u1"))))
    assert commands == [TearDown(PodUID("u3"), "x", "kubernetes.io~empty-dir", "x", "changed")]


def test_a_disk_that_cannot_be_read_is_looked_at_again() -> None:
    room = Room()
    room.see(Woke(scan=True))
    room.see(ScanFailed("readdir: input/output error"))
    assert not room.state.mounts.reconstructed
    assert room.see(Woke(), after=0.5) == [Scan("failed before")]
    room.see(Scanned(()))
    assert room.state.mounts.reconstructed


def test_host_paths_used_in_part_lose_their_binds() -> None:
    room = Room()
    host = Volume(name="host", hostPath=HostPathVolumeSource(path="/srv"))
    pod = make_pod(host, sub_path="a/b")
    room.see(Looked(inputs(roster(pod))))
    room.see(TreeMade(UID, Result.DONE))
    assert room.see(Looked(inputs(roster(), lifecycles((pod, Stage.TERMINATED))))) == [
        TearDown(UID, "host", "", "host", "changed")
    ]


def test_an_operation_nobody_began_is_a_bug() -> None:
    room = mounted_room()
    with pytest.raises(RuntimeError, match="not begun"):
        room.see(SetUpEnded(UID, "data", Result.DONE))


def test_nothing_is_published_when_nothing_changed() -> None:
    room = mounted_room()
    before = room.state.mounts
    room.see(Looked(inputs(roster(make_pod(empty_dir())))))
    room.see(Woke())
    assert room.state.mounts is before


def test_empty_roster_changes_nothing() -> None:
    room = Room()
    assert room.see(Looked(inputs(Roster()))) == []
    assert room.state.mounts.pods == {}
