"""CPU rates, from the kernel's counters at two times. Pure.

Rules: a rate covers at least `RATE_OVER_S`, if a reading that old is known, since a container that works once a second has used
nothing most of the time. A cgroup that the earlier reading lacks is measured since it was started. Source: the Kubernetes documentation
"Node metrics data" (`usageNanoCores`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.usage import GroupUse, NodeUse, PodUse

RATE_OVER_S = 5.0
#: A younger cgroup counts as this old: the runtime has used CPU in it before it reports the start.
YOUNGEST_S = 1.0


class CpuTotals(Value):
    """The CPU time of cgroups in nanoseconds, by path below the mount. `at`: the monotonic second of the reading."""

    at: float
    used_ns: Mapping[str, int]


#: Earlier readings, oldest first, `RATE_OVER_S` apart.
Readings = tuple[CpuTotals, ...]


def add_reading(readings: Readings, now: CpuTotals) -> Readings:
    """Keep a reading for later rates, unless the last one is newer than `RATE_OVER_S`. Two are enough for any time from now on."""
    return readings if readings and now.at - readings[-1].at < RATE_OVER_S else (*readings, now)[-2:]


def base_of(readings: Readings, at: float) -> CpuTotals | None:
    """The reading with which one at `at` is compared: the newest that is old enough, else the oldest; None if there is none."""
    return next(
        (reading for reading in reversed(readings) if at - reading.at >= RATE_OVER_S), readings[0] if readings else None
    )


def totals_of(at: float, node: NodeUse, pods: Mapping[PodUID, PodUse]) -> CpuTotals:
    """The CPU time in a measurement that was made at the monotonic second `at`."""
    return CpuTotals(at, {group.path: group.cpu.total_ns for group in _groups(node, pods)})


def _groups(node: NodeUse, pods: Mapping[PodUID, PodUse]) -> Iterator[GroupUse]:
    yield node.group
    yield from node.system.values()
    for pod in pods.values():
        if pod.group is not None:
            yield pod.group
        yield from (container.group for container in pod.containers)


def with_rate(now: GroupUse, at: float, base: CpuTotals | None, started_at: float | None = None) -> GroupUse:
    """The usage with its CPU rate since `base`; without one if nothing is known about an earlier time.

    `at`: the monotonic second of the measurement. `started_at`: the wall second at which the cgroup had used nothing.
    """
    before = base.used_ns.get(now.path) if base is not None else None
    used_ns = now.cpu.total_ns
    if base is not None and before is not None and before <= used_ns:  # else another cgroup of the same name
        used_ns, passed_s = used_ns - before, at - base.at
    elif started_at is not None and now.at >= started_at:
        passed_s = max(now.at - started_at, YOUNGEST_S)
    else:
        return now
    return replace(now, nano_cores=int(used_ns / passed_s)) if passed_s > 0 else now


def node_with_rates(now: NodeUse, at: float, base: CpuTotals | None) -> NodeUse:
    """The node's usage with CPU rates. `at`: see `with_rate`."""
    system = {name: with_rate(group, at, base) for name, group in now.system.items()}
    return replace(now, group=with_rate(now.group, at, base), system=system)


def pod_with_rates(now: PodUse, at: float, base: CpuTotals | None) -> PodUse:
    """The pod's usage with CPU rates. `at`: see `with_rate`. The cgroup of a pod is older than a second sandbox."""
    containers = tuple(replace(c, group=with_rate(c.group, at, base, c.started_at)) for c in now.containers)
    started_at = now.started_at if now.sandbox_attempt == 0 else None
    group = with_rate(now.group, at, base, started_at) if now.group is not None else None
    return replace(now, group=group, containers=containers)
