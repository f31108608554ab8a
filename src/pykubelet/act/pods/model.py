"""The private values of the pods room: one pod's state, the events that change it, the commands that follow.

Times are monotonic seconds unless a name says wall.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.act.runtime.plan import PodPlan
from pykubelet.act.runtime.plan_resize import Applied
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
    """What is being done to the pod right now; never two at once."""

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
    is_told: bool = False


class PodState(Value):
    """One pod, whole.

    `view` is None until the runtime was looked at once. `look_after`: a view read earlier says nothing. `exits`: when
    each ended container ended, as first seen. `holds`: crash back-off by container; `raising`: what the running sync makes
    of it by its starts. `retry_at`: by container, "" for the pod itself, RESIZE for its resize. `said_held`: ends of
    containers whose back-off was already told. `restarting_all`: from the order to remove all containers on until the
    first starts again; `reset`: what then holds them back; `reset_instances`: those that were removed for it.
    `killed`: why, in words, for the instances that were killed one by one.
    `owed`: those of them that are to be started again, until there is a newer instance; `prompt`:
    those of these whose back-off was over when they were killed.
    `unstarted`: by container, the instance that the last sync created and could not start.
    `content_news`: an object that the pod's start depends on changed during the sync.
    `started_wall`: its date of start, for people; `active_since`: the same moment on the monotonic clock, for its deadline.
    `gone_at`: as in `CleanEnded`. `applied`: what was asked of the runtime for the instances that are there. `starting`: by
    container, what those have that the last sync started. `found`: the size that instances had which the agent did not start
    itself, where that is another than the pod's. `resize`: a new size that does not hold everywhere yet.
    `outside`: the sandbox whose containers run outside of the pod's cgroup, because that was removed under them.
    """

    ref: PodRef
    pod: Pod
    stage: Stage
    started_wall: float
    active_since: float = 0.0
    view: PodView | None = None
    work: Work = Work.NONE
    kill: KillOrder | None = None
    look_after: float = 0.0
    start_errors: Mapping[str, StartError] = field(default_factory=dict)
    exits: Mapping[ContainerID, float] = field(default_factory=dict)
    holds: Mapping[str, CrashHold] = field(default_factory=dict)
    raising: Mapping[str, CrashHold] = field(default_factory=dict)
    retry_at: Mapping[str, float] = field(default_factory=dict)
    pod_error: StartError | None = None
    pod_failures: int = 0
    terminal: bool = False
    removed: bool = False
    gone_at: float | None = None
    restarting_all: bool = False
    reset: ResetHold | None = None
    reset_instances: frozenset[ContainerID] = frozenset()
    said_held: frozenset[ContainerID] = frozenset()
    killed: Mapping[ContainerID, str] = field(default_factory=dict)
    owed: frozenset[ContainerID] = frozenset()
    prompt: frozenset[ContainerID] = frozenset()
    unstarted: Mapping[str, ContainerID] = field(default_factory=dict)
    content_news: bool = False
    applied: Applied = field(default_factory=Applied)
    starting: Mapping[str, ResourceRequirements] = field(default_factory=dict)
    found: SizeChange | None = None
    resize: ResizeProgress | None = None
    outside: SandboxID | None = None

    @property
    def needs_content(self) -> bool:
        """Something failed, or is being tried, that may have to do with objects of the API server."""
        return self.work is Work.SYNC or self.pod_error is not None or bool(self.start_errors)


# Events, in past tense


class SpecChanged(Value):
    pod: Pod
    cause: str


class RuntimeChanged(Value):
    """A newer look at the pod's sandboxes and containers. `wall`: the wall clock at that moment."""

    view: PodView
    wall: float
    cause: str = "runtime changed"


class ProbesChanged(Value):
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

    `unfinished`: it stopped early because something newer is to be looked at. `resized`: what the runtime has taken of a
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
    """The pod's processes are gone, or `error` says why not. `view`: the last look at its containers."""

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


class SayResize(Value):
    """Tell people that a resize has come to its end, or why it does not."""

    pod: Pod
    progress: ResizeProgress
    cause: str


class SayHeld(Value):
    """Tell people that a crash-looping container is held back."""

    container: str
    cause: str


Command = Sync | AbandonSync | StopPod | CleanUp | WakeAt | SayHeld | SayResize
