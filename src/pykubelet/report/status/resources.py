"""The actual resources of a container, and of a pod as a whole, for the status. Pure.

While a container runs, its CPU and memory are those that the runtime reports as applied; else the published ones, else the
allocated ones. Source: KEP-1287 (in-place update of pod resources), "status.containerStatuses[*].resources".
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api import core
from pykubelet.base.api.core import Quantity
from pykubelet.base.api.quantity import Amount, Format, milli_value, value
from pykubelet.base.kit.values import replace
from pykubelet.base.model.observed import ContainerView, ResourcesView
from pykubelet.base.model.sizing import pod_limits, pod_requests
from pykubelet.report.status.model import StatusFacts

MIN_SHARES = 2
MIN_LIMIT_MILLI = 10
_NANO_OF_MILLI = 1_000_000


def container_resources(
    container: core.Container, newest: ContainerView, old: core.ContainerStatus | None, container_id: str
) -> core.ResourceRequirements:
    """The resources of one container. `old`: the published status; it counts while the same instance runs."""
    allocated = container.resources if container.resources is not None else core.ResourceRequirements()
    if not newest.is_running or not (allocated.limits or allocated.requests):
        return allocated
    applied = newest.resources if newest.resources is not None else ResourcesView()
    same = old is not None and old.containerID == container_id and old.state is not None and old.state.running
    before = old.resources if old is not None and same else None
    return replace(
        allocated,
        limits=_limits(allocated.limits, applied, before.limits if before is not None else {}),
        requests=_requests(allocated.requests, applied, before.requests if before is not None else {}),
    )


def _limits(allocated: dict[str, Quantity], applied: ResourcesView, before: dict[str, Quantity]) -> dict[str, Quantity]:
    reported = dict(allocated)
    if not allocated:
        return reported
    cpu = applied.cpu_quota * 1000 // applied.cpu_period if applied.cpu_period > 0 and applied.cpu_quota > 0 else 0
    if cpu:
        if cpu > MIN_LIMIT_MILLI or milli_value(allocated.get("cpu")) > MIN_LIMIT_MILLI:
            _set_cpu(reported, cpu)
    elif "cpu" in before:
        reported["cpu"] = before["cpu"]
    if applied.memory_limit > 0:
        if value(allocated.get("memory")) != applied.memory_limit:
            reported["memory"] = str(Amount(applied.memory_limit * 1000 * _NANO_OF_MILLI, Format.BINARY_SI))
    elif "memory" in before:
        reported["memory"] = before["memory"]
    return reported


def _requests(
    allocated: dict[str, Quantity], applied: ResourcesView, before: dict[str, Quantity]
) -> dict[str, Quantity]:
    reported = dict(allocated)
    if not allocated:
        return reported
    if applied.cpu_shares > 0:
        cpu = -(-applied.cpu_shares * 1000 // 1024) if applied.cpu_shares >= MIN_SHARES else 0
        if cpu > MIN_SHARES or milli_value(allocated.get("cpu")) > MIN_SHARES:
            _set_cpu(reported, cpu)
    elif "cpu" in before:
        reported["cpu"] = before["cpu"]
    return reported


def _set_cpu(reported: dict[str, Quantity], milli: int) -> None:
    """Set the CPU amount, unless it is already equal, so that its notation is kept."""
    if milli_value(reported.get("cpu")) != milli:
        reported["cpu"] = str(Amount(milli * _NANO_OF_MILLI, Format.DECIMAL_SI))


# The pod as a whole


def pod_allocated(pod: core.Pod) -> dict[str, Quantity]:
    """The pod's allocated resources: its pod-level requests, and the sum of its containers' requests for other resources."""
    return _spelled(pod_requests(pod))


def pod_resources(facts: StatusFacts, allocated: dict[str, Quantity]) -> core.ResourceRequirements | None:
    """The pod-level resources; while a resize is in progress, those before the resize. None: there are none."""
    before = facts.old.resources if facts.old is not None else None
    if facts.lifecycle.resize is not None and before is not None:
        return before
    stated = facts.pod.spec.resources
    found = core.ResourceRequirements(
        claims=stated.claims if stated is not None else (),
        requests=allocated,
        limits=_spelled(pod_limits(facts.pod)),
    )
    return found if found.requests or found.limits or stated is not None else None


def _spelled(amounts: Mapping[str, Amount]) -> dict[str, Quantity]:
    return {name: str(amount) for name, amount in amounts.items()}
