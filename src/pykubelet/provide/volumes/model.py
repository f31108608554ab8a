"""The values of this package: states of volumes, the events that change them and the commands that follow.

Contains no decisions and no I/O. Times are monotonic seconds unless another unit is given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.content import Content, ContentKey, ObjectKey
from pykubelet.base.model.extensions import ExtensionStates
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.mounts import AttachLimit, MountedVolume, Mounts
from pykubelet.base.model.node import ApiNode, NodeView
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.selinux import SelinuxHost
from pykubelet.base.model.waits import Wait
from pykubelet.provide.volumes.expansion import Expansion
from pykubelet.provide.volumes.kind import (
    MOUNT_DEVICE,
    SET_UP,
    DevicePlan,
    FoundDevice,
    NodeVolumes,
    Note,
    Plan,
    StillAtWork,
    VolumePlan,
)


class MountPhase(StrEnum):
    """The phase of a mount. new: not tried. failed: set-up failed and may have left parts. uncertain: it may or may not be mounted."""

    NEW = "new"
    SETTING_UP = "setting up"
    FAILED = "failed"
    MOUNTED = "mounted"
    REFRESHING = "refreshing"
    EXPANDING = "expanding"
    UNCERTAIN = "uncertain"
    TEARING_DOWN = "tearing down"


BUSY = frozenset({MountPhase.SETTING_UP, MountPhase.REFRESHING, MountPhase.EXPANDING, MountPhase.TEARING_DOWN})


#: The phases in which nothing of the volume can be mounted.
UNUSED = frozenset({MountPhase.NEW, MountPhase.FAILED})


class VolumeFailure(Value):
    """The last failure. `since`: the first failure in a row (wall). `retry_at`, `retry_wall`: the next try (monotonic, wall).

    `delay_s`: the back-off that led to `retry_at`. `retry_at` None: only a change of the pod, the node or content leads to another try.
    `extension`: it is no failure, but this extension is still at it; `error` states what it waits for.
    """

    error: str
    since: float
    delay_s: float = 0.0
    retry_at: float | None = None
    retry_wall: float | None = None
    extension: str = ""


class VolumeState(Value):
    """One volume of one pod. `plugin`: its directory below `volumes`, "" when it has none. `since`: wall seconds.

    `name`: that of its directory. It is the name of the PersistentVolume if the volume claims one and that is known. `replan_needed`:
    something that its plan depends on may have changed since the running operation was planned. `again_at`: when a mounted volume is
    set up again (monotonic). `before`: the phase before the operation that runs. `device`: the unique name of its device, "" if it has
    none. `is_claimed`: it is known to be a persistent volume. `is_block`: it is a block device without a file system. `size`: the bytes
    of a persistent volume that counts as expanded so far, 0 if that is not known. `size_checked_for`: the versions of claim and
    PersistentVolume that an expansion was last decided from. `expand_failure`: of the last expansion while mounted.
    `left_by_previous_run`: an earlier agent has left it, and it was not set up since, so that even after a final error it may be
    mounted. `is_cancelled`: the set-up that runs is to end early. `planning`: its plan is being made.
    """

    name: str
    phase: MountPhase
    since: float
    plugin: str = ""
    plan: Plan | None = None
    mounted: MountedVolume | None = None
    failure: VolumeFailure | None = None
    replan_needed: bool = False
    again_at: float | None = None
    before: MountPhase = MountPhase.NEW
    device: str = ""
    is_claimed: bool = False
    is_block: bool = False
    size: int = 0
    size_checked_for: tuple[str, str] = ("", "")
    expand_failure: VolumeFailure | None = None
    left_by_previous_run: bool = False
    is_cancelled: bool = False
    planning: PlanVolume | None = None


class OfVolume(Value):
    """The base class of commands and of their results that concern one volume. `key`: of `PodVolumes.volumes`."""

    uid: PodUID
    key: str


class PlanVolume(OfVolume):
    """Make the plan of a volume of many parts, in a thread, from the `inputs` of this step."""

    pod: Pod
    volume: Volume
    inputs: Inputs


class DevicePhase(StrEnum):
    """The phase of a device. wanted: it is not staged. uncertain: it may or may not be staged."""

    WANTED = "wanted"
    STAGING = "staging"
    STAGED = "staged"
    UNCERTAIN = "uncertain"
    UNSTAGING = "unstaging"


class DeviceState(Value):
    """A device on this node, for all pods that use it. `since`: wall seconds. `plan`: None for one that is only known from disk.

    `holders`: pods that had a volume with this device on disk when the agent was started. `before`: as in `VolumeState`.
    `last`: the operation that was begun last; `failure` is of that. `left_by_previous_run`: an earlier agent has left it, and it was not
    staged since, so that even after a final error it may be staged.
    `context`: the SELinux context that it may be staged with; None: not known.
    """

    found: FoundDevice
    phase: DevicePhase
    since: float
    plan: DevicePlan | None = None
    failure: VolumeFailure | None = None
    holders: frozenset[PodUID] = frozenset()
    before: DevicePhase = DevicePhase.WANTED
    last: DevicePhase | None = None
    left_by_previous_run: bool = False
    context: str | None = None

    def has_other_context(self, plan: DevicePlan) -> bool:
        """Whether the device may be staged with another SELinux context than `plan` states."""
        return self.phase is not DevicePhase.WANTED and self.context is not None and self.context != plan.context


class PodDirectory(StrEnum):
    """The state of the pod's directory: unknown (the first operation makes it), being made, made, being removed."""

    UNKNOWN = "unknown"
    MAKING = "making"
    MADE = "made"
    REMOVING = "removing"


class VolumeNeed(StrEnum):
    """needed: set up missing volumes. kept: change nothing. released: unmount all. orphaned: also remove the pod's directory."""

    NEEDED = "needed"
    KEPT = "kept"
    RELEASED = "released"
    ORPHANED = "orphaned"


class Pass(Value):
    """A decision about several volumes that takes more than one step. `keys`: the volumes that are still to be looked at.

    `afresh`: something that their plans depend on may have changed.
    """

    keys: tuple[str, ...] = ()
    cause: str = ""
    afresh: bool = False


#: Where a volume is on disk: its name, plugin, and whether it is a block device.
Identity = tuple[str, str, bool]


class PodVolumes(Value):
    """All volumes of one pod. `pod` is None when it is only known from the disk. `remind_at`: when the reason
    of its wait is looked for next.

    `used`: the volumes that its containers use, by name. `claims`: the claims that these refer to. `keys`: the keys of `Content` that
    those that were looked at are made from, and for each their names (an ordered set). `busy`: the volumes on which an operation
    runs. `strays`: the volumes that were found on disk and are not known to be one of `used`. `todo`: the volumes that are still to be
    looked at. `at_limit`: why the pod cannot start here.
    """

    uid: PodUID
    need: VolumeNeed
    pod: Pod | None = None
    ref: PodRef | None = None
    volumes: Mapping[str, VolumeState] = field(default_factory=dict)
    directory: PodDirectory = PodDirectory.UNKNOWN
    directory_failure: VolumeFailure | None = None
    remind_at: float | None = None
    used: Mapping[str, Volume] = field(default_factory=dict)
    claims: frozenset[ObjectKey] = frozenset()
    keys: Mapping[ContentKey, Mapping[str, None]] = field(default_factory=dict)
    busy: Collection[str] = frozenset()
    strays: Mapping[Identity, str] = field(default_factory=dict)
    todo: Pass = Pass()
    at_limit: AttachLimit | None = None


class VolumeView(Value):
    """What is published of one volume. `times`: when it is looked at again (monotonic).

    `is_ready`: a container uses it, and it is mounted. `is_mounting`: a container uses it, and the sandbox need not wait for it.
    `is_held`: it has a directory below the pod's own or a device, or an operation runs on it.
    """

    waits: tuple[Wait, ...]
    mounted: MountedVolume | None
    times: tuple[float, ...]
    is_ready: bool
    is_mounting: bool
    is_held: bool


class PodVolumesView(Value):
    """What is published of a pod's volumes, with the numbers of those for which `is_ready`, `is_mounting` and `is_held` are true.

    `times`: those of the volumes that have any.
    """

    volumes: Mapping[str, VolumeView] = field(default_factory=dict)
    times: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ready: int = 0
    mounting: int = 0
    held: int = 0


#: A volume of a pod: the pod, and the key of the volume.
Place = tuple[PodUID, str]


class Users(Value):
    """Indices over the volumes of all pods, in which decisions find what other volumes concern.

    `by_device`: by the name of the volume's device. `by_directory`: those that may be persistent, by plugin and name. `waiting`: those
    that were refused because another pod has the volume. The values of inner mappings mean nothing: these are ordered sets.
    """

    by_device: Mapping[str, Mapping[Place, None]] = field(default_factory=dict)
    by_directory: Mapping[tuple[str, str], Mapping[Place, None]] = field(default_factory=dict)
    waiting: Mapping[Place, None] = field(default_factory=dict)


class Inputs(Value):
    """The snapshots of other components, read at one time. `selinux`, `by_controller` (see `NodeVolumes`) and `resizes_memory` (the gate
    InPlacePodVerticalScalingMemoryBackedVolumes) never change."""

    roster: Roster = field(default_factory=Roster)
    lifecycles: Lifecycles = field(default_factory=Lifecycles)
    observed: Observed = field(default_factory=Observed)
    node: NodeView = field(default_factory=lambda: NodeView("", ""))
    content: Content = field(default_factory=Content)
    plugins: Plugins = field(default_factory=Plugins)
    api_node: ApiNode = field(default_factory=ApiNode)
    selinux: SelinuxHost = SelinuxHost()
    by_controller: bool = True
    resizes_memory: bool = False
    extensions: ExtensionStates = ExtensionStates()

    @property
    def node_volumes(self) -> NodeVolumes:
        """The volumes in the status of the API server's Node."""
        return NodeVolumes(self.api_node.volumes_in_use, self.api_node.volumes_attached, self.by_controller)

    def is_same_as(self, other: Inputs) -> bool:
        """Whether no snapshot has changed."""
        return all(getattr(self, name) is getattr(other, name) for name in self.__struct_fields__)


class State(Value):
    """The state of the volume manager. `devices`: by unique name. `views`: what is published of each pod.

    `timed`: for each pod that waits for times, these times in monotonic seconds. `unfinished`: the pods of which volumes are still
    to be looked at, without waiting for anything.
    """

    pods: Mapping[PodUID, PodVolumes] = field(default_factory=dict)
    devices: Mapping[str, DeviceState] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=Inputs)
    mounts: Mounts = field(default_factory=Mounts)
    scan: VolumeFailure | None = None
    scanning: bool = False
    timed: Mapping[PodUID, tuple[float, ...]] = field(default_factory=dict)
    views: Mapping[PodUID, PodVolumesView] = field(default_factory=dict)
    users: Users = Users()
    unfinished: tuple[PodUID, ...] = ()


# Events


class InputsChanged(Value):
    """One of the snapshots has changed."""

    inputs: Inputs


class Result(StrEnum):
    """How an operation ended. uncertain: it missed its deadline and may still run. transient: nothing was tried."""

    DONE = "done"
    FAILED = "failed"
    TRANSIENT = "transient"
    UNCERTAIN = "uncertain"


class SetUpEnded(OfVolume):
    """A set-up or refresh has ended. `step`: the step that failed. `size`: the bytes that the volume was expanded to, 0: not expanded.

    `pending`: it has not failed, but goes on in an extension.
    """

    result: Result
    error: str = ""
    step: str = SET_UP
    size: int = 0
    pending: StillAtWork | None = None


class VolumePlanned(OfVolume):
    """The plan that `request` asked for was made. None: it could not be made, and is tried again."""

    request: PlanVolume
    plan: Plan | None


class VolumeExpanded(OfVolume):
    """The expansion of a mounted volume has ended. `size`: as in `SetUpEnded`."""

    result: Result
    size: int = 0
    error: str = ""


class Noted(Value):
    """Work on a volume of the pod asks for an Event."""

    uid: PodUID
    note: Note


class TearDownEnded(OfVolume):
    """A tear-down has ended."""

    result: Result
    error: str = ""


class DirectoryMade(Value):
    """Making the pod's directory has ended."""

    uid: PodUID
    result: Result
    error: str = ""


class FoundVolume(Value):
    """A volume on disk: its `plugin` directory ("" when only sub-path binds are left) and its name. Other fields as in `VolumeState`."""

    plugin: str
    name: str
    device: str = ""
    is_block: bool = False


class FoundPod(Value):
    """A pod with a directory on disk, and the volumes in it."""

    uid: PodUID
    volumes: tuple[FoundVolume, ...] = ()


class DirectoryRemoved(Value):
    """Removing the pod's directory has ended. `left`: volumes that were still in it; then nothing was removed."""

    uid: PodUID
    result: Result
    error: str = ""
    left: tuple[FoundVolume, ...] = ()


class Scanned(Value):
    """The whole `pods` directory was read, and the directories of devices."""

    found: tuple[FoundPod, ...]
    devices: tuple[FoundDevice, ...] = ()


class DeviceStaged(Value):
    """Staging the device `name` has ended. `step`: the step that failed. `volume_reason`: as in `VolumesError`."""

    name: str
    result: Result
    error: str = ""
    step: str = MOUNT_DEVICE
    volume_reason: str = ""


class DeviceUnstaged(Value):
    """Unstaging the device `name` has ended."""

    name: str
    result: Result
    error: str = ""


class ScanFailed(Value):
    """The `pods` directory could not be read."""

    error: str


class VolumesTimerFired(Value):
    """A time returned by `next_timer` has come. `scan`: the periodic scan of the disk is due."""

    scan: bool = False


class Resumed(Value):
    """Other tasks of the agent have gone on, so that the volumes of `State.unfinished` may be looked at."""


class AttachmentsRead(Value):
    """The VolumeAttachments of volumes that a pod waits for were read. `at_limit`: the CSI drivers that can attach no more here."""

    uid: PodUID
    at_limit: tuple[str, ...] = ()


Event = (
    InputsChanged
    | AttachmentsRead
    | SetUpEnded
    | VolumePlanned
    | VolumeExpanded
    | TearDownEnded
    | DeviceStaged
    | DeviceUnstaged
    | DirectoryMade
    | DirectoryRemoved
    | Scanned
    | ScanFailed
    | VolumesTimerFired
    | Resumed
    | Noted
)


# Commands


class SetUp(OfVolume):
    """Set the volume up as planned. Does no harm to a volume that is already set up.

    `expansion`: the volume is expanded then.
    """

    plan: VolumePlan
    cause: str
    expansion: Expansion | None = None


class ExpandVolume(OfVolume):
    """Expand a mounted volume."""

    plan: VolumePlan
    expansion: Expansion
    cause: str


class TearDown(OfVolume):
    """Unmount the volume's sub-path binds, then the volume, and remove its directories. `is_block`: it is a block device."""

    plugin: str
    name: str
    cause: str
    is_block: bool = False


class StageDevice(Value):
    """Carry out the plan of a device. Does no harm to a device that is already staged."""

    plan: DevicePlan
    cause: str


class UnstageDevice(Value):
    """Undo what staging has done. A device that is not staged is no error."""

    found: FoundDevice
    cause: str


class MakePodDirectory(Value):
    """Make the pod's directory."""

    uid: PodUID
    cause: str


class RemovePodDirectory(Value):
    """Remove the pod's directory, unless volumes are left in it."""

    uid: PodUID
    cause: str


class Scan(Value):
    """Read the `pods` directory."""

    cause: str


class CancelSetUp(OfVolume):
    """Let the set-up of a volume that is under way end early, as uncertain, because its pod has ended. It may go on all the same."""


class ReadAttachments(Value):
    """Read the VolumeAttachments of volumes that a pod waits for. `drivers`: the CSI driver of each, by the attachment's name."""

    uid: PodUID
    drivers: Mapping[str, str]


class ContextOutcome(StrEnum):
    """What was decided about the SELinux context of a pod's volume, as metrics name it."""

    ADMITTED = "volumes_admitted_total"
    POD_MISMATCH = "pod_context_mismatch_errors_total"
    VOLUME_MISMATCH = "volume_context_mismatch_errors_total"


class CountContext(Value):
    """Count a decision about the SELinux context of a volume. `access_mode`: in short form, such as `RWOP`."""

    outcome: ContextOutcome
    plugin: str
    access_mode: str


class RecordEvent(Value):
    """Record a Kubernetes Event."""

    kube_event: KubeEvent


DeviceCommand = StageDevice | UnstageDevice
PodCommand = (
    PlanVolume | SetUp | CancelSetUp | ExpandVolume | TearDown | MakePodDirectory | RemovePodDirectory | ReadAttachments
)
Command = PodCommand | DeviceCommand | Scan | RecordEvent | CountContext
