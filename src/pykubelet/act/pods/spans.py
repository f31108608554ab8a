"""The spans of a pod's work, with the names and attributes of the reference kubelet."""

from __future__ import annotations

from pykubelet.act.pods.model import SyncEnded
from pykubelet.base.kit.tracing import NO_SPAN, NoSpan, Span, is_traced, span
from pykubelet.base.model.ids import PodRef


def pod_span(name: str, ref: PodRef, update_type: str = "") -> Span | NoSpan:
    """A span of one pod. `update_type`: create, update or sync."""
    if not is_traced():
        return NO_SPAN
    attributes = {
        "k8s.pod.uid": str(ref.uid),
        "k8s.pod": f"{ref.namespace}/{ref.name}",
        "k8s.pod.name": ref.name,
        "k8s.namespace.name": ref.namespace,
    }
    if update_type:
        attributes["k8s.pod.update_type"] = update_type
    return span(name, attributes=attributes)


def first_failure(ended: SyncEnded) -> str:
    """Why a sync has failed: the error of the pod, else that of a container, else of a resize. Empty if it has not."""
    if ended.pod_error is not None:
        return ended.pod_error.message
    failed = next(iter(ended.failed.values()), None)
    return failed.error.message if failed is not None else ended.resize_error
