"""The size of a pod: its resources that may change while it runs (KEP-1287, KEP-5419), separate from the rest. Pure.

A pod's size is the resources of each container that can be resized, and the pod-level resources. The node may run a pod
with another size than its spec has. Other components then see the pod with the size that the node has allocated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from msgspec import Struct

from pykubelet.base.api.core import Container, Pod, ResourceRequirements
from pykubelet.base.api.quantity import milli_value, value
from pykubelet.base.kit.values import Value, field, replace

RESTART_CONTAINER = "RestartContainer"
NOTHING = ResourceRequirements()


class Amounts(Value):
    """Requests and limits: CPU in milli, memory in bytes; 0: not set. Pod-level limits replace those a container lacks."""

    cpu_request: int = 0
    cpu_limit: int = 0
    memory_request: int = 0
    memory_limit: int = 0


class PodSize(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod's size. `containers`: by name, without ephemeral ones. `whole`: the pod-level resources."""

    containers: Mapping[str, ResourceRequirements] = field(default_factory=dict)
    whole: ResourceRequirements | None = None

    def amounts(self, name: str) -> Amounts:
        """The amounts of one container; pod-level limits replace those that it lacks."""
        return amounts_of(self.containers.get(name), self.whole)

    @property
    def whole_amounts(self) -> Amounts:
        """The pod-level amounts; all 0 if there are none."""
        return amounts_of(self.whole, None)


class PendingResize(Value):
    """A requested size that the node has not allocated: Kubernetes' reason and message.

    `generation`: that of the spec that asks for it. `since`: the wall second at which it became pending.
    """

    reason: str
    message: str
    generation: int
    since: float


class ResizeProgress(Value):
    """An allocated size that does not hold for all running containers yet. `error`: why the last attempt failed."""

    generation: int
    error: str = ""


class SizeChange(Value):
    """The size that the running containers had when the node allocated the new one, at `at` (wall seconds)."""

    before: PodSize = field(default_factory=PodSize)
    at: float = 0.0


def resizable(pod: Pod) -> tuple[Container, ...]:
    """The containers of a pod that can be resized, in the order of their start."""
    return (*pod.spec.initContainers, *pod.spec.containers)


def size_of(pod: Pod) -> PodSize:
    """The size that the pod's spec asks for."""
    containers = {c.name: c.resources if c.resources is not None else NOTHING for c in resizable(pod)}
    return PodSize(containers=containers, whole=pod.spec.resources)


def with_size(pod: Pod, size: PodSize) -> Pod:
    """The pod with another size; the same object if it has that size already. Containers missing in `size` keep theirs."""
    if same_size(size_of(pod), size):
        return pod

    def resized(container: Container) -> Container:
        found = size.containers.get(container.name)
        return container if found is None or found == container.resources else replace(container, resources=found)

    spec = replace(
        pod.spec,
        containers=tuple(resized(c) for c in pod.spec.containers),
        initContainers=tuple(resized(c) for c in pod.spec.initContainers),
        resources=size.whole,
    )
    return replace(pod, spec=spec)


def same_size(one: PodSize, other: PodSize) -> bool:
    """Whether both mean the same amounts, however they are written."""
    if one.whole_amounts != other.whole_amounts:
        return False
    names = one.containers.keys() | other.containers.keys()
    return all(
        one.containers.get(name) == other.containers.get(name)
        or amounts_of(one.containers.get(name), None) == amounts_of(other.containers.get(name), None)
        for name in names
    )


def amounts_of(resources: ResourceRequirements | None, whole: ResourceRequirements | None) -> Amounts:
    """The amounts of `resources`; limits of `whole` replace missing ones. Raises QuantityError for an unreadable amount."""
    requests = resources.requests if resources is not None else {}
    own = resources.limits if resources is not None else {}
    limits = {**whole.limits, **own} if whole is not None else own
    return Amounts(
        cpu_request=milli_value(requests.get("cpu")),
        cpu_limit=milli_value(limits.get("cpu")),
        memory_request=value(requests.get("memory")),
        memory_limit=value(limits.get("memory")),
    )


def size_in_words(what: str, pod: Pod, generation: int, error: str = "") -> str:
    """The message of an Event about a resize: `what`, then the sizes of all containers as JSON."""
    fields: dict[str, object] = {}
    for key, containers in (("initContainers", pod.spec.initContainers), ("containers", pod.spec.containers)):
        if containers:
            fields[key] = [{"name": c.name, "resources": _listed(c.resources)} for c in containers]
    fields["generation"] = generation
    if error:
        fields["error"] = error
    return f"{what}: {json.dumps(fields, separators=(',', ':'), ensure_ascii=False)}"


def _listed(resources: ResourceRequirements | None) -> dict[str, dict[str, str]]:
    if resources is None:
        return {}
    parts = (("limits", resources.limits), ("requests", resources.requests))
    return {name: {key: str(part[key]) for key in sorted(part)} for name, part in parts if part}
