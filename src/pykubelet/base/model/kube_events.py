"""Kubernetes Events as values: what a component reports to users about an object.

Components post `KubeEvent`s to one mailbox. report/events decides where they go: to the agent's log and each pod's timeline
if there is no API server, to the API as Events if there is one.
"""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef


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
