"""The values of this package: states of volumes, the events that change them and the commands that follow.

Owns no decision and no I/O. Times are monotonic seconds unless another unit is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.act.volumes.kind import Plan, VolumePlan
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.content import Content, ContentKey
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.mounts import MountedVolume, Mounts
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster


class Moment(Value):
    """The time of a step: `mono` seconds for decisions, `wall` seconds for texts."""

    mono: float
    wall: float


class Phase(StrEnum):
    """new: not tried; failed: the last set-up failed, parts may be there; uncertain: it is unknown whether the volume is there."""

    NEW = "new"
    SETTING_UP = "setting up"
    FAILED = "failed"
    MOUNTED = "mounted"
    REFRESHING = "refreshing"
    UNCERTAIN = "uncertain"
    TEARING_DOWN = "tearing down"


BUSY = frozenset({Phase.SETTING_UP, Phase.REFRESHING, Phase.TEARING_DOWN})


class Trouble(Value):
    """The last failure: since when (wall) it fails, and when it is tried again (monotonic and wall).

    `delay_s`: the back-off that led to `retry_at`. `retry_at` None: only a change from outside leads to another try.
    """

    error: str
    since: float
    delay_s: float = 0.0
    retry_at: float | None = None
    retry_wall: float | None = None


class VolumeState(Value):
    """One volume of one pod. `plugin`: its directory below `volumes`, "" when it has none. `since`: wall.

    `is_late`: something its content may depend on has changed since the operation under way was planned.
    """

    name: str
    phase: Phase
    since: float
    plugin: str = ""
    plan: Plan | None = None
    mounted: MountedVolume | None = None
    trouble: Trouble | None = None
    is_late: bool = False


class Tree(StrEnum):
    """The pod's directory: unknown (the first operation makes it), being made, there, being removed."""

    UNKNOWN = "unknown"
    MAKING = "making"
    MADE = "made"
    REMOVING = "removing"


class Claim(StrEnum):
    """needed: set up what is missing; kept: change nothing; released: give up; orphaned: and remove the directory."""

    NEEDED = "needed"
    KEPT = "kept"
    RELEASED = "released"
    ORPHANED = "orphaned"


class PodState(Value):
    """All volumes of one pod. `pod` is None when it is only known from the disk. `remind_at`: monotonic.

    `keys`: what of `Content` its volumes are made from.
    """

    uid: PodUID
    claim: Claim
    pod: Pod | None = None
    ref: PodRef | None = None
    volumes: Mapping[str, VolumeState] = field(default_factory=dict)
    tree: Tree = Tree.UNKNOWN
    tree_trouble: Trouble | None = None
    remind_at: float | None = None
    keys: frozenset[ContentKey] = frozenset()


class Inputs(Value):
    """The snapshots of other components, read together."""

    roster: Roster = field(default_factory=Roster)
    lifecycles: Lifecycles = field(default_factory=Lifecycles)
    observed: Observed = field(default_factory=Observed)
    node: NodeView = field(default_factory=lambda: NodeView("", ""))
    content: Content = field(default_factory=Content)

    def is_same_as(self, other: Inputs) -> bool:
        """Whether no snapshot has changed."""
        cells = (self.lifecycles is other.lifecycles, self.observed is other.observed, self.roster is other.roster)
        return all(cells) and self.node is other.node and self.content is other.content


class State(Value):
    """The whole state. `timed`: for each pod that waits for a time, the monotonic seconds it waits for."""

    pods: Mapping[PodUID, PodState] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=Inputs)
    mounts: Mounts = field(default_factory=Mounts)
    scan: Trouble | None = None
    scanning: bool = False
    timed: Mapping[PodUID, tuple[float, ...]] = field(default_factory=dict)


# Events


class InputsChanged(Value):
    """One of the snapshots has changed."""

    inputs: Inputs


class Result(StrEnum):
    DONE = "done"
    FAILED = "failed"
    UNCERTAIN = "uncertain"


class SetUpEnded(Value):
    uid: PodUID
    key: str
    result: Result
    error: str = ""


class TearDownEnded(Value):
    uid: PodUID
    key: str
    result: Result
    error: str = ""


class TreeMade(Value):
    uid: PodUID
    result: Result
    error: str = ""


class FoundVolume(Value):
    """On disk or mounted: `plugin` directory ("" when only sub-path binds are left) and volume name."""

    plugin: str
    name: str


class FoundPod(Value):
    uid: PodUID
    volumes: tuple[FoundVolume, ...] = ()


class TreeRemoved(Value):
    """`left`: volumes that were still there, so that nothing was removed."""

    uid: PodUID
    result: Result
    error: str = ""
    left: tuple[FoundVolume, ...] = ()


class Scanned(Value):
    """The whole `pods` directory was read."""

    found: tuple[FoundPod, ...]


class ScanFailed(Value):
    error: str


class TimerFired(Value):
    """A time that `next_timer` gave has come. `scan`: the periodic scan of the disk is due."""

    scan: bool = False


Event = InputsChanged | SetUpEnded | TearDownEnded | TreeMade | TreeRemoved | Scanned | ScanFailed | TimerFired


# Commands


class SetUp(Value):
    """Make the volume as planned; must do no harm to one that is already there."""

    uid: PodUID
    key: str
    plan: VolumePlan
    cause: str


class TearDown(Value):
    """Unmount the sub-path binds, then the volume, and remove what belongs to it."""

    uid: PodUID
    key: str
    plugin: str
    name: str
    cause: str


class MakeTree(Value):
    uid: PodUID
    cause: str


class RemoveTree(Value):
    uid: PodUID
    cause: str


class Scan(Value):
    cause: str


class RecordEvent(Value):
    """Record a Kubernetes Event."""

    kube_event: KubeEvent


Command = SetUp | TearDown | MakeTree | RemoveTree | Scan | RecordEvent
