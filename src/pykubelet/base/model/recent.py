"""The recent Events, as users see them. `Recent` is written by report/events alone."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent


class Occurrence(Value):
    """One Event with the count of its repetitions. Times are wall seconds; `message` may stand for several similar Events.

    `serial`: the same for all repetitions, and for no other Event.
    """

    kube_event: KubeEvent
    message: str
    first_at: float
    last_at: float
    count: int = 1
    serial: int = 0


class Recent(Value):
    """The newest Events of each pod and of the node, oldest first."""

    pods: Mapping[PodUID, tuple[Occurrence, ...]] = field(default_factory=dict)
    node: tuple[Occurrence, ...] = ()
