"""How far the agent is with each pod. `Lifecycles` is written by act/pods alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from operator import attrgetter

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID
from pykubelet.base.model.sizing import ResizeProgress
from pykubelet.base.model.waits import StoryLine, Wait


class Stage(StrEnum):
    """syncing: made to run; terminating: being stopped; terminated: stopped, being cleaned; finished: nothing left."""

    SYNCING = "syncing"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    FINISHED = "finished"


class KillReason(StrEnum):
    """Why a pod is ended."""

    REMOVED = "removed"  # no longer desired
    RENEWED = "renewed"  # no longer desired, but desired again before it had ended: it goes on as a restart
    DELETED = "deleted"  # deletionTimestamp set
    COMPLETED = "completed"  # its containers have ended for good
    REJECTED = "rejected"
    EVICTED = "evicted"
    DEADLINE = "deadline"
    ORPHANED = "orphaned"  # found in the runtime, wanted by nobody


class StartError(Value):
    """Why a container could not be started the last time: a waiting reason and its message."""

    reason: str
    message: str


class StatusOverride(Value):
    """The phase, reason and message that a kill imposes (rejection, deadline).

    `yields`: it imposes nothing and is why, should the pod end so (preemption): one that ends well has succeeded.
    """

    phase: str
    reason: str
    message: str
    yields: bool = False


class PodLifecycle(Value):
    """One pod's stage and what goes with it.

    `started_at`: wall seconds when the agent first took the pod up (status.startTime). `stage_since`: wall seconds.
    `start_errors`: by container name. `terminal`: the pod's containers have ended for good. `restarting_all`: a
    RestartAllContainers rule has fired and containers are being removed in place. `reset`: the instances that such a rule
    had removed the last time. `owed`: instances that were killed to be started again, whatever their restart policy says.
    `resize`: the pod's size does not hold for all that runs yet. `post_starting`: containers whose postStart hook has not
    ended; until then they do not count as running. `is_held_up`: something that failed is in the way of the pod, so that it
    may take long to get on.
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
    post_starting: frozenset[str] = frozenset()
    owed: frozenset[ContainerID] = frozenset()
    resize: ResizeProgress | None = None
    is_held_up: bool = False
    waits: tuple[Wait, ...] = ()
    story: tuple[StoryLine, ...] = ()

    def means_the_same(self, other: PodLifecycle) -> bool:
        """Whether they differ in waits and story at most, which are for people to ask for: nothing follows from them."""
        return bool(_meaning(self) == _meaning(other))


_meaning = attrgetter(*(name for name in PodLifecycle.__struct_fields__ if name not in ("waits", "story")))


class Lifecycles(Value):
    pods: Mapping[PodUID, PodLifecycle] = field(default_factory=dict)
