"""What a pod requests and may use as a whole, and its size: the part of that which may change while it runs. Pure.

Requests and limits are those of the containers, of the pod itself, and its overhead: pod-level resources replace the sum over the
containers; overhead is added. The QoS class follows from them. Sums over the containers alone are in `base.api.quantity`. Raises
QuantityError for an unreadable amount, which validation has refused before.

A pod's size is the resources of each container that can be resized, the pod-level resources, and the limits of its volumes in
memory. The node may run a pod with another size than its spec has. Other components then see the pod with the size that the node
has allocated.
Source: KEP-753 (sidecar containers), KEP-2837 (pod-level resources), KEP-1287, KEP-5419 and KEP-6030 (resize), the Kubernetes
documentation "Pod Overhead", "Pod Quality of Service Classes" and "Resource Management for Pods and Containers"; the kernel's
sched-bwc.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from pykubelet.base.api.core import (
    Container,
    NodeAllocatableResourceClaimStatus,
    Pod,
    Quantity,
    ResourceRequirements,
    Volume,
)
from pykubelet.base.api.quantity import (
    Amount,
    is_pod_level,
    milli_value,
    parse,
    sum_container_limits,
    sum_container_requests,
    value,
)
from pykubelet.base.kit.values import Value, field, remember_last, replace


def pod_requests(pod: Pod, *, overhead: bool = True) -> dict[str, Amount]:
    """The pod's requests by resource, with what it has through claims, except of resources that it states as a whole."""
    total = sum_container_requests(pod.spec)
    for name, claimed in claimed_by_pod(pod).items():
        total[name] = total[name] + claimed if name in total else claimed
    stated = pod.spec.resources.requests if pod.spec.resources is not None else {}
    total.update((name, parse(quantity)) for name, quantity in stated.items() if is_pod_level(name))
    if overhead:
        for name, quantity in pod.spec.overhead.items():
            total[name] = total[name] + parse(quantity) if name in total else parse(quantity)
    return total


def pod_limits(pod: Pod, *, overhead: bool = True) -> dict[str, Amount]:
    """The pod's limits by resource, where there are some. Overhead and claims are added only to resources that have a limit."""
    total = sum_container_limits(pod.spec)
    for name, claimed in claimed_by_pod(pod).items():
        if name in total:
            total[name] = total[name] + claimed
    stated = pod.spec.resources.limits if pod.spec.resources is not None else {}
    total.update((name, parse(quantity)) for name, quantity in stated.items() if is_pod_level(name))
    if overhead:
        for name, quantity in pod.spec.overhead.items():
            if name in total and total[name].nano:
                total[name] = total[name] + parse(quantity)
    return total


def is_limited(pod: Pod, resource: str) -> bool:
    """Whether the use of `resource` is bounded: the pod as a whole has a limit, or every container has."""
    spec = pod.spec
    if spec.resources is not None and value(spec.resources.limits.get(resource)):
        return True
    containers = (*spec.containers, *spec.initContainers)
    return all(c.resources is not None and value(c.resources.limits.get(resource)) for c in containers)


class QOSClass(StrEnum):
    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


_CLASSES = frozenset(QOSClass)
_COUNTED = ("cpu", "memory")


def _positive(resources: ResourceRequirements | None, which: str) -> dict[str, int]:
    quantities = getattr(resources, which) if resources is not None else {}
    parsed = {name: milli_value(quantities[name]) for name in _COUNTED if name in quantities}
    return {name: milli for name, milli in parsed.items() if milli > 0}


@remember_last
def qos_class(pod: Pod) -> QOSClass:
    """Guaranteed: every container has cpu and memory limits equal to its requests; BestEffort: none has any.

    That of the API server counts, which has its own gates. Resources of the pod as a whole count in place of those of the containers,
    unless they are empty.
    """
    if pod.status.qosClass in _CLASSES:
        return QOSClass(pod.status.qosClass)
    spec = pod.spec
    if spec.resources is not None and (spec.resources.requests or spec.resources.limits):
        all_resources: list[ResourceRequirements | None] = [spec.resources]
    else:
        all_resources = [c.resources for c in (*spec.containers, *spec.initContainers)]
    guaranteed = bool(all_resources)
    has_requests = False
    for resources in all_resources:
        limits = _positive(resources, "limits")
        is_same = resources is None or resources.requests == resources.limits
        requests = limits if is_same else {**limits, **_positive(resources, "requests")}
        has_requests = has_requests or bool(requests)
        if len(limits) != len(_COUNTED) or requests != limits:
            guaranteed = False
    if not has_requests:
        return QOSClass.BEST_EFFORT
    return QOSClass.GUARANTEED if guaranteed else QOSClass.BURSTABLE


# CPU amounts as the kernel's scheduler takes them

MIN_SHARES = 2
MAX_SHARES = 262_144
MIN_QUOTA_US = 1000


def cpu_shares(milli: int) -> int:
    """The shares of `milli` thousandths of a CPU, within the kernel's bounds; the lowest for 0."""
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def cpu_quota_us(milli: int, period_us: int) -> int:
    """Microseconds of CPU per period; 0 (unset) if there is no limit."""
    return max(milli * period_us // 1000, MIN_QUOTA_US) if milli else 0


# What a pod has through its claims, as devices of a driver: CPU, memory and huge pages (KEP-5517)
#
# The scheduler writes it into the pod's status. A `mapping` is a part of the node that is the device itself; `overhead` is used beside a
# device. The pod's cgroup is larger by each claim once, and by `perContainer` for each container that refers to the claim; the limit of
# such a container is larger by all of it. Requests of containers stay as they are, except for the OOM score.

_NO_AMOUNT = Amount(0)


class _Claimed(Value):
    """What a pod has through claims, by resource. `limits`, `memory`: by container: what it may use, and its share in bytes."""

    total: Mapping[str, Amount] = field(default_factory=dict)
    limits: Mapping[str, Mapping[str, Amount]] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)


def claimed_by_pod(pod: Pod) -> Mapping[str, Amount]:
    """What the pod has through claims, by resource."""
    return _claimed(pod).total


def with_claimed(limits: Mapping[str, Quantity], pod: Pod, container: str) -> Mapping[str, Quantity]:
    """The limits of a container, larger by what it may use of claims. Resources without a limit have none after it either."""
    extra = _claimed(pod).limits.get(container)
    if extra is None:
        return limits
    return {name: str(parse(limit) + extra[name]) if name in extra else limit for name, limit in limits.items()}


def claimed_memory(pod: Pod, container: str) -> int:
    """The container's share, in bytes, of the memory that the pod has through claims."""
    return _claimed(pod).memory.get(container, 0)


@remember_last
def _claimed(pod: Pod) -> _Claimed:
    total: dict[str, Amount] = {}
    limits: dict[str, dict[str, Amount]] = {}
    memory: dict[str, int] = {}
    for claim in pod.status.nodeAllocatableResourceClaimStatuses:
        count = len(claim.containers)
        for name, once, each in _parts(claim):
            _add(total, name, Amount(once.nano + each.nano * count, once.format))
            for container in claim.containers:
                _add(limits.setdefault(container, {}), name, once + each)
                if name == "memory":
                    memory[container] = memory.get(container, 0) + once.value() // count + each.value()
    return _Claimed(total, limits, memory)


def _parts(claim: NodeAllocatableResourceClaimStatus) -> Iterator[tuple[str, Amount, Amount]]:
    """The resources of a claim: what the pod has of each once, and for each container that refers to the claim."""
    for mapped in claim.mapping:
        yield mapped.name, parse(mapped.quantity), _NO_AMOUNT
    for overhead in claim.overhead:
        once, each = (
            parse(part) if part is not None else _NO_AMOUNT for part in (overhead.perPod, overhead.perContainer)
        )
        yield overhead.name, once, each


def _add(total: dict[str, Amount], name: str, amount: Amount) -> None:
    total[name] = total[name] + amount if name in total else amount


# The size of a pod

#: The medium of volumes in memory.
MEMORY = "Memory"
RESTART_CONTAINER = "RestartContainer"
NOTHING = ResourceRequirements()


class Amounts(Value):
    """Requests and limits: CPU in milli, memory in bytes; 0: not set. Pod-level limits replace those a container lacks."""

    cpu_request: int = 0
    cpu_limit: int = 0
    memory_request: int = 0
    memory_limit: int = 0


class PodSize(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod's size. `containers`: by name, without ephemeral ones. `whole`: the pod-level resources.

    `volumes`: the `sizeLimit` of the emptyDirs in memory that have one, by name (KEP-6030).
    """

    containers: Mapping[str, ResourceRequirements] = field(default_factory=dict)
    whole: ResourceRequirements | None = None
    volumes: Mapping[str, Quantity] = field(default_factory=dict)

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
    return PodSize(containers=containers, whole=pod.spec.resources, volumes=_limits_of_volumes(pod))


def _limits_of_volumes(pod: Pod) -> dict[str, Quantity]:
    sources = ((volume.name, volume.emptyDir) for volume in pod.spec.volumes)
    return {
        name: source.sizeLimit
        for name, source in sources
        if source is not None and source.medium == MEMORY and source.sizeLimit is not None
    }


#: The file of cgroup v2 at which the kernel throttles.
MEMORY_HIGH = "memory.high"


def memory_high(request: int, limit: int, for_pods: int, factor: float, page: int = 4096) -> int | None:
    """`memory.high` by KEP-2570, in bytes, a multiple of `page`: between the request and the limit, or else the memory for pods.

    None: there is nothing between them to throttle in.
    """
    high = int((request + ((limit or for_pods) - request) * factor) // page) * page
    return high if high > request else None


def with_size(pod: Pod, size: PodSize) -> Pod:
    """The pod with another size; the same object if it has that size already. Containers and volumes missing in `size` keep theirs."""
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
        volumes=_with_limits(pod, size.volumes),
    )
    return replace(pod, spec=spec)


def _with_limits(pod: Pod, limits: Mapping[str, Quantity]) -> tuple[Volume, ...]:
    """The pod's volumes with these limits; the same tuple if they have them."""
    before = _limits_of_volumes(pod)
    changed = {name: limit for name, limit in limits.items() if name in before and before[name] != limit}
    if not changed:
        return pod.spec.volumes
    return tuple(
        replace(volume, emptyDir=replace(volume.emptyDir, sizeLimit=changed[volume.name]))
        if volume.name in changed and volume.emptyDir is not None
        else volume
        for volume in pod.spec.volumes
    )


def same_size(size: PodSize, other: PodSize) -> bool:
    """Whether both mean the same amounts, however they are written."""
    return same_limits(size, other) and same_resources(size, other)


def same_limits(size: PodSize, other: PodSize) -> bool:
    """Whether the volumes that are in both have the same limits."""
    names = size.volumes.keys() & other.volumes.keys()
    return all(value(size.volumes[name]) == value(other.volumes[name]) for name in names)


def same_resources(size: PodSize, other: PodSize) -> bool:
    """Whether both mean the same amounts of the containers and of the pod as a whole."""
    if size.whole_amounts != other.whole_amounts:
        return False
    names = size.containers.keys() | other.containers.keys()
    return all(
        size.containers.get(name) == other.containers.get(name)
        or amounts_of(size.containers.get(name), None) == amounts_of(other.containers.get(name), None)
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
