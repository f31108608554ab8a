"""The CPU and memory of a pod that may change while it runs (KEP-1287, KEP-5419), taken apart from the rest of it. Pure.

A pod's size is what each container that can be resized asks for, and what the pod asks for as a whole. The node may let
a pod have another size than its spec says: then the others see the pod in the size it was given.
"""

from __future__ import annotations

import json

from msgspec import Struct

from pykubelet.base.api.core import Container, Pod, ResourceRequirements
from pykubelet.base.api.quantity import milli_value, value
from pykubelet.base.kit.values import Value, field, replace

RESTART_CONTAINER = "RestartContainer"
NOTHING = ResourceRequirements()


class Amounts(Value):
    """CPU in milli, memory in bytes; 0: not stated. Limits of the whole pod stand in for those a container lacks."""

    cpu_request: int = 0
    cpu_limit: int = 0
    memory_request: int = 0
    memory_limit: int = 0


class PodSize(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`containers`: by name, all but ephemeral ones. `whole`: what the pod states for itself."""

    containers: dict[str, ResourceRequirements] = {}
    whole: ResourceRequirements | None = None

    def amounts(self, name: str) -> Amounts:
        return amounts_of(self.containers.get(name), self.whole)

    @property
    def whole_amounts(self) -> Amounts:
        return amounts_of(self.whole, None)


class PendingResize(Value):
    """A new size that the node has not given the pod: Kubernetes' reason and message.

    `generation`: of the spec that asks for it. `since`: wall seconds of the first time.
    """

    reason: str
    message: str
    generation: int
    since: float


class ResizeProgress(Value):
    """A size that was given and does not hold for all running containers yet; `error`: why not, when it was tried."""

    generation: int
    error: str = ""


class SizeChange(Value):
    """What the running containers had when the pod was given its size, at `at` (wall seconds)."""

    before: PodSize = field(default_factory=PodSize)
    at: float = 0.0


def resizable(pod: Pod) -> tuple[Container, ...]:
    """The containers of a pod that can be resized, those first that start first."""
    return (*pod.spec.initContainers, *pod.spec.containers)


def size_of(pod: Pod) -> PodSize:
    containers = {c.name: c.resources if c.resources is not None else NOTHING for c in resizable(pod)}
    return PodSize(containers=containers, whole=pod.spec.resources)


def with_size(pod: Pod, size: PodSize) -> Pod:
    """The pod in another size; the very same pod when it has it already. Containers that the size lacks keep theirs."""
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
    """QuantityError for an unreadable amount (validation has refused those)."""
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
    told: dict[str, object] = {}
    for key, containers in (("initContainers", pod.spec.initContainers), ("containers", pod.spec.containers)):
        if containers:
            told[key] = [{"name": c.name, "resources": _listed(c.resources)} for c in containers]
    told["generation"] = generation
    if error:
        told["error"] = error
    return f"{what}: {json.dumps(told, separators=(',', ':'), ensure_ascii=False)}"


def _listed(resources: ResourceRequirements | None) -> dict[str, dict[str, str]]:
    if resources is None:
        return {}
    parts = (("limits", resources.limits), ("requests", resources.requests))
    return {name: {key: str(part[key]) for key in sorted(part)} for name, part in parts if part}
