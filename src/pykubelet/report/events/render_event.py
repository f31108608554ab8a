"""Renders Events of the API. Pure.

Source: the Kubernetes documentation "Event v1 core"; a kubelet's Events have the component `kubelet` and the node as host.
"""

from __future__ import annotations

from typing import Any

from pykubelet.base.api.core import Event, EventSource, ObjectMeta, ObjectReference
from pykubelet.base.api.times import format_time
from pykubelet.base.model.kube_events import Occurrence
from pykubelet.base.model.node import NodeView

COMPONENT = "kubelet"
DEFAULT_NAMESPACE = "default"
NAME_MAX = 253
_NANO = 1_000_000_000


def render_event(found: Occurrence, node: NodeView, version: str) -> Event:
    """The API Event. `version`: the pod's resource version as known on the node; empty for static pods and the node."""
    kube_event = found.kube_event
    about = involved_object(found, node, version)
    return Event(
        apiVersion="v1",
        kind="Event",
        metadata=ObjectMeta(
            name=event_name(found, node.name),
            namespace=event_namespace(found),
            annotations=dict(kube_event.annotations),
        ),
        involvedObject=about,
        reason=kube_event.reason,
        message=found.message,
        source=EventSource(component=COMPONENT, host=node.name),
        firstTimestamp=format_time(found.first_at),
        lastTimestamp=format_time(found.last_at),
        count=found.count,
        type=kube_event.type.value,
        reportingComponent=COMPONENT,
        reportingInstance=node.name,
    )


def render_repetition(found: Occurrence) -> dict[str, Any]:
    """The patch for an Event that was sent before."""
    return {"count": found.count, "lastTimestamp": format_time(found.last_at), "message": found.message}


def involved_object(found: Occurrence, node: NodeView, version: str) -> ObjectReference:
    """The object of the Event. The node has its UID if it is known, because `kubectl describe node` finds Events by UID."""
    pod, about = found.kube_event.pod, found.kube_event.about
    if about is not None:
        return ObjectReference(
            apiVersion="v1", kind=about.kind, namespace=about.namespace, name=about.name, uid=about.uid
        )
    if pod is None:
        return ObjectReference(apiVersion="v1", kind="Node", name=node.name, uid=node.uid)
    return ObjectReference(
        apiVersion="v1",
        kind="Pod",
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        resourceVersion=version,
        fieldPath=found.kube_event.field_path,
    )


def event_namespace(found: Occurrence) -> str:
    """The namespace of the Event's object; `default` for one that has none, such as the node."""
    about = found.kube_event.about or found.kube_event.pod
    return (about.namespace if about is not None else "") or DEFAULT_NAMESPACE


def event_name(found: Occurrence, node: str) -> str:
    """The object's name, cut if necessary, and the time with the serial added, so that simultaneous Events differ."""
    about = found.kube_event.about or found.kube_event.pod
    end = f".{int(found.first_at * _NANO) + found.serial:x}"
    return (about.name if about is not None else node)[: NAME_MAX - len(end)].rstrip("-.") + end
