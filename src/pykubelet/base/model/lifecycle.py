"""The life cycle of each pod: what its pod worker has reached. `Lifecycles` is written by act/pods alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID
from pykubelet.base.model.observed import ContainerView
from pykubelet.base.model.sizing import ResizeProgress


class Stage(StrEnum):
    """syncing: kept running; terminating: being stopped; terminated: stopped, being cleaned up; finished: nothing left."""

    SYNCING = "syncing"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    FINISHED = "finished"


#: Nothing of the pod runs any more.
ENDED_STAGES = (Stage.TERMINATED, Stage.FINISHED)


class KillReason(StrEnum):
    """Why the agent stops a pod."""

    REMOVED = "removed"  # no longer desired
    RENEWED = "renewed"  # no longer desired, but desired again before it had ended: it is restarted
    DELETED = "deleted"  # deletionTimestamp set
    COMPLETED = "completed"  # its containers have ended and are not restarted
    REJECTED = "rejected"
    EVICTED = "evicted"  # its containers are removed soon after
    SHUTDOWN = "shutdown"  # the machine shuts down; its containers are kept, because a static pod counts them at the next start
    DEADLINE = "deadline"
    ORPHANED = "orphaned"  # found in the runtime, wanted by no source


class StartError(Value):
    """Why the last start of a container failed: a waiting reason and its message.

    `extension`: the one that delays the start, which has not failed; empty: there is none.
    """

    reason: str
    message: str
    extension: str = ""


class StatusOverride(Value):
    """The phase, reason and message that a kill sets in the pod's status (rejection, deadline).

    `unless_succeeded`: they are not set if all containers have ended with success (eviction, preemption, shutdown): then the pod has
    succeeded.
    """

    phase: str
    reason: str
    message: str
    unless_succeeded: bool = False


class PodLifecycle(Value):
    """One pod's stage and the state that belongs to it.

    `started_at`: the wall second at which the agent first handled the pod (status.startTime). `stage_since`: wall seconds.
    `start_errors`: by container name. `terminal`: the pod's containers have ended and are not restarted. `restarting_all`:
    a RestartAllContainers rule has fired, and containers are being removed while the pod stays. `reset`: the instances that
    such a rule removed the last time. `to_restart`: instances that were killed in order to be started again, whatever their
    restart policy is. `stays`: ended instances that an extension does not let start again (`restartable_pod`).
    `uncounted`: instances that were started while their sandbox ended, each with the instance
    before it; they are not reported. `resize`: a resize that does not hold for all running containers yet.
    `post_starting`: containers whose postStart hook has not ended, with the attempt that was asked for; until then they do not
    count as running. `ahead`: containers that are created while those before them are being started; until their own start they are
    not reported.
    `is_held_up`: a failure keeps the pod from starting, possibly for long. `is_stopped`: all containers have
    ended and none will be started any more; the pod may still be terminating, because its resource claims are not unprepared yet.
    `has_worker` False: the pod is held up before anything is done for it, so nothing else is known of it. `quarantine`: why it is
    in quarantine, empty if it is not: then nothing of it is started, changed or ended.
    """

    ref: PodRef
    pod: Pod
    stage: Stage
    stage_since: float
    started_at: float
    start_errors: Mapping[str, StartError] = field(default_factory=dict)
    override: StatusOverride | None = None
    kill_reason: KillReason | None = None
    terminal: bool = False
    restarting_all: bool = False
    reset: frozenset[ContainerID] = frozenset()
    post_starting: Mapping[str, int] = field(default_factory=dict)
    ahead: frozenset[str] = frozenset()
    to_restart: frozenset[ContainerID] = frozenset()
    stays: frozenset[ContainerID] = frozenset()
    uncounted: Mapping[ContainerID, ContainerView] = field(default_factory=dict)
    resize: ResizeProgress | None = None
    is_held_up: bool = False
    is_stopped: bool = False
    has_worker: bool = True
    quarantine: str = ""


class Lifecycles(Value):
    """The life cycle of each pod: only what other components decide on. Diagnostics are in `base/model/diagnostics.py`."""

    pods: Mapping[PodUID, PodLifecycle] = field(default_factory=dict)


#: A start that takes longer than this many seconds makes other work wait; a shorter one is over before that has an effect.
LONG_START_S = 0.25


class Starts(Value):
    """Where the runtime is making a sandbox, or a container: since when, in wall seconds, in this order. Written by act/pods alone."""

    since: Mapping[PodUID, float] = field(default_factory=dict)

    def any_long(self, now: float, at_most_s: float) -> bool:
        """Whether a start takes longer than `LONG_START_S`, and not much longer than `at_most_s`. `now`: wall seconds."""
        for since in self.since.values():
            if now - since < at_most_s:
                return now - since >= LONG_START_S
        return False
