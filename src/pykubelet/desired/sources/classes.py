"""Remarks about the classes that a static pod names: rules of the API server's admission that nothing applies on a node. Pure.

Source: the Kubernetes documentation "Pod Overhead" and "Pod Priority and Preemption".
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.base.api.core import Pod

#: The classes that every cluster has.
_SYSTEM_CLASSES = ("system-node-critical", "system-cluster-critical")
_NO_CLASS = "an API server refuses pods that have it without a runtimeClassName"
_NO_PRIORITY = (
    "a node without an API server has no PriorityClass: the pod has the priority 0, unless spec.priority is set"
)


def class_remarks(pod: Pod, is_standalone: bool) -> Iterator[tuple[str, str]]:
    """Paths and reasons. `is_standalone`: the node has no API server. A RuntimeClass is looked up when the sandbox is created."""
    spec = pod.spec
    if spec.overhead and not spec.runtimeClassName:
        yield "spec.overhead", _NO_CLASS
    if is_standalone and spec.priorityClassName not in ("", *_SYSTEM_CLASSES) and spec.priority is None:
        yield "spec.priorityClassName", _NO_PRIORITY
