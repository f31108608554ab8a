"""Finds a pod's containers by name, and the field paths by which Events refer to them. Pure."""

from __future__ import annotations

from pykubelet.base.api.core import Container, EphemeralContainer, Pod


def container_field_path(pod: Pod, name: str) -> str:
    """`spec.containers{name}`, `spec.initContainers{name}` or `spec.ephemeralContainers{name}`; empty when unknown."""
    if any(c.name == name for c in pod.spec.containers):
        return f"spec.containers{{{name}}}"
    if any(c.name == name for c in pod.spec.initContainers):
        return f"spec.initContainers{{{name}}}"
    if any(c.name == name for c in pod.spec.ephemeralContainers):
        return f"spec.ephemeralContainers{{{name}}}"
    return ""


def every_container(pod: Pod) -> tuple[Container | EphemeralContainer, ...]:
    """All regular, init and ephemeral containers of the pod."""
    return (*pod.spec.containers, *pod.spec.initContainers, *pod.spec.ephemeralContainers)
