"""Finds a pod's containers by name, and the field paths by which Events refer to them. Pure."""

from __future__ import annotations

from pykubelet.base.api.core import Container, EphemeralContainer, Pod
from pykubelet.base.kit.remember import remember_last


def container_field_path(pod: Pod, name: str) -> str:
    """`spec.containers{name}`, `spec.initContainers{name}` or `spec.ephemeralContainers{name}`; empty when unknown."""
    found = _by_name(pod).get(name)
    return f"spec.{found[0]}{{{name}}}" if found is not None else ""


def find_container(pod: Pod, name: str) -> Container | EphemeralContainer | None:
    """The container of that name among regular, init and ephemeral ones."""
    found = _by_name(pod).get(name)
    return found[1] if found is not None else None


@remember_last
def _by_name(pod: Pod) -> dict[str, tuple[str, Container | EphemeralContainer]]:
    """The containers by name, each with the list that it is in."""
    spec = pod.spec
    found: dict[str, tuple[str, Container | EphemeralContainer]] = {}
    for where, containers in (
        ("ephemeralContainers", spec.ephemeralContainers),
        ("initContainers", spec.initContainers),
        ("containers", spec.containers),
    ):
        found.update((container.name, (where, container)) for container in containers)
    return found


def every_container(pod: Pod) -> tuple[Container | EphemeralContainer, ...]:
    """All regular, init and ephemeral containers of the pod."""
    return (*pod.spec.containers, *pod.spec.initContainers, *pod.spec.ephemeralContainers)
