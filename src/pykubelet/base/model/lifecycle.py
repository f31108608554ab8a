"""How far the agent is with each pod. `Lifecycles` is written by act/pods alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pykubelet.base.api.core import Pod
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


@dataclass(frozen=True, slots=True)
class StartError:
    """Why a container could not be started the last time: a waiting reason and its message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class StatusOverride:
    """The phase, reason and message that a kill imposes (rejection, eviction, deadline)."""

    phase: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PodLifecycle:
    """One pod's stage and what goes with it.

    `started_at`: wall seconds when the agent first took the pod up (status.startTime). `stage_since`: wall seconds.
    `start_errors`: by container name. `back_offs`: by container name, the wall second until which a crash-looping
    container is held back, and its delay in seconds. `terminal`: the pod's containers have ended for good.
    `restarting_all`: a RestartAllContainers rule has fired and containers are being removed in place. `owed`: instances
    that were killed to be started again, whatever their restart policy says. `resize`: the pod's size does not hold for all that runs yet.
    `post_starting`: containers whose postStart hook has not ended; until then they do not count as running.
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
    post_starting: frozenset[str] = frozenset()
    owed: frozenset[ContainerID] = frozenset()
    resize: ResizeProgress | None = None
    waits: tuple[Wait, ...] = ()
    story: tuple[StoryLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Lifecycles:
    pods: Mapping[PodUID, PodLifecycle] = field(default_factory=dict)
