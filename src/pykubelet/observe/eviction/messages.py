"""The texts of evictions and reclaims: status message and annotations of the Event. Pure.

The strings are those of the reference kubelet, and part of the API. Source: the Kubernetes documentation "Node-pressure Eviction".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.api.quantity import NANO, Amount, Format, canonical, value
from pykubelet.base.model.evictions import EVICTION_SIGNALS, STALL_SCALE, EvictionSignal
from pykubelet.base.model.usage import ContainerUse, PodUse
from pykubelet.config.eviction import Threshold
from pykubelet.observe.eviction.model import Observations
from pykubelet.observe.eviction.thresholds import limit_amount

OFFENDING_CONTAINERS = "offending_containers"
OFFENDING_CONTAINERS_USAGE = "offending_containers_usage"
OFFENDING_POD = "offending_pod"
OFFENDING_POD_USAGE = "offending_pod_usage"
STARVED_RESOURCE = "starved_resource"
Annotations = tuple[tuple[str, str], ...]


def reclaim_message(resource: str) -> str:
    """The message of the node's Event before anything is reclaimed."""
    return f"Attempting to reclaim {resource}"


def eviction_message(
    threshold: Threshold,
    due: Sequence[Threshold],
    observations: Observations,
    victim: tuple[Pod, PodUse | None],
    *,
    pod_level: bool = True,
) -> tuple[str, Annotations]:
    """The message of the pod's status and Event, and the Event's annotations.

    `due`: all thresholds to act on, of which the first of the same resource is named. `pod_level`: gate PodLevelResources.
    """
    resource = EVICTION_SIGNALS[threshold.signal].resource
    if ".stall." in threshold.signal:
        return _stall_message(threshold, observations, resource), ((STARVED_RESOURCE, resource),)
    parts = [f"The node was low on resource: {resource}. ", _threshold_part(resource, due, observations)]
    pod, use = victim
    if use is None:
        return "".join(parts), ()
    annotations: list[tuple[str, str]] = []
    stated = pod.spec.resources
    if pod_level and resource == "memory" and stated is not None and resource in stated.requests:
        part, found = _pod_part(pod, use, stated.requests[resource])
        parts.append(part)
        annotations += found
    names, amounts = [], []
    for container, used, request in _larger(pod, use, resource):
        parts.append(f"Container {container} was using {used}, request is {request}, ")
        parts.append(f"has larger consumption of {resource}. ")
        names.append(container)
        amounts.append(str(used))
    annotations += [
        (OFFENDING_CONTAINERS, ",".join(names)),
        (OFFENDING_CONTAINERS_USAGE, ",".join(amounts)),
        (STARVED_RESOURCE, resource),
    ]
    return "".join(parts), tuple(annotations)


def spoken_amount(signal: EvictionSignal, number: int) -> str:
    """An amount as text, in the unit of the signal."""
    return str(Amount(number * NANO, Format.BINARY_SI if signal.is_bytes else Format.DECIMAL_SI))


def _threshold_part(resource: str, due: Iterable[Threshold], observations: Observations) -> str:
    for threshold in due:
        signal, seen = EVICTION_SIGNALS[threshold.signal], observations.get(threshold.signal)
        if signal.resource == resource and seen is not None:
            limit = limit_amount(threshold.limit, seen.capacity)
            return f"Threshold quantity: {limit}, available: {spoken_amount(signal, seen.available)}. "
    return ""


def _pod_part(pod: Pod, use: PodUse, request: object) -> tuple[str, Annotations]:
    if use.group is None:
        return "", ()
    name, used = pod.metadata.name, _binary(use.group.memory.working_set)
    text = f"Pod {name} was using {used}, request is {canonical(str(request))}, has larger consumption of memory. "
    return text, ((OFFENDING_POD, name), (OFFENDING_POD_USAGE, used))


def _larger(pod: Pod, use: PodUse, resource: str) -> list[tuple[str, str, str]]:
    """Containers that use more than they request: name, use and request."""
    specs: Mapping[str, Container] = {
        container.name: container for container in (*pod.spec.containers, *pod.spec.initContainers)
    }
    found = []
    for container_use in use.containers:
        spec, used = specs.get(container_use.name), _used(container_use, resource)
        if spec is None or used is None:
            continue
        request = spec.resources.requests.get(resource) if spec.resources is not None else None
        if used > value(request):
            found.append((container_use.name, _binary(used), canonical(request) if request is not None else "0"))
    return found


def _used(container: ContainerUse, resource: str) -> int | None:
    if resource == "memory":
        return container.group.memory.working_set
    if resource != "ephemeral-storage":
        return None
    parts = [fs.used for fs in (container.rootfs, container.logs) if fs is not None and fs.used is not None]
    return sum(parts) if parts else None


def _stall_message(threshold: Threshold, observations: Observations, resource: str) -> str:
    """The message for a stall signal, which the reference kubelet does not have."""
    seen, kind = observations.get(threshold.signal), threshold.signal.rpartition(".")[2]
    tasks = "All tasks" if kind == "full" else "Some tasks"
    if seen is None:
        return f"The node was low on resource: {resource}. "
    waited = (seen.capacity - seen.available) / STALL_SCALE
    allowed = (seen.capacity - limit_amount(threshold.limit, seen.capacity).value()) / STALL_SCALE
    return (
        f"The node was low on resource: {resource}. "
        f"{tasks} were stalled {waited:.2f}% of the last 10s, threshold: {allowed:g}%. "
    )


def _binary(number: int) -> str:
    return str(Amount(number * NANO, Format.BINARY_SI))
