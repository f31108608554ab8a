"""The requests and limits of a whole pod, the QoS class that follows from them, and CPU amounts as the kernel's scheduler takes them. Pure.

Requests and limits are those of the containers, of the pod itself, and its overhead: pod-level resources replace the sum over the
containers; overhead is added. Sums over the containers alone are in
`base.api.resources`. Raises QuantityError for an unreadable amount, which validation has refused before.
Source: KEP-753 (sidecar containers), KEP-2837 (pod-level resources), the Kubernetes documentation "Pod Overhead",
"Pod Quality of Service Classes" and "Resource Management for Pods and Containers"; the kernel's sched-bwc.
"""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.api.core import Pod, ResourceRequirements
from pykubelet.base.api.quantity import Amount, milli_value, parse, value
from pykubelet.base.api.resources import is_pod_level, sum_container_limits, sum_container_requests
from pykubelet.base.kit.values import remember_last


def pod_requests(pod: Pod, *, overhead: bool = True) -> dict[str, Amount]:
    """The pod's requests by resource."""
    total = sum_container_requests(pod.spec)
    stated = pod.spec.resources.requests if pod.spec.resources is not None else {}
    total.update((name, parse(quantity)) for name, quantity in stated.items() if is_pod_level(name))
    if overhead:
        for name, quantity in pod.spec.overhead.items():
            total[name] = total[name] + parse(quantity) if name in total else parse(quantity)
    return total


def pod_limits(pod: Pod, *, overhead: bool = True) -> dict[str, Amount]:
    """The pod's limits by resource, where there are some. Overhead is added only to resources that have a limit."""
    total = sum_container_limits(pod.spec)
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


_COUNTED = ("cpu", "memory")


def _positive(resources: ResourceRequirements | None, which: str) -> dict[str, int]:
    quantities = getattr(resources, which) if resources is not None else {}
    parsed = {name: milli_value(quantities[name]) for name in _COUNTED if name in quantities}
    return {name: milli for name, milli in parsed.items() if milli > 0}


@remember_last
def qos_class(pod: Pod) -> QOSClass:
    """Guaranteed: every container has cpu and memory limits equal to its requests; BestEffort: none has any."""
    spec = pod.spec
    if spec.resources is not None and (spec.resources.requests or spec.resources.limits):
        all_resources: list[ResourceRequirements | None] = [spec.resources]
    else:
        all_resources = [c.resources for c in (*spec.containers, *spec.initContainers)]
    guaranteed = bool(all_resources)
    anything = False
    for resources in all_resources:
        limits = _positive(resources, "limits")
        is_same = resources is None or resources.requests == resources.limits
        requests = limits if is_same else {**limits, **_positive(resources, "requests")}
        anything = anything or bool(requests)
        if len(limits) != len(_COUNTED) or requests != limits:
            guaranteed = False
    if not anything:
        return QOSClass.BEST_EFFORT
    return QOSClass.GUARANTEED if guaranteed else QOSClass.BURSTABLE


MIN_SHARES = 2
MAX_SHARES = 262_144
MIN_QUOTA_US = 1000


def cpu_shares(milli: int) -> int:
    """The shares of `milli` thousandths of a CPU, within the kernel's bounds; the lowest for 0."""
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def cpu_quota_us(milli: int, period_us: int) -> int:
    """Microseconds of CPU per period; 0 (unset) if there is no limit."""
    return max(milli * period_us // 1000, MIN_QUOTA_US) if milli else 0
