"""What the container runtime really holds, as snapshots. Written by observe/pleg alone.

All times of containers and sandboxes are nanoseconds since the epoch, as in CRI; `read_at` is the monotonic second at
which the read began, so that an older look never replaces a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID


class ContainerState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


class NetworkMode(StrEnum):
    POD = "pod"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class ContainerUser:
    """The identity of the first process, where the runtime tells it."""

    uid: int
    gid: int
    supplemental_groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MountView:
    container_path: str
    host_path: str
    readonly: bool = False
    recursive_read_only: bool = False


@dataclass(frozen=True, slots=True)
class ResourcesView:
    """What the runtime applies to a running container; 0 means unlimited or not told."""

    cpu_shares: int = 0
    cpu_quota: int = 0
    cpu_period: int = 0
    memory_limit: int = 0


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container instance. `image` is the runtime's name of it, `image_ref` its digest reference, `image_id` its id."""

    id: ContainerID
    name: str
    sandbox_id: SandboxID
    state: ContainerState
    attempt: int
    created_at: int
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    image: str = ""
    image_ref: str = ""
    image_id: str = ""
    log_path: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[MountView, ...] = ()
    user: ContainerUser | None = None
    resources: ResourcesView | None = None
    stop_signal: str = ""

    @property
    def is_running(self) -> bool:
        return self.state is ContainerState.RUNNING


@dataclass(frozen=True, slots=True)
class SandboxView:
    id: SandboxID
    attempt: int
    ready: bool
    created_at: int
    ips: tuple[str, ...] = ()
    network: NetworkMode = NetworkMode.POD
    runtime_handler: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod as the runtime has it: sandboxes and containers, newest first."""

    ref: PodRef
    sandboxes: tuple[SandboxView, ...] = ()
    containers: tuple[ContainerView, ...] = ()
    read_at: float = 0.0

    def newest(self, name: str) -> ContainerView | None:
        """The newest instance of a container."""
        return next((c for c in self.containers if c.name == name), None)

    def instances(self, name: str) -> tuple[ContainerView, ...]:
        return tuple(c for c in self.containers if c.name == name)

    @property
    def ready_sandboxes(self) -> tuple[SandboxView, ...]:
        return tuple(s for s in self.sandboxes if s.ready)

    @property
    def running(self) -> tuple[ContainerView, ...]:
        return tuple(c for c in self.containers if c.state is ContainerState.RUNNING)

    @property
    def is_alive(self) -> bool:
        """Something of the pod still runs, or its sandbox is still up."""
        return bool(self.running) or bool(self.ready_sandboxes)

    @property
    def is_gone(self) -> bool:
        return not self.sandboxes and not self.containers


@dataclass(frozen=True, slots=True)
class Observed:
    """All pods of the runtime. `listed_at` is the monotonic start of the newest full look; None before the first.

    `unread`: pods that are there, but of which no look has succeeded yet; nothing may be decided about them.
    """

    pods: Mapping[PodUID, PodView] = field(default_factory=dict)
    listed_at: float | None = None
    unread: frozenset[PodRef] = frozenset()

    def is_unread(self, uid: PodUID) -> bool:
        """The pod is there, and nobody knows how it is."""
        return bool(self.unread) and any(ref.uid == uid for ref in self.unread)


@dataclass(frozen=True, slots=True)
class PodTouched:
    """Posted to observe/pleg: something was just done to this pod; look at it now rather than at the next relist.

    `changed`: containers of which more is new than that they run or have ended.
    """

    ref: PodRef
    cause: str
    changed: frozenset[ContainerID] = frozenset()
