"""The values of the pod state machine: one pod's state, the events that change it, the commands that follow.

Times are monotonic seconds unless a name has `wall` in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Self

from pykubelet.act.pods.backoff import START_RETRY_S, BackOffInputs, CrashBackOffs, RestartVerdict
from pykubelet.act.pods.sandbox_loss import SandboxLoss
from pykubelet.act.runtime.plan.plan import Applied, ContainerResize, PodPlan, is_under_way
from pykubelet.base.api.core import Pod, ResourceRequirements
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.ids import ContainerID, PodRef, SandboxID
from pykubelet.base.model.lifecycle import KillReason, Stage, StartError, StatusOverride
from pykubelet.base.model.observed import ContainerView, PodView, Started
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.sizing import ResizeProgress, SizeChange, same_resources, size_of


class PodSizes(Value):
    """The resources of one pod's instances, and how far its resize has come.

    Methods return the next value; reports are resizes for an Event.

    Rules:
    - The resources of each container instance are known from its start on. A running container that was adopted has the pod's
      size. If the pod was resized after the container was created, it has the size before the resize.
    - A resize is in progress until all running containers have the new size. A newer size replaces it.
    - A failed resize is tried again after a pause. Each new reason is reported once, and so is the completion.
    """

    #: The resources that were requested from the runtime for the existing instances.
    applied: Applied = field(default_factory=Applied)
    #: By container name, the resources of the containers that the last syncs have started.
    starting: Mapping[str, ResourceRequirements] = field(default_factory=dict)
    #: The size of instances that an earlier run of the agent has started, if it differs from the pod's.
    adopted: SizeChange | None = None
    #: A resize that is not complete yet.
    resize: ResizeProgress | None = None
    #: When to try a failed resize again, in monotonic seconds.
    retry_at: float | None = None
    #: Extensions are to be asked again for the values of the instances that are there first.
    asks_again: bool = False
    #: Those of these instances that they have not been asked for yet.
    unasked: frozenset[ContainerID] = frozenset()

    @classmethod
    def of_adopted(cls, pod: Pod, change: SizeChange | None) -> Self:
        """The value of a pod that an earlier run of the agent may have started. `change`: of its size since then."""
        return cls(adopted=change, resize=_begun(pod) if change is not None else None)

    def after_spec(self, before: Pod, pod: Pod) -> Self:
        """The value after the pod has changed."""
        return self if same_resources(size_of(before), size_of(pod)) else replace(self, resize=_begun(pod))

    def after_view(self, pod: Pod, view: PodView) -> Self:
        """The value with the resources of each instance in the newest view."""
        here = {c.id: c for c in view.containers}
        if self.asks_again and here:
            earlier = frozenset(id_ for id_, container in here.items() if container.name not in self.starting)
            return replace(self, asks_again=False, unasked=earlier).after_view(pod, view)
        if here.keys() == self.applied.containers.keys():
            return self
        applied = self.applied
        if here and applied == Applied():
            applied = Applied(whole=self._first_whole(pod, here.values()))
        sizes = size_of(pod).containers
        given = {}
        for instance, container in here.items():
            known = applied.containers.get(instance)
            if known is not None or container.name in sizes:
                given[instance] = known if known is not None else self._first_given(container, sizes)
        return replace(self, applied=applied if given == applied.containers else replace(applied, containers=given))

    def _first_whole(self, pod: Pod, here: Iterable[ContainerView]) -> ResourceRequirements | None:
        """The pod-level resources that were applied before this agent started."""
        if self.adopted is not None and any(container.created_at / 1e9 < self.adopted.at for container in here):
            return self.adopted.before.whole
        return pod.spec.resources

    def _first_given(self, container: ContainerView, sizes: Mapping[str, ResourceRequirements]) -> ResourceRequirements:
        if container.name in self.starting:
            return self.starting[container.name]
        adopted, name = self.adopted, container.name
        if adopted is not None and container.created_at / 1e9 < adopted.at and name in adopted.before.containers:
            return adopted.before.containers[name]
        return sizes[name]

    def rewrites(self, view: PodView, plan: PodPlan) -> tuple[ContainerResize, ...]:
        """The running containers of an earlier run of the agent that extensions are still to be asked for, with the size that they have."""
        busy = {kill.container.id for kill in plan.kills} | {change.instance for change in plan.resizes}
        due = self.unasked.intersection(self.applied.containers) - busy
        running = [container for container in view.running if container.id in due]
        amounts = {container.id: self.applied.amounts(container.id) for container in running}
        return tuple(ContainerResize(c.name, c.id, amounts[c.id], amounts[c.id]) for c in running)

    def before_sync(self, pod: Pod, starts: Collection[str], *, is_new_sandbox: bool) -> Self:
        """The value when a sync is about to start these containers with the pod's current size."""
        sizes = size_of(pod).containers
        starting = {**self.starting, **{name: sizes[name] for name in starts if name in sizes}}
        applied = replace(self.applied, whole=pod.spec.resources) if is_new_sandbox else self.applied
        return replace(self, starting=starting, applied=applied)

    def after_sync(self, resized: Applied | None, error: str, now: float) -> tuple[Self, tuple[ResizeProgress, ...]]:
        """The value after a sync, and the reports. `resized`: the resources that the runtime has applied; `error`: why not all."""
        sizes = replace(self, retry_at=now + START_RETRY_S if error else None)
        if resized is not None:
            given = {**self.applied.containers, **resized.containers}
            unasked = self.unasked.difference(resized.containers)
            sizes = replace(sizes, applied=Applied(given, resized.whole), unasked=unasked)
        if self.resize is None or self.resize.error == error or not error:
            return sizes, ()
        failed = replace(self.resize, error=error)
        return replace(sizes, resize=failed), (failed,)

    def after_step(self, pod: Pod, view: PodView, *, is_at_rest: bool) -> tuple[Self, tuple[ResizeProgress, ...]]:
        """The value after any event, and the reports. `is_at_rest`: no work is running, and the view shows the last one."""
        if is_under_way(pod, view, self.applied):
            return (replace(self, resize=_begun(pod)), ()) if self.resize is None else (self, ())
        if self.resize is None or not is_at_rest:
            return self, ()
        return replace(self, resize=None), (replace(self.resize, error=""),)

    def without_pause(self) -> Self:
        """The value of which a failed resize is tried again at once."""
        return replace(self, retry_at=None) if self.retry_at is not None else self

    def without_resize(self) -> Self:
        """The value of a pod that is not resized any more."""
        return replace(self, resize=None) if self.resize is not None else self


def _begun(pod: Pod) -> ResizeProgress:
    return ResizeProgress(pod.metadata.generation or 0)


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
    removed_at: float | None = None
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
    outside_cgroup: SandboxID | None = None

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
    """The clean-up has ended. `removed_at`: when the pod's last container and sandbox were removed, in monotonic seconds; None if
    nothing was to be removed, or if the removal is not certain."""

    error: str = ""
    removed_at: float | None = None
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

    def left(self, name: str) -> tuple[ContainerView, ...]:
        """The instances of a container that the plan does not remove, newest first."""
        return tuple(found for found in self.view.instances(name) if found.id not in self.plan.remove)


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


class ReportStay(Value):
    """Record the Event that an extension does not let a container start again."""

    container: str
    verdict: RestartVerdict
    cause: str = "an extension has decided so"


Command = Sync | AbandonSync | StopPod | CleanUp | WakeAt | ReportBackOff | ReportResize | ReportStay
