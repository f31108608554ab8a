"""The private values of the eviction manager. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.evictions import PodEviction, PressureCondition, WouldEvict
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.usage import FileSystemUse, MemoryUse, PodUse, PsiStats
from pykubelet.config.eviction import Threshold
from pykubelet.config.settings import Settings

#: The grace period of pods that a hard threshold or a limit of local storage ends, seconds.
IMMEDIATE_GRACE_S = 1
#: `evictionPressureTransitionPeriod` where it is 0.
DEFAULT_TRANSITION_S = 300.0


class Candidate(Value):
    """A pod that may be evicted, and its usage; None: no statistics."""

    pod: Pod
    use: PodUse | None = None


#: Asks the extensions for another order of the candidates for a signal; None: they leave the order as it is.
AskForRanking = Callable[[Sequence[Candidate], str], Sequence[Candidate] | None]


class EvictionSettings(Value):
    """The settings of eviction. `thresholds`: as configured. `transition_s`: `evictionPressureTransitionPeriod`. `max_pod_grace_s`:
    `evictionMaxPodGracePeriod`.

    `enforces_pods`: `enforceNodeAllocatable` has `pods`. `pod_level_resources`, `separates_disks`: gates PodLevelResources
    and KubeletSeparateDiskGC. `dry_run`: report which pods would be evicted, and evict none.
    `isolates_storage`: `localStorageCapacityIsolation`, whether limits of local storage are enforced. `ask_extensions`: None: no
    extension ranks pods.
    """

    thresholds: tuple[Threshold, ...] = ()
    transition_s: float = DEFAULT_TRANSITION_S
    max_pod_grace_s: int = 0
    enforces_pods: bool = True
    pod_level_resources: bool = True
    separates_disks: bool = True
    dry_run: bool = False
    isolates_storage: bool = True
    ask_extensions: AskForRanking | None = None


class EvictionPeriods(Value):
    """Seconds. `pass_s`: between two passes. `memory_s`: the shortest time between two reads of memory alone, when little is left."""

    pass_s: float = 10.0
    memory_s: float = 0.1


def eviction_settings(settings: Settings, ask_extensions: AskForRanking | None = None) -> EvictionSettings:
    """The settings of eviction from the agent's configuration."""
    config = settings.config
    return EvictionSettings(
        thresholds=(*settings.eviction_thresholds, *settings.stall_thresholds),
        transition_s=config.evictionPressureTransitionPeriod.s or DEFAULT_TRANSITION_S,
        max_pod_grace_s=config.evictionMaxPodGracePeriod,
        enforces_pods="pods" in (config.enforceNodeAllocatable or ()),
        pod_level_resources=settings.enabled("PodLevelResources"),
        separates_disks=settings.enabled("KubeletSeparateDiskGC"),
        dry_run=settings.flags.eviction_dry_run,
        isolates_storage=config.localStorageCapacityIsolation is not False,
        ask_extensions=ask_extensions,
    )


class FsLayout(StrEnum):
    """Where the runtime keeps images and the writable layers of containers.

    shared: both on the file system of the root directory. dedicated: both together on another file system. split: images and
    writable layers on different file systems.
    """

    SHARED = "shared"
    DEDICATED = "dedicated"
    SPLIT = "split"


class Reclaim(StrEnum):
    """What can be removed before a pod is evicted."""

    CONTAINERS = "containers"
    IMAGES = "images"


class NodeMeasures(Value):
    """One measurement of the node, without its pods. None: not measured. `at`: wall seconds.

    `pods`: the cgroup of all pods. `stalls`: pressure stall information of the node by `memory` and `io`. `huge_pages`: bytes of the
    memory that only users of huge pages can have.
    """

    at: float
    memory: MemoryUse | None = None
    memory_capacity: int = 0
    pods: MemoryUse | None = None
    node_fs: FileSystemUse | None = None
    image_fs: FileSystemUse | None = None
    container_fs: FileSystemUse | None = None
    max_pids: int | None = None
    running_pids: int | None = None
    stalls: Mapping[str, PsiStats] = field(default_factory=dict)
    huge_pages: int = 0


class Observation(Value):
    """The value of one signal: bytes or a count. `at`: wall seconds."""

    available: int
    capacity: int
    at: float


Observations = Mapping[str, Observation]


class FileSystems(Value):
    """Where the runtime keeps images and writable layers. `read_at`: monotonic seconds."""

    images: str = ""
    containers: str = ""
    layout: FsLayout = FsLayout.SHARED
    read_at: float = float("-inf")


class EvictedPod(Value):
    """A pod that was evicted, until it has left the node. `until`: how long its end is waited for, monotonic seconds."""

    eviction: PodEviction
    until: float


class EvictionState(Value):
    """The state of the eviction manager. Times are monotonic seconds, except for `sampled`, which is wall seconds.

    `met_since`: when each threshold was first met. `met`: the thresholds that were met for their grace period at the last
    pass. `condition_at`: when each condition last held. `sampled`: the time of each signal's last observation.
    `observations`: those of the last pass. `stalls_before`: the stalls until the last evicted pod had ended. `would_evict`: the last
    pods that a dry run did not evict.
    """

    met_since: Mapping[Threshold, float] = field(default_factory=dict)
    met: tuple[Threshold, ...] = ()
    condition_at: Mapping[PressureCondition, float] = field(default_factory=dict)
    sampled: Mapping[str, float] = field(default_factory=dict)
    observations: Observations = field(default_factory=dict)
    file_systems: FileSystems = FileSystems()
    stalls_before: NodeMeasures | None = None
    evicted: Mapping[PodUID, EvictedPod] = field(default_factory=dict)
    would_evict: tuple[WouldEvict, ...] = ()


class Assessment(Value):
    """The result of one pass. `conditions`: those that hold. `actionable`: the thresholds to act on, in order."""

    state: EvictionState
    conditions: tuple[PressureCondition, ...] = ()
    actionable: tuple[Threshold, ...] = ()
