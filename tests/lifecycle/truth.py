"""What really happened on a node: every sandbox, container instance, hook and probe, with the times.

The doubles write it, or `real.py` from what a real runtime shows; the model (`model.py`) computes from it what the node
should do and report. Times are seconds, virtual ones on doubles.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

Json = dict[str, Any]
#: What an agent removes at its start may be gone before it makes a status.
AT_ONCE_S = 0.1


class By(StrEnum):
    """The cause of an end."""

    ITSELF = "itself"
    AGENT = "the agent"
    OUTSIDE = "outside"
    POWER = "a power cut"


@dataclass
class Box:
    """A sandbox. `removed_at`: the runtime has nothing of it any more."""

    id: str
    attempt: int
    created_at: float
    ended_at: float | None = None
    removed_at: float | None = None
    by: By = By.AGENT


@dataclass
class Probed:
    """One answer of a probe's command."""

    kind: str
    at: float
    is_ok: bool


@dataclass
class Instance:
    """A container instance. `count`: the restart count that the agent has given it. `taken`: removed from outside. `tried`: the
    agent has asked for its start, whether or not it came; None: a real runtime does not show that.

    `hooked`: None until its postStart hook has ended, then whether it succeeded, at `hooked_at`; `hooks`: when it began.
    `stop_at`: when the agent asked for its end, the last time.
    """

    id: str
    name: str
    box: str
    attempt: int
    count: int
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    removed_at: float | None = None
    taken: bool = False
    tried: bool | None = False
    code: int = 0
    reason: str = ""
    by: By = By.AGENT
    hooked: bool | None = None
    hooked_at: float | None = None
    stop_at: float | None = None
    hooks: list[float] = field(default_factory=list)
    probed: list[Probed] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self.started_at is not None and self.ended_at is None


@dataclass
class Life:
    """One life of the agent."""

    began_at: float
    ended_at: float | None = None


@dataclass
class PodTruth:
    """One pod, by UID. `gone_at`: when it ceased to be desired. `over`: its terminal phase, once it has ended for good, seen at
    `over_at`.

    `has_past`: it was desired before under this UID, and its containers and their counts may go on. `forgotten_at`: when a power
    cut may have lost what was known of it, or when the agent has started since; the API server has the status of its pods.
    `counts_lost`: what was kept may be of the time before it was desired again. `resized_at`: when its first container got another
    size. `lost`: instances that are not known, except by their logs or by what the agent has made of them.
    """

    uid: str
    name: str
    spec: Json
    is_static: bool
    wanted_at: float
    gone_at: float | None = None
    over: str = ""
    over_at: float = 0.0
    has_past: bool = False
    forgotten_at: float = 0.0
    counts_lost: bool = False
    resized_at: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    lost: list[Instance] = field(default_factory=list)

    def without_lost(self) -> PodTruth:
        """The pod without what was not in the runtime any more after the last power cut, when the agent had read it."""

        def is_kept(removed_at: float | None) -> bool:
            return removed_at is None or removed_at > self.forgotten_at + AT_ONCE_S

        boxes = [b for b in self.boxes if is_kept(b.removed_at)]
        instances = [i for i in self.instances if is_kept(i.removed_at)]
        lost = [i for i in self.instances if not is_kept(i.removed_at)]
        return replace(self, has_past=True, boxes=boxes, instances=instances, lost=lost)

    @property
    def stops(self) -> bool:
        """Whether it is not desired any more."""
        return self.gone_at is not None

    def begins_anew(self, life: Life) -> bool:
        """Whether its next sandbox is that of a pod under the same UID that follows on from nothing: its manifest was away, or
        an agent that has started since its end has found nothing of it."""
        is_gone = all(i.removed_at is not None for i in self.instances)
        return self.stops or (self.is_static and bool(self.over) and life.began_at > self.over_at and is_gone)

    def of(self, name: str) -> list[Instance]:
        """All instances of a container, oldest first."""
        return [instance for instance in self.instances if instance.name == name]


@dataclass
class Truth:
    """All of it. `lives`: of the agent, the last one runs unless it has ended."""

    pods: dict[str, PodTruth] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    boxes: dict[str, tuple[PodTruth, Box]] = field(default_factory=dict)
    instances: dict[str, tuple[PodTruth, Instance]] = field(default_factory=dict)
