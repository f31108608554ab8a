"""The pods of the container runtime, as snapshots. `Observed` is written by observe/pleg alone.

All times of containers and sandboxes are nanoseconds since the epoch, as in CRI; 0 if unknown. `read_at` is the monotonic
second at which the read began, so that an older read never replaces a newer one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value, field, remember_last, replace
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.labels import CONTAINER_RESTART_COUNT
from pykubelet.base.model.reasons import COMPLETED, ERROR

_INT32_MAX = 2**31 - 1  # restartCount is an int32


def known_time(nanos: int) -> int:
    """A time as the runtime reports it; 0 if the runtime does not know it.

    containerd reports a date of the 18th century as the creation of a sandbox whose start was cut short.
    """
    return max(0, nanos)


class ObservedState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


class NetworkMode(StrEnum):
    POD = "pod"
    NODE = "node"


class ObservedUser(Value):
    """The identity of the first process, where the runtime reports it."""

    uid: int
    gid: int
    supplemental_groups: tuple[int, ...] = ()


class MountView(Value):
    container_path: str
    host_path: str
    readonly: bool = False
    recursive_read_only: bool = False


class ResourcesView(Value):
    """The resources that the runtime applies to a running container; 0 means unlimited or not reported. `cpuset_cpus` and
    `cpuset_mems`: the CPUs and memory nodes it may use in the kernel's list format, empty if not restricted or not reported."""

    cpu_shares: int = 0
    cpu_quota: int = 0
    cpu_period: int = 0
    memory_limit: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""


class ContainerView(Value):
    """One container instance. `image`: the image by the runtime's name, `image_ref`: its digest reference, `image_id`: its id."""

    id: ContainerID
    name: str
    sandbox_id: SandboxID
    state: ObservedState
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
    user: ObservedUser | None = None
    resources: ResourcesView | None = None
    stop_signal: str = ""

    @property
    def is_running(self) -> bool:
        """Whether the runtime reported the container as running."""
        return self.state is ObservedState.RUNNING

    @property
    def restart_count(self) -> int:
        """The restart count from the annotation that the agent set on the instance, else its attempt."""
        count = parse_decimal(self.annotations.get(CONTAINER_RESTART_COUNT, ""), _INT32_MAX)
        return count if count is not None else self.attempt


class SandboxView(Value):
    id: SandboxID
    attempt: int
    ready: bool
    created_at: int
    ips: tuple[str, ...] = ()
    network: NetworkMode = NetworkMode.POD
    runtime_handler: str = ""


class ContainerEnd(Value):
    """The exit of a container as a runtime event reports it. About 30 ms later the status shows it and the log is complete."""

    id: ContainerID
    exit_code: int
    finished_at: int


class PodView(Value, weakref=True):
    """One pod as the runtime has it: sandboxes and containers, newest first.

    `pending_exits`: known exits of containers that the runtime still shows running.
    """

    ref: PodRef
    sandboxes: tuple[SandboxView, ...] = ()
    containers: tuple[ContainerView, ...] = ()
    read_at: float = 0.0
    pending_exits: tuple[ContainerEnd, ...] = ()

    def newest(self, name: str) -> ContainerView | None:
        """The newest instance of a container."""
        return next(iter(self.instances(name)), None)

    def without(self, instances: Collection[ContainerID]) -> PodView:
        """The view without these instances; the same object if it has none of them."""
        left = tuple(c for c in self.containers if c.id not in instances)
        return self if len(left) == len(self.containers) else replace(self, containers=left)

    def instances(self, name: str) -> tuple[ContainerView, ...]:
        """All instances of the container of this name, newest first."""
        return _by_name(self).get(name, ())

    def container(self, runtime_id: str) -> ContainerView | None:
        """The container with this ID."""
        return _by_id(self).get(runtime_id)

    @property
    def is_between(self) -> bool:
        """Whether an older instance is shown running beside its successor: it has exited, and its status follows soon."""
        newest: set[str] = set()
        for container in self.containers:
            if container.is_running and container.name in newest:
                return True
            newest.add(container.name)
        return False

    @property
    def ready_sandboxes(self) -> tuple[SandboxView, ...]:
        """The sandboxes that the runtime reported as ready."""
        return tuple(s for s in self.sandboxes if s.ready)

    @property
    def running(self) -> tuple[ContainerView, ...]:
        """The containers that the runtime reported as running."""
        return tuple(c for c in self.containers if c.state is ObservedState.RUNNING)

    @property
    def is_alive(self) -> bool:
        """Whether a container of the pod runs or a sandbox is ready."""
        return self.is_running or any(s.ready for s in self.sandboxes)

    @property
    def is_running(self) -> bool:
        """Whether a container of the pod runs."""
        return any(c.state is ObservedState.RUNNING for c in self.containers)

    @property
    def is_gone(self) -> bool:
        """Whether the runtime has neither a sandbox nor a container of the pod."""
        return not self.sandboxes and not self.containers

    def add_pending_exits(self, exits: Iterable[ContainerEnd]) -> PodView:
        """The view with `exits` added to `pending_exits`, where it still shows their containers running."""
        running = {c.id for c in self.running}
        known = {exited.id: exited for exited in (*self.pending_exits, *exits) if exited.id in running}
        return replace(self, pending_exits=tuple(known.values()))

    def with_pending_exits(self, doubtful: Collection[str] = ()) -> PodView:
        """The view with its pending exits applied, as the runtime will show it soon. OOM kills are not known yet.

        `doubtful`: containers whose exit code 0 is no success if they were OOM-killed; they are still shown running.
        """
        exits = {exited.id: exited for exited in self.pending_exits}
        if not exits:
            return self
        ended = {c.id for c in self.containers if c.id in exits and (exits[c.id].exit_code or c.name not in doubtful)}
        return replace(self, containers=tuple(_ended(c, exits[c.id]) if c.id in ended else c for c in self.containers))


@remember_last
def _by_name(pod: PodView) -> Mapping[str, tuple[ContainerView, ...]]:
    found: dict[str, tuple[ContainerView, ...]] = {}
    for container in pod.containers:
        found[container.name] = (*found.get(container.name, ()), container)
    return found


@remember_last
def _by_id(pod: PodView) -> Mapping[str, ContainerView]:
    return {container.id: container for container in reversed(pod.containers)}


def end_in_words(container: ContainerView) -> str:
    """How a container ended: `it ended with 137 (Error)`."""
    reason = container.reason or (COMPLETED if container.exit_code == 0 else ERROR)
    return f"it ended with {container.exit_code} ({reason})"


def _ended(container: ContainerView, end: ContainerEnd) -> ContainerView:
    return replace(
        container,
        state=ObservedState.EXITED,
        exit_code=end.exit_code,
        finished_at=end.finished_at,
        reason=COMPLETED if end.exit_code == 0 else ERROR,
    )


class Observed(Value):
    """All pods of the runtime. `listed_at`: the monotonic second at which the newest relist began; None before the first.

    `unread`: pods that a relist listed but that could not be read yet; nothing may be decided about them.
    """

    pods: Mapping[PodUID, PodView] = field(default_factory=dict)
    listed_at: float | None = None
    unread: frozenset[PodRef] = frozenset()

    def is_unread(self, uid: PodUID) -> bool:
        """Whether the runtime has the pod, but it was never read."""
        return bool(self.unread) and any(ref.uid == uid for ref in self.unread)


class Started(Value):
    """These containers of one sandbox were started, and `resized` got another size; nothing else about the pod has changed but the ends of
    `ended`, which were stopped before.

    `seen`: the sandbox, if it was created for them and was read before they were started.
    """

    sandbox: SandboxID
    containers: tuple[ContainerID, ...]
    seen: SandboxView | None = None
    resized: tuple[ContainerID, ...] = ()
    ended: tuple[ContainerID, ...] = ()


class Stopped(Value):
    """All containers and sandboxes of the pod were stopped. The runtime had confirmed this at the monotonic second `at`."""

    at: float


class Removed(Value):
    """All containers and sandboxes of the pod were removed. The runtime had confirmed this at the monotonic second `at`."""

    at: float


class PodReadWanted(Value):
    """Posted to observe/pleg by the component that has just changed a pod: read it now, before the next relist.

    `changed`: containers whose status changed in another way than by a start or exit. `answer`: the runtime's answer to the
    change, if it makes the read, or most of it, unnecessary.
    """

    ref: PodRef
    cause: str
    changed: frozenset[ContainerID] = frozenset()
    answer: Started | Stopped | Removed | None = None


class StopInProgress(Value):
    """Posted to observe/pleg before and after (`is_over`) a call that stops a container or a sandbox.

    Between the two, hints that the id has ended are ignored: the call returns once the runtime's status shows the exit.
    `for_good`: the id is removed next, so its exit is not read.
    """

    ref: PodRef
    id: str
    is_over: bool = False
    for_good: bool = False
