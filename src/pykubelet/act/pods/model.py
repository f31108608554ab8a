"""The values of the pod state machine: one pod's state, the events that change it, the commands that follow.

Times are monotonic seconds unless a name has `wall` in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.act.pods.backoff import BackOffInputs, CrashBackOffs
from pykubelet.act.pods.sandbox_loss import SandboxLoss
from pykubelet.act.pods.sizes import PodSizes
from pykubelet.act.runtime.plan.plan import Applied, PodPlan
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import ContainerID, PodRef, SandboxID
from pykubelet.base.model.lifecycle import KillReason, Stage, StartError, StatusOverride
from pykubelet.base.model.observed import ContainerView, PodView, Started
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.sizing import ResizeProgress

#: Kills after which the pod's containers, sandboxes, logs and directories are removed.
REMOVING = frozenset({KillReason.REMOVED, KillReason.DELETED, KillReason.ORPHANED})


class Work(StrEnum):
    """The work that is running for the pod; only one kind at a time."""

    NONE = "none"
    SYNC = "sync"
    STOP = "stop"
    CLEAN = "clean"


class KillOrder(Value):
    """Why and how the pod is killed. `grace_s` is never raised."""

    reason: KillReason
    grace_s: int
    override: StatusOverride | None = None


class PodFailure(Value):
    """The failure of a step for the whole pod: the last error, and how many there were in a row.

    `retry_at`: None: the step may be tried again at once.
    """

    error: StartError
    count: int
    retry_at: float | None = None


class PodWorkerState(Value):
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
    #: Views whose read began earlier are not used for plans, because the last work may have changed the pod since.
    read_after: float = 0.0
    start_errors: Mapping[str, StartError] = field(default_factory=dict)
    #: What keeps containers from starting.
    back_offs: CrashBackOffs = field(default_factory=CrashBackOffs)
    failure: PodFailure | None = None
    #: The containers have ended for good.
    terminal: bool = False
    #: Containers, sandboxes and logs are removed.
    removed: bool = False
    #: As in `CleanEnded`.
    gone_at: float | None = None
    #: True from the command that removes all containers until the first one starts again.
    restarting_all: bool = False
    #: The instances that were removed for this restart of all.
    reset_instances: frozenset[ContainerID] = frozenset()
    #: Why instances were killed one by one, as a message.
    killed: Mapping[ContainerID, str] = field(default_factory=dict)
    #: Killed instances that must be restarted; each until a newer instance exists.
    to_restart: frozenset[ContainerID] = frozenset()
    #: An API object that the pod's start depends on has changed during the sync.
    content_changed: bool = False
    sizes: PodSizes = field(default_factory=PodSizes)
    #: The instances of `uncounted` are left out of `view`.
    loss: SandboxLoss = field(default_factory=SandboxLoss)
    #: Running containers whose postStart hook is not known to have ended, with the least attempt of the instance.
    unhooked: Mapping[str, int] = field(default_factory=dict)
    #: The sandbox whose containers run outside of the pod's cgroup, because the cgroup was removed while they ran.
    outside: SandboxID | None = None

    @property
    def needs_content(self) -> bool:
        """Whether a failure or the running sync may depend on API objects."""
        return self.work is Work.SYNC or self.failure is not None or bool(self.start_errors)

    def back_off_inputs(self, policy: BackoffPolicy) -> BackOffInputs:
        """What the back-off of the containers depends on now."""
        return BackOffInputs(self.pod, self.view, policy, self.loss.taken_back)


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
    """An API object has changed that the start of the pod's sandbox or of a container depends on."""

    cause: str = "content changed"


class RuntimeRestarted(Value):
    """The container runtime has restarted, so failed steps may be retried at once."""

    cause: str = "runtime restarted"


class CgroupGone(Value):
    """The pod's cgroup was removed while containers of this sandbox run."""

    sandbox: SandboxID
    cause: str = "the pod's cgroup is gone"


class KillRequested(Value):
    """The pod is to be killed. `grace_s`: seconds; None for the pod's own grace period."""

    reason: KillReason
    cause: str
    grace_s: int | None = None
    override: StatusOverride | None = None


class TimerFired(Value):
    """A requested wake-up time was reached. `cause`: for the pod's history."""

    cause: str = "timer"


class StartFailed(Value):
    """A container could not be started. `retry_at` None: after `START_RETRY_S`.

    `instance`: an instance that was started, and stopped again because its postStart hook failed; it counts as ended.
    `unstarted`: an instance that was created but could not be started. When the runtime shows it as ended, its crash back-off
    replaces the pause.
    """

    error: StartError
    retry_at: float | None = None
    instance: ContainerID | None = None
    unstarted: ContainerID | None = None


class SyncEnded(Value):
    """The outcome of a sync. `started`, `failed`: by container name. `pod_error`: the failure of a step for the whole pod.

    `unfinished`: it stopped early because a newer event must be decided on. `resized`: the resources that the runtime has
    applied; `resize_error`: why not all were applied. `made`: the started containers, if the sync only started containers.
    `unhooked`: containers whose postStart hook has not ended, with the least attempt of the instance.
    """

    started: tuple[str, ...] = ()
    failed: Mapping[str, StartFailed] = field(default_factory=dict)
    pod_error: StartError | None = None
    unfinished: bool = False
    cause: str = "sync ended"
    resized: Applied | None = None
    resize_error: str = ""
    made: Started | None = None
    unhooked: Mapping[str, int] = field(default_factory=dict)


class StopEnded(Value):
    """The pod's processes have ended, or `error` has the reason why not. `view`: the last view of its containers."""

    view: PodView | None = None
    error: str = ""
    cause: str = "stop ended"


class CleanEnded(Value):
    """The clean-up has ended. `gone_at`: when the pod's last container and sandbox were removed, in monotonic seconds; None if
    nothing was to be removed, or if the removal is not certain."""

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
    | TimerFired
    | SyncEnded
    | StopEnded
    | CleanEnded
)


# Commands, in the imperative


class Sync(Value):
    """Carry out `plan` for `pod`. `view` and `applied`: the inputs of the plan. `uncounted`: instances that are removed with their
    logs before a sandbox is created; the next ones get their restart counts."""

    pod: Pod
    plan: PodPlan
    view: PodView
    cause: str
    applied: Applied = field(default_factory=Applied)
    uncounted: tuple[ContainerView, ...] = ()


class AbandonSync(Value):
    """End the running sync: when it next waits (`hard` False), or now, by cancelling the running calls (`hard` True).

    `is_outdated`: the pod has changed, so the sync must not start another container.
    """

    hard: bool
    cause: str
    is_outdated: bool = False


class StopPod(Value):
    """Stop all containers within `grace_s`, then the sandboxes. A second command with a shorter grace period replaces the first."""

    pod: Pod
    grace_s: int
    cause: str


class CleanUp(Value):
    """Release volumes and cgroup; with `remove`, remove containers, sandboxes and logs too."""

    remove: bool
    cause: str


class WakeAt(Value):
    """Send `TimerFired` at this time; replaces an earlier request."""

    at: float


class ReportResize(Value):
    """Record the Event that a resize has completed, or why it fails."""

    pod: Pod
    progress: ResizeProgress
    cause: str


class ReportBackOff(Value):
    """Record the Event that a crash-looping container is in back-off."""

    container: str
    cause: str


Command = Sync | AbandonSync | StopPod | CleanUp | WakeAt | ReportBackOff | ReportResize
