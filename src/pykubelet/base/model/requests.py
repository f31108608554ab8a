"""Computes the requests and limits of a whole pod: those of its containers, of the pod itself, and its overhead. Pure.

Pod-level resources replace the sum over the containers; overhead is added. Sums over the containers alone are in
`base.api.resources`. Raises QuantityError for an unreadable amount, which validation has refused before.
Source: KEP-753 (sidecar containers), KEP-2837 (pod-level resources), the Kubernetes documentation "Pod Overhead".
"""

from __future__ import annotations

from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import Amount, parse, value
from pykubelet.base.api.resources import is_pod_level, sum_container_limits, sum_container_requests


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
