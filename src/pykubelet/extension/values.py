"""The values that extensions get and return. All are frozen; mappings are read-only.

Amounts of resources are integers: `cpu` in thousandths of a CPU, everything else in bytes or pieces. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

_EMPTY: Mapping[str, Any] = MappingProxyType({})


def _nothing() -> Mapping[str, Any]:
    return _EMPTY


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod's spec. `kind`: "init", "sidecar" (an init container with restartPolicy Always) or "app".

    `requests`, `limits`: by resource.
    """

    name: str
    image: str = ""
    kind: Literal["init", "sidecar", "app"] = "app"
    requests: Mapping[str, int] = field(default_factory=_nothing)
    limits: Mapping[str, int] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `requests`: of the whole pod, with overhead, as they count against the node.

    `qos`: "Guaranteed", "Burstable" or "BestEffort". `is_static`: it comes from a manifest. `is_critical`: it is static or has a
    system priority class; the node keeps such pods as long as it can. `created_at`: seconds since 1970-01-01 UTC; 0 if unknown.
    """

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=_nothing)
    annotations: Mapping[str, str] = field(default_factory=_nothing)
    priority: int = 0
    priority_class: str = ""
    service_account: str = ""
    qos: str = "BestEffort"
    requests: Mapping[str, int] = field(default_factory=_nothing)
    containers: tuple[Container, ...] = ()
    is_static: bool = False
    is_critical: bool = False
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """This node. `requested`: the sum of what its admitted pods request, by resource. `pods`: their number.

    `conditions`: the pressure conditions that hold, such as "MemoryPressure". `time`: seconds since 1970-01-01 UTC.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=_nothing)
    capacity: Mapping[str, int] = field(default_factory=_nothing)
    allocatable: Mapping[str, int] = field(default_factory=_nothing)
    requested: Mapping[str, int] = field(default_factory=_nothing)
    pods: int = 0
    conditions: tuple[str, ...] = ()
    time: float = 0.0


# Admission


@dataclass(frozen=True, slots=True)
class Reject:
    """Reject the pod for good. `reason`: the status reason, one word in CamelCase. `message`: for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Neither admit nor reject the pod yet. `condition`: the name of what it waits for, shown by `pykubelet explain`.

    `message`: for people. `again_s`: after how many seconds the extension is asked again, at least 1.
    """

    condition: str
    message: str = ""
    again_s: float = 10.0


#: The answer of `admit`. None: admit the pod, as far as this extension is concerned.
Admission = Reject | Hold | None


# Eviction


@dataclass(frozen=True, slots=True)
class Usage:
    """What a pod uses now. None: it was not measured.

    `memory`: bytes of its working set. `processes`: their number. `disk`: bytes of writable layers, logs and local volumes.
    `stalls`: by `cpu`, `memory` and `io`, the share of the last 10 s in percent in which some of its processes waited for the resource.
    """

    memory: int | None = None
    processes: int | None = None
    disk: int | None = None
    stalls: Mapping[str, float] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A pod that may be evicted. `usage` None: it was not measured."""

    pod: Pod
    usage: Usage | None = None


# CPUs


@dataclass(frozen=True, slots=True)
class MachineCpu:
    """A logical CPU. CPUs with the same `core` are threads of one core; `l3_cache`: those with the same one share their last-level cache.

    `core`: the lowest CPU id of the core.
    """

    id: int
    core: int
    socket: int
    numa_node: int
    l3_cache: int


@dataclass(frozen=True, slots=True)
class CpuMachine:
    """The CPUs of the machine. `free`: those that the container may get. `reserved`: for the system; no container gets them."""

    cpus: tuple[MachineCpu, ...]
    free: frozenset[int]
    reserved: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class CpuRequest:
    """The exclusive CPUs that a container is to get. `cpus`: how many.

    `numa_nodes`: those that the Topology Manager has chosen; None without such a choice. `near`: the free CPUs of these nodes, or of their
    sockets with the option align-by-socket, which must be used up before any other. `reusable`: free CPUs of init containers of the pod
    that have completed; until the pod ends no other pod gets them. `whole_cores`: the option full-pcpus-only; all threads of each core,
    or none.
    """

    pod: Pod
    container: Container
    cpus: int
    numa_nodes: frozenset[int] | None = None
    reusable: frozenset[int] = frozenset()
    whole_cores: bool = False
    near: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A NUMA node. `free`, `allocatable`: bytes by type of memory: `memory`, and `hugepages-2Mi` and so on.

    `group`: the nodes that it is used together with, itself among them. `blocks`: what containers have of it, in pieces.
    """

    id: int
    free: Mapping[str, int]
    allocatable: Mapping[str, int]
    group: frozenset[int] = frozenset()
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class MemoryMachine:
    """The NUMA nodes of the machine."""

    nodes: tuple[MemoryNode, ...]


@dataclass(frozen=True, slots=True)
class MemoryChoice:
    """A set of NUMA nodes on which memory fits. `is_smallest`: there is none with fewer nodes on which it could ever fit."""

    numa_nodes: frozenset[int]
    is_smallest: bool = True


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """The memory that a container is to get for itself. `container`: None: the pod as a whole. `sizes`: bytes by type of memory.

    `choices`: the sets of nodes that may be answered, in the built-in order, the best one first.
    """

    pod: Pod
    container: Container | None
    sizes: Mapping[str, int]
    choices: tuple[MemoryChoice, ...]


# Restarts


@dataclass(frozen=True, slots=True)
class Exit:
    """An exit of a container. `reason`: as in its status, such as "Error" or "OOMKilled". `signal`: the one that ended it; 0 if none did.

    `started_at`, `finished_at`: in seconds since 1970-01-01 UTC.
    """

    exit_code: int
    reason: str = ""
    signal: int = 0
    started_at: float = 0.0
    finished_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """What is known of a container that has ended, and would be started again.

    `restarts`: how often it was started again before. `exits`: its last exits, this one first, at most 10; from before the start of the
    agent, only those that the container runtime still shows. `delay_s`: the seconds from the exit to the start without an extension.
    """

    pod: Pod
    restarts: int = 0
    exits: tuple[Exit, ...] = ()
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Start the container again `delay_s` seconds after its exit, from 0 to 300, in place of the crash back-off of this exit."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class RestartNever:
    """Leave the container terminated, as with the restart policy Never. `message`: for people. Not for sidecars."""

    message: str = ""


#: The answer of `restart`. None: after the crash back-off.
RestartAnswer = RestartAfter | RestartNever | None


# Images


@dataclass(frozen=True, slots=True)
class PullAttempt:
    """An image that must be pulled for a container. `image`: as in the pod. `container`: its name.

    `attempt`: from 1; counts the pulls of the image for this container, without those that were delayed. `policy`: "Always" or
    "IfNotPresent". `is_present`: the image is there, and is pulled again. `waiting_since`: when the container began to wait for it, in
    seconds since 1970-01-01 UTC.
    """

    image: str
    pod: Pod
    container: str
    attempt: int = 1
    policy: str = "IfNotPresent"
    is_present: bool = False
    waiting_since: float = 0.0


@dataclass(frozen=True, slots=True)
class PullNow:
    """Pull the image. Of the pulls that wait for a slot, those of the highest priority come first, from -1000000 to 1000000."""

    priority: int = 0


@dataclass(frozen=True, slots=True)
class PullLater:
    """Do not pull yet. `again_s`: after how many seconds the extension is asked again, from 1 to 3600. `message`: for people."""

    again_s: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class PullNever:
    """Do not pull the image for this container. `message`: for people. The extension is asked again every 10 seconds."""

    message: str = ""


#: The answer of `pull`. None: as without the extension.
PullAnswer = PullNow | PullLater | PullNever | None


@dataclass(frozen=True, slots=True)
class Image:
    """An image that no container uses. `names`: its tags and digests, complete. `size`: bytes.

    `first_seen`: when the agent first saw it. `last_used`: when the agent last saw it in use; 0 if it did not. Both in seconds since
    1970-01-01 UTC, and counted from the agent's start. `is_over_age`: it is removed because it was unused for longer than
    `imageMaximumGCAge`.
    """

    id: str
    names: tuple[str, ...] = ()
    size: int = 0
    first_seen: float = 0.0
    last_used: float = 0.0
    is_over_age: bool = False
