"""What a whole pod requests and may use: of its containers together, of the pod itself, and its overhead. Pure.

What the pod states as a whole takes the place of the sum of its containers; overhead comes on top. Sums of the
containers alone are in `base.api.resources`. QuantityError for an unreadable amount (validation has refused those).
Source: KEP-753 (sidecar containers), KEP-2837 (pod-level resources), the Kubernetes documentation "Pod Overhead".
"""

from __future__ import annotations

from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import Amount, parse, value
from pykubelet.base.api.resources import is_pod_level, sum_container_limits, sum_container_requests


def pod_requests(pod: Pod, *, overhead: bool = True) -> dict[str, Amount]:
    """By resource."""
    total = sum_container_requests(pod.spec)
    stated = pod.spec.resources.requests if pod.spec.resources is not None else {}
    total.update((name, parse(quantity)) for name, quantity in stated.items() if is_pod_level(name))
    if overhead:
        for name, quantity in pod.spec.overhead.items():
            total[name] = total[name] + parse(quantity) if name in total else parse(quantity)
    return total


def pod_limits(pod: Pod, *, overhead: bool = True) -> dict[str, Amount]:
    """By resource, where anything is limited; overhead is added to what has a limit."""
    total = sum_container_limits(pod.spec)
    stated = pod.spec.resources.limits if pod.spec.resources is not None else {}
    total.update((name, parse(quantity)) for name, quantity in stated.items() if is_pod_level(name))
    if overhead:
        for name, quantity in pod.spec.overhead.items():
            if name in total and total[name].nano:
                total[name] = total[name] + parse(quantity)
    return total


def is_limited(pod: Pod, resource: str) -> bool:
    """Whether no container is free to take more of it: the pod as a whole has a limit, or each of them has."""
    spec = pod.spec
    if spec.resources is not None and value(spec.resources.limits.get(resource)):
        return True
    containers = (*spec.containers, *spec.initContainers)
    return all(c.resources is not None and value(c.resources.limits.get(resource)) for c in containers)
