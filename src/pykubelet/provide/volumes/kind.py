"""The interface of a volume kind: what a kind declares, and the inputs and results of its planning.

A kind is one module in `kinds/` that exports `KIND`, a `VolumeKind`. `plan.py` finds it; no other code names it.
`docs/recipes/volume-kind.md` explains how to add a kind.

Rules:
 1. `keys`, `plan` and `needs_refresh` are pure: they use neither the host nor the clock.
 2. `set_up` and `tear_down` block and run in a thread. Each may be repeated, and may be interrupted at any point when the
    agent ends.
 3. `tear_down` gets only the directories, not the plan, because only the disk survives a restart. A kind that needs more
    data writes it into the volume's directories before it mounts anything.
Source: the Kubernetes documentation "Volumes".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.content import Content, ContentKey
from pykubelet.base.model.extensions import ExtensionStates
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.selinux import SelinuxHost
from pykubelet.base.model.waits import Wait
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.provide.volumes.directories import VolumeDirs, release_volume

#: A plan of so many things takes too long for the event loop.
HEAVY = 2000
GROUP_ANNOTATION = "pv.beta.kubernetes.io/gid"
#: The highest number of a group that runtimes accept.
MAX_GROUP = 2**31 - 1
#: The last step of mounting, in which most errors occur.
SET_UP = "SetUp"
#: The step before anything is done on the host.
NEW_MOUNTER = "NewMounter initialization"
#: The step of expansion, which Events name so.
EXPANDING = "Setup failed while expanding volume"
#: The step in which a device is staged.
MOUNT_DEVICE = "MountDevice"
#: The step of attaching a volume, which Events name so.
ATTACH = "AttachVolume.Attach"
#: The step in which the PersistentVolume is compared with the node.
NODE_AFFINITY = "NodeAffinity check"


class VolumesError(Exception):
    """Planning, setting up, tearing down or checking a volume failed; the text is shown to users.

    `step`: the step of mounting that failed, as Events name it. `volume_reason`: the reason of an Event about the
    PersistentVolume, "" for none. `until`: as in `RefusedPlan`.
    """

    volume_reason = ""

    def __init__(self, text: str, step: str = SET_UP, until: str = "") -> None:
        super().__init__(text)
        self.step = step
        self.until = until


class PendingError(VolumesError):
    """What the volume is made from is not there yet, and another party has to act. `waits`: what users see until then."""

    def __init__(self, text: str, waits: tuple[Wait, ...]) -> None:
        super().__init__(text)
        self.waits = waits


class UncertainError(VolumesError):
    """Setting up a volume failed, but the volume may be mounted."""


class StillAtWork(Value):
    """An extension has not set a volume up yet, and is asked again in `again_s` seconds. `extension`: its name."""

    extension: str
    again_s: float


class NotYetError(UncertainError):
    """Setting up the volume goes on elsewhere. The text states what it waits for."""

    def __init__(self, text: str, pending: StillAtWork) -> None:
        super().__init__(text)
        self.pending = pending


class TransientError(VolumesError):
    """Nothing was tried: a driver, an attachment or a secret is missing. The volume is as it was before."""


class DevicePlan(Value):
    """The base class of every kind's plan for `stage`: what is done once on this node for all pods that use the volume.

    `name`: the unique name of the volume, such as `kubernetes.io/csi/<driver>^<handle>`. `kind`: the name of the volume kind.
    `directory`: where the device is mounted, or a block device mapped, below the agent's `plugins`. `is_attachable`: the
    volume must be attached to the node first, and is reported in the Node's `volumesInUse`. `context`: the SELinux context that
    the device is mounted with, "" for none.
    """

    name: str
    kind: str
    directory: Beneath
    is_attachable: bool = False
    context: str = ""

    @property
    def progress(self) -> str:
        """What is being done while the device is staged, for users."""
        return "its device is being mounted"

    @property
    def device_path(self) -> str:
        """The path of the block device that must be free once it is unstaged; "" if none is known before it is staged."""
        return ""


class FoundDevice(Value):
    """A device that may be staged on this node: all that survives a restart of the agent.

    Fields as in `DevicePlan`; `context` None: not known. `path`: its `device_path`, or that in the Node's status; does not survive.
    """

    name: str
    kind: str
    directory: Beneath
    context: str | None = None
    path: str = ""


class NodeVolumes(Value):
    """The volumes in the Node's status. `in_use`: unique names. `attached`: the path of each volume's device, often "".

    `by_controller`: a controller attaches volumes; otherwise the agent would have to (`enableControllerAttachDetach`).
    """

    in_use: frozenset[str] = frozenset()
    attached: Mapping[str, str] = field(default_factory=dict)
    by_controller: bool = True


class VolumePlan(Value):
    """The base class of every kind's plan for `set_up`. `mounted`: what containers bind once the volume is set up."""

    mounted: MountedVolume

    @property
    def kind(self) -> str:
        """The name of the kind that made the plan."""
        return self.mounted.kind

    @property
    def spec_name(self) -> str:
        """The name of the PersistentVolume, or else of the pod's volume. The volume's directory has it."""
        return self.mounted.spec_name or self.mounted.name

    @property
    def path(self) -> str:
        """The host path that containers bind."""
        return self.mounted.host_path

    @property
    def progress(self) -> str:
        """What is being done while the plan is carried out, for users."""
        return "being set up"

    @property
    def driver(self) -> str:
        """The name of the driver that carries the plan out; "" if the agent does it itself."""
        return ""

    @property
    def plugin_directory(self) -> str:
        """The directory below the pod's `volumes`, for kinds with `driver_directory`; "" for others."""
        return ""

    @property
    def device(self) -> DevicePlan | None:
        """What must be staged on the node before the volume is set up for its pod; None: nothing."""
        return None

    @property
    def is_refreshed(self) -> bool:
        """Whether a mounted volume follows what it is made from. If not, a later refusal does not concern it."""
        return True

    @property
    def repeat_s(self) -> float:
        """Seconds after which a mounted volume is set up again; 0: never."""
        return 0.0


class DirectoryPlan(VolumePlan):
    """The base class of plans for volumes with a directory: `directory`, below the pod's own. For a block device it is a link."""

    directory: Beneath


class InPlacePlan(VolumePlan):
    """A plan for a volume that needs no work on the host."""


class RefusedPlan(Value):
    """The volume cannot be provided until its pod, the node or its content changes. `until`: what has to be so, if that is known;
    a volume that is mounted needs nothing of that.

    `step`: as in `VolumesError`; "" when it is not even known what to mount. `spec_name`: the name of the PersistentVolume that
    is refused, "" for other volumes. `is_block`: it is a block device. `waits`: the waits for other parties, in place of one for
    the volume.
    """

    error: str
    until: str = ""
    step: str = SET_UP
    spec_name: str = ""
    is_block: bool = False
    waits: tuple[Wait, ...] = ()


class UndecidedPlan(Value):
    """The volume cannot be planned yet. `missing`: what must be known first, as text. `awaited`: the keys without an answer.

    `device`: the attachable device that the volume will need: the Node's status reports it as in use meanwhile.
    """

    missing: str
    awaited: tuple[ContentKey, ...] = ()
    device: DevicePlan | None = None


Plan = VolumePlan | RefusedPlan | UndecidedPlan
NODE_UNKNOWN = UndecidedPlan("what the node can allocate is not known yet")

P = TypeVar("P", bound=VolumePlan)
T = TypeVar("T")


class ResolvedVolume(Value):
    """The persistent volume behind a claim. `read_only`: as the pod asks for the claim. `mount_options`: sorted.

    `is_migrated`: its source was one of an in-tree cloud plugin. `claim`: None for a volume that is translated from one of the
    pod's own.
    """

    volume: PersistentVolume
    read_only: bool = False
    mount_options: tuple[str, ...] = ()
    is_migrated: bool = False
    claim: PersistentVolumeClaim | None = None

    @property
    def name(self) -> str:
        """The name of the persistent volume, which is also that of directories."""
        return self.volume.metadata.name

    @property
    def is_block(self) -> bool:
        """Whether pods get the device itself, without a file system."""
        return self.volume.spec.volumeMode == "Block"

    @property
    def group(self) -> int | None:
        """The supplemental group that the volume's annotation asks for; None also for one that is no number of a group."""
        return parse_decimal(self.volume.metadata.annotations.get(GROUP_ANNOTATION, ""), MAX_GROUP)

    @property
    def is_of_one_pod(self) -> bool:
        """Whether only one pod may use the volume: its sole access mode is ReadWriteOncePod."""
        return self.volume.spec.accessModes == ("ReadWriteOncePod",)


class PlanInputs(Value):
    """One volume of one pod, and everything that its plan may depend on. `claimed`: the volume behind its claim, if it has one.

    `resizes_memory`: mounted volumes in memory follow their limits.
    """

    kind: VolumeKind[Any]
    pod: Pod
    volume: Volume
    node: NodeView
    content: Content
    paths: Paths
    plugins: Plugins = field(default_factory=Plugins)
    claimed: ResolvedVolume | None = None
    node_volumes: NodeVolumes = field(default_factory=NodeVolumes)
    selinux: SelinuxHost = SelinuxHost()
    resizes_memory: bool = False
    extensions: ExtensionStates = ExtensionStates()

    @property
    def source(self) -> Volume | PersistentVolumeSpec:
        """What names the volume's source: the volume of the pod, or the persistent volume that it claims."""
        return self.volume if self.claimed is None else self.claimed.volume.spec

    @property
    def spec_name(self) -> str:
        """The name of the persistent volume, or else of the pod's volume. Directories and Events have it."""
        return self.volume.name if self.claimed is None else self.claimed.name

    @property
    def dirs(self) -> VolumeDirs:
        """The volume's directories below the pod's own."""
        uid, is_block = PodUID(self.pod.metadata.uid), self.is_block
        return VolumeDirs.of(self.paths, uid, self.kind.directory, self.spec_name, is_block=is_block)

    @property
    def is_block(self) -> bool:
        """Whether the pod gets the device itself, without a file system."""
        return self.claimed is not None and self.claimed.is_block

    @property
    def fs_group(self) -> int | None:
        """The pod's fsGroup; None: volumes keep their group."""
        context = self.pod.spec.securityContext
        return context.fsGroup if context is not None else None

    def mounted(
        self,
        host_path: str,
        *,
        read_only: bool = False,
        supports_relabel: bool = False,
        is_measured: bool = True,
        has_stats: bool = False,
    ) -> MountedVolume:
        """The `MountedVolume` for a host path; the flags are its fields."""
        claim = self.claimed.claim.metadata if self.claimed is not None and self.claimed.claim is not None else None
        return MountedVolume(
            self.volume.name,
            self.kind.name,
            str(host_path),
            read_only=read_only,
            supports_relabel=supports_relabel,
            is_measured=is_measured,
            is_block=self.is_block,
            spec_name=self.claimed.name if self.claimed is not None else "",
            is_of_one_pod=self.claimed is not None and self.claimed.is_of_one_pod,
            is_migrated=self.claimed is not None and self.claimed.is_migrated,
            group=self.claimed.group if self.claimed is not None else None,
            has_stats=has_stats,
            claim=(claim.namespace, claim.name) if claim is not None else None,
        )


class Note(Value):
    """An Event of type Warning about the pod, which work on its volume asks for."""

    reason: str
    message: str


def drop_note(_note: Note) -> None:
    """Record no Event."""


def no_progress() -> None:
    """Report no progress."""


class Reports(Protocol):
    """What work on a volume may report while it runs."""

    @property
    def note(self) -> Callable[[Note], None]:
        """Records an Event."""
        ...

    @property
    def progress(self) -> Callable[[], None]:
        """Reports progress: the work misses its deadline only if it makes none for that long. UncertainError: it shall end now."""
        ...


class TakeFiles(Protocol):
    """Counts the files that the agent writes into a volume."""

    def __call__(self, path: str, plan: Any, /) -> Sequence[Any]:
        """The `PayloadFile`s of a `PayloadPlan` for the volume at `path`. VolumesError if the files of its pod's volumes take too
        much, or are too many."""
        ...


def take_all(_path: str, plan: Any) -> Sequence[Any]:
    """Take any files."""
    files: Sequence[Any] = plan.files
    return files


class SetUpContext(Value):
    """What `set_up` may use besides its plan. `wall`: seconds now. `quotas`: count what a directory uses. `take_files`: called before
    the agent writes files. Others: `Reports`."""

    wall: float
    quotas: VolumeQuotas
    note: Callable[[Note], None] = drop_note
    progress: Callable[[], None] = no_progress
    take_files: TakeFiles = take_all


class BlockingWork(Protocol):
    """Runs blocking work on the volume in a thread."""

    async def __call__(self, work: Callable[[], T], deadline_s: float = ...) -> T:
        """The result of the work, or its error; UncertainError if there is none within `deadline_s`."""
        ...


class ExtensionVolumes(Protocol):
    """The calls of one process extension that provides volumes (`flex/extension_calls.py`)."""

    async def set_up(self, plan: Any) -> None:
        """Have it set up the volume of a plan. VolumesError; NotYetError while it is at it."""
        ...

    async def tear_down(self, dirs: VolumeDirs) -> None:
        """Have it tear down a volume, as long as it answers in time."""
        ...


class CallContext(Value):
    """What `mount` and `unmount` may use. `plugins`: those that are registered now. Others: `Reports`; `mount` alone records Events.

    `extensions`: the process extensions that are loaded, by name.
    `size`: the bytes that the volume has, as far as it is known; `expand` alone has it.
    """

    plugins: Plugins
    blocking: BlockingWork
    note: Callable[[Note], None] = drop_note
    size: int = 0
    progress: Callable[[], None] = no_progress
    extensions: Mapping[str, ExtensionVolumes] = field(default_factory=dict)


def no_keys(_pod: Pod, _volume: Volume) -> Iterable[ContentKey]:
    """The default of `VolumeKind.keys`: the volume refers to no object of the API server."""
    return ()


def no_further_keys(_pod: Pod, _volume: Volume, _content: Content) -> Iterable[ContentKey]:
    """The default of `VolumeKind.further_keys`: the volume's objects lead to no others."""
    return ()


def no_claimed_keys(_pod: Pod, _claimed: ResolvedVolume, _content: Content) -> Iterable[ContentKey]:
    """The default of `VolumeKind.claimed_keys`: persistent volumes of the kind refer to no object of the API server."""
    return ()


def entries_of(volume: Volume) -> int:
    """The default of `VolumeKind.weight`: the entries of the lists and maps in the volume's source."""
    fields = (name for name in volume.__struct_fields__ if name != "name")
    source = next((value for name in fields if (value := getattr(volume, name)) is not None), None)
    names = source.__struct_fields__ if source is not None else ()
    return sum(len(value) for name in names if isinstance(value := getattr(source, name), (tuple, dict)))


def no_devices(_paths: Paths) -> Iterable[FoundDevice]:
    """The default of `VolumeKind.find_devices`: the kind has none."""
    return ()


def no_device(_paths: Paths, _dirs: VolumeDirs) -> str:
    """The default of `VolumeKind.device_of`: volumes of the kind have none."""
    return ""


class VolumeKind(Value, Generic[P]):
    """One kind of volume.

    `name`: its field in a pod's volume, such as `emptyDir`, or in a PersistentVolume.
    `plugin`: its name in metrics, such as `kubernetes.io/empty-dir`; "" keeps it out of them.
    `has_directory`: each volume has a directory such as `pods/<uid>/volumes/kubernetes.io~empty-dir/<name>`; a restarted agent
    finds the volume by it.
    `driver_directory`: the directory of an inline volume, for a kind whose directories have the names of drivers. Directories
    that no other kind has belong to it.
    `keys`: the objects of the API server that the plan reads from `Content`. `further_keys`: those that are named by objects of
    `Content`. `claimed_keys`: both, for the persistent volume behind a pod's claim.
    `plan`: a VolumesError or QuantityError refuses the volume with its text. None: no volume of this kind is set up, but one
    that another kubelet has left on disk is removed.
    `weight`: how many things a plan of the volume is made from. One of `HEAVY` or more is planned in a thread.
    `set_up`: carries out the plan; repeating it does no harm. After a HostError or VolumesError it is tried again later.
    None: every plan is an `InPlacePlan`.
    `needs_refresh`: whether a volume set up by the first plan must be set up again by the second. None: never.
    `is_persistent`: a PersistentVolume may be of this kind. `plan` then reads `PlanInputs.source`. `mount_options`: such a
    volume may have mount options.
    `delays_sandbox`: whether the pod's sandbox waits until the volume is set up. False for kinds that are set up in a moment.
    `tear_down`: unmounts and removes the volume. `delete_volume` deletes its data with the pod; the default keeps the data.
    `maps_devices`: a PersistentVolume of volumeMode Block may be of the kind. `plan` then looks at `PlanInputs.is_block`, and
    `tear_down` or `unmount` at `VolumeDirs.is_block`.
    `mount`, `unmount`: in place of `set_up` and `tear_down`, for kinds that call a driver: they are awaited, and run blocking
    work in threads by themselves. Such volumes are planned again when plugins change.
    `stage`, `unstage`: for kinds whose plans have a `device`: carry out its plan and undo that, once for all pods. Both may be
    repeated and interrupted like the others, and a device that is not there is no error. They run with a deadline and never
    at the same time as an operation on a volume with this device.
    `expand`: grows a mounted volume to at least so many bytes, and returns its size; one that has the size is left alone.
    ExpandError, or as `mount`. None: volumes of the kind do not grow.
    `find_devices`: the devices of the kind on disk. `device_of`: the unique name of the device of a pod's volume on disk, ""
    if it has none. Both block.
    """

    name: str
    plugin: str = ""
    has_directory: bool = True
    driver_directory: Callable[[Volume], str] | None = None
    keys: Callable[[Pod, Volume], Iterable[ContentKey]] = no_keys
    further_keys: Callable[[Pod, Volume, Content], Iterable[ContentKey]] = no_further_keys
    claimed_keys: Callable[[Pod, ResolvedVolume, Content], Iterable[ContentKey]] = no_claimed_keys
    plan: Callable[[PlanInputs], P | InPlacePlan | RefusedPlan | UndecidedPlan] | None = None
    weight: Callable[[Volume], int] = entries_of
    set_up: Callable[[P, SetUpContext], None] | None = None
    needs_refresh: Callable[[P, P], bool] | None = None
    is_persistent: bool = False
    mount_options: bool = False
    maps_devices: bool = False
    delays_sandbox: bool = True
    tear_down: Callable[[VolumeDirs], None] = release_volume
    mount: Callable[[P, CallContext], Awaitable[None]] | None = None
    unmount: Callable[[VolumeDirs, CallContext], Awaitable[None]] | None = None
    stage: Callable[[Any, CallContext], Awaitable[None]] | None = None
    unstage: Callable[[FoundDevice, CallContext], Awaitable[None]] | None = None
    expand: Callable[[P, int, CallContext], Awaitable[int]] | None = None
    find_devices: Callable[[Paths], Iterable[FoundDevice]] = no_devices
    device_of: Callable[[Paths, VolumeDirs], str] = no_device

    @property
    def directory(self) -> str:
        """The directory of the kind below a pod's `volumes`; "" for kinds without one."""
        return self.plugin.replace("/", "~") if self.has_directory else ""
