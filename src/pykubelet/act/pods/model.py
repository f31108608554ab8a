"""The values of the pod state machine: one pod's state, the events that change it, the commands that follow.

Times are monotonic seconds unless a name says wall.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.act.runtime.plan.plan import PodPlan
from pykubelet.act.runtime.plan.plan_resize import Applied
from pykubelet.base.api.core import Pod, ResourceRequirements
from pykubelet.base.kit.backoff import Backoff
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import ContainerID, PodRef, SandboxID
from pykubelet.base.model.lifecycle import KillReason, Stage, StartError, StatusOverride
from pykubelet.base.model.observed import PodView, Started
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.sizing import ResizeProgress, SizeChange

#: The key of a resize in `PodState.retry_at`; no container can have this name.
RESIZE = "/resize"
#: Kills after which nothing of the pod is kept: containers, sandboxes, logs and directories go.
REMOVING = frozenset({KillReason.REMOVED, KillReason.DELETED, KillReason.ORPHANED})


class Work(StrEnum):
    """The work under way for the pod; never two kinds at once."""

    NONE = "none"
    SYNC = "sync"
    STOP = "stop"
    CLEAN = "clean"


class KillOrder(Value):
    """Why and how the pod is ended. `grace_s` only shrinks."""

    reason: KillReason
    grace_s: int
    override: StatusOverride | None = None


class CrashHold(Value):
    """A container held back after it ended again: its back-off entry, and the identity it counts for."""

    key: str
    entry: Backoff


class ResetHold(Value):
    """All containers were removed, to start again at `free_at`: `container` has asked for it, again and again."""

    container: str
    free_at: float
    delay_s: float
    is_reported: bool = False


class PodState(Value):
    """The state of one pod. The state machine in `decide.py` maps it and an event to the next state and commands."""

    ref: PodRef
    pod: Pod
    stage: Stage
    #: The pod's start date for its status, wall seconds.
    started_wall: float
    #: The same moment on the monotonic clock, for `activeDeadlineSeconds`.
    active_since: float = 0.0
    #: None until the runtime was read once.
    view: PodView | None = None
    work: Work = Work.NONE
    kill: KillOrder | None = None
    #: Views whose read began earlier are not decided on: the last work may have changed the pod since.
    read_after: float = 0.0
    start_errors: Mapping[str, StartError] = field(default_factory=dict)
    #: When each exited container has exited, as first seen.
    exits: Mapping[ContainerID, float] = field(default_factory=dict)
    #: Crash back-off by container name.
    holds: Mapping[str, CrashHold] = field(default_factory=dict)
    #: The crash back-off that holds once the starts of the running sync have been made.
    pending_holds: Mapping[str, CrashHold] = field(default_factory=dict)
    #: When to retry, by container name; "" is the pod itself, RESIZE its resize.
    retry_at: Mapping[str, float] = field(default_factory=dict)
    pod_error: StartError | None = None
    pod_failures: int = 0
    #: The containers have ended for good.
    terminal: bool = False
    #: Containers, sandboxes and logs are removed.
    removed: bool = False
    #: As in `CleanEnded`.
    gone_at: float | None = None
    #: From the order to remove all containers on, until the first starts again.
    restarting_all: bool = False
    #: What delays that start.
    reset: ResetHold | None = None
    #: The instances that were removed for it.
    reset_instances: frozenset[ContainerID] = frozenset()
    #: Exited instances whose back-off was reported by an Event.
    reported_backoffs: frozenset[ContainerID] = frozenset()
    #: Why instances were killed one by one, as a message.
    killed: Mapping[ContainerID, str] = field(default_factory=dict)
    #: Killed instances that must be restarted, until there is a newer instance.
    owed: frozenset[ContainerID] = frozenset()
    #: Those of them whose back-off had passed when they were killed.
    restart_without_backoff: frozenset[ContainerID] = frozenset()
    #: By container name, the instance that the last sync created and could not start.
    unstarted: Mapping[str, ContainerID] = field(default_factory=dict)
    #: An API object that the pod's start depends on has changed during the sync.
    content_changed: bool = False
    #: The resources that the runtime was asked for, of the instances that are there.
    applied: Applied = field(default_factory=Applied)
    #: By container name, the resources of those that the last sync has started.
    starting: Mapping[str, ResourceRequirements] = field(default_factory=dict)
    #: The size of instances that an earlier run of the agent has started, where it is not the pod's.
    adopted_size: SizeChange | None = None
    #: A new size that does not hold everywhere yet.
    resize: ResizeProgress | None = None
    #: The sandbox whose containers run outside of the pod's cgroup, because that was removed under them.
    outside: SandboxID | None = None

    @property
    def needs_content(self) -> bool:
        """Whether a failure, or the sync under way, may depend on objects of the API server."""
        return self.work is Work.SYNC or self.pod_error is not None or bool(self.start_errors)


# Events, in past tense


class SpecChanged(Value):
    """The desired pod object has changed. `cause`: for the pod's history."""

    pod: Pod
    cause: str


class RuntimeChanged(Value):
    """A newer view of the pod's sandboxes and containers. `wall`: the wall clock at that moment."""

    view: PodView
    wall: float
    cause: str = "runtime changed"


class ProbesChanged(Value):
    """Newer results of the pod's probes. `cause`: for the pod's history."""

    probes: ProbeResults
    cause: str = "probe result changed"


class ContentChanged(Value):
    """An object of the API server that the start of the pod's sandbox or of a container depends on has changed."""

    cause: str = "content changed"


class RuntimeRestarted(Value):
    """The container runtime was away and is back: what failed before may be tried at once."""

    cause: str = "runtime restarted"


class CgroupGone(Value):
    """The pod's cgroup is not there any more while containers of this sandbox run."""

    sandbox: SandboxID
    cause: str = "the pod's cgroup is gone"


class KillRequested(Value):
    """`grace_s` None: the pod's own."""

    reason: KillReason
    cause: str
    grace_s: int | None = None
    override: StatusOverride | None = None


class Woke(Value):
    """A requested wake-up time was reached. `cause`: for the pod's history."""

    cause: str = "timer"


class StartFailed(Value):
    """A container could not be started. `retry_at` None: after the ordinary pause.

    `instance`: the one that did start and was stopped again, because its postStart hook failed: it has ended as any other.
    `unstarted`: the one that was created and could not be started; once the runtime shows that it has ended, its crash
    back-off counts instead of the pause.
    """

    error: StartError
    retry_at: float | None = None
    instance: ContainerID | None = None
    unstarted: ContainerID | None = None


class SyncEnded(Value):
    """What a sync came to. `started` and `failed` by container name; `pod_error` when it got no further than the pod.

    `unfinished`: it stopped early because something newer must be decided on. `resized`: what the runtime has taken of a
    new size; `resize_error`: why not all of it. `made`: the containers it has started, when it did nothing else.
    """

    started: tuple[str, ...] = ()
    failed: Mapping[str, StartFailed] = field(default_factory=dict)
    pod_error: StartError | None = None
    unfinished: bool = False
    cause: str = "sync ended"
    resized: Applied | None = None
    resize_error: str = ""
    made: Started | None = None


class StopEnded(Value):
    """The pod's processes are gone, or `error` says why not. `view`: the last view of its containers."""

    view: PodView | None = None
    error: str = ""
    cause: str = "stop ended"


class CleanEnded(Value):
    """`gone_at`: when the runtime had removed the last of the pod; None when that was not to be, or is not sure."""

    error: str = ""
    gone_at: float | None = None
    cause: str = "clean-up ended"


Event = (
    SpecChanged
    | RuntimeChanged
    | ProbesChanged
    | ContentChanged
    | RuntimeRestarted
    | CgroupGone
    | KillRequested
    | Woke
    | SyncEnded
    | StopEnded
    | CleanEnded
)


# Commands, in the imperative


class Sync(Value):
    """Carry out `plan` for `pod`; `view` and `applied` are what it was made from."""

    pod: Pod
    plan: PodPlan
    view: PodView
    cause: str
    applied: Applied = field(default_factory=Applied)


class AbandonSync(Value):
    """End the running sync: at the next pause (`hard` False), or now, cancelling the calls under way.

    `is_outdated`: its pod has changed, and nothing more is started by it.
    """

    hard: bool
    cause: str
    is_outdated: bool = False


class StopPod(Value):
    """Stop all containers within `grace_s`, then the sandboxes. Given again with a shorter grace, it hurries."""

    pod: Pod
    grace_s: int
    cause: str


class CleanUp(Value):
    """Release volumes and cgroup; with `remove`, remove containers, sandboxes and logs too."""

    remove: bool
    cause: str


class WakeAt(Value):
    """Send `Woke` at this time; replaces an earlier request."""

    at: float


class ReportResize(Value):
    """Emit the Event that a resize has completed, or why it fails."""

    pod: Pod
    progress: ResizeProgress
    cause: str


class ReportBackOff(Value):
    """Emit the Event that a crash-looping container is in back-off."""

    container: str
    cause: str


Command = Sync | AbandonSync | StopPod | CleanUp | WakeAt | ReportBackOff | ReportResize
