"""Kubernetes Events as values: what a component reports to users about an object.

Components post `KubeEvent`s to one mailbox. report/events decides where they go: to the agent's log and each pod's timeline
if there is no API server, to the API as Events if there is one. It alone writes `Recent`, the last ones as users see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef, PodUID


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class EventObject(Value):
    """An object of the core API that is neither the node nor a pod. `namespace`: "" for cluster-wide kinds."""

    kind: str
    namespace: str
    name: str
    uid: str


class KubeEvent(Value):
    """One Event. `pod` is None for Events about the node; `field_path` names the container, as `container_field_path`.

    `about`: the object of an Event that has come from work for the pod, but is about something else.
    """

    type: EventType
    reason: str
    message: str
    pod: PodRef | None = None
    field_path: str = ""
    annotations: tuple[tuple[str, str], ...] = field(default=())
    about: EventObject | None = None


def normal(reason: str, message: str, pod: PodRef | None = None, field_path: str = "") -> KubeEvent:
    """An Event of type Normal, about the pod, or about the node if `pod` is None."""
    return KubeEvent(EventType.NORMAL, reason, message, pod, field_path)


def warning(reason: str, message: str, pod: PodRef | None = None, field_path: str = "") -> KubeEvent:
    """An Event of type Warning, about the pod, or about the node if `pod` is None."""
    return KubeEvent(EventType.WARNING, reason, message, pod, field_path)


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
