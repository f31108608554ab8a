"""What a whole pod requests: of its containers together, of the pod itself, and its overhead. Pure.

Source: KEP-753 (sidecar containers), KEP-2837 (pod-level resources), the Kubernetes documentation "Pod Overhead".
"""

from __future__ import annotations

from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import Amount, parse
from pykubelet.base.api.resources import sum_container_requests

HUGE_PAGES = "hugepages-"
_POD_LEVEL = ("cpu", "memory")


def pod_requests(pod: Pod) -> dict[str, Amount]:
    """By resource. What the pod states as a whole takes the place of the sum; overhead comes on top."""
    total = sum_container_requests(pod.spec)
    stated = pod.spec.resources.requests if pod.spec.resources is not None else {}
    for name, quantity in stated.items():
        if name in _POD_LEVEL or name.startswith(HUGE_PAGES):
            total[name] = parse(quantity)
    for name, quantity in pod.spec.overhead.items():
        total[name] = total[name] + parse(quantity) if name in total else parse(quantity)
    return total
