"""Quality-of-service class of a pod. Source: the Kubernetes documentation "Pod Quality of Service Classes"."""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.api.core import Pod, ResourceRequirements
from pykubelet.base.api.quantity import milli_value
from pykubelet.base.kit.remember import remember_last


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
