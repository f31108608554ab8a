"""Metrics of the CPU, Memory and Topology Manager."""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.kit.metrics import Counter, Gauge, Histogram
from pykubelet.provide.placement import cpu_manager, memory_manager, pod_level, topology_scopes
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.provider import MetricIncrement

_BOUNDARY = ("scope", "boundary")
_COUNTERS = {
    counter.name: counter
    for counter in (
        Counter(cpu_manager.REQUESTS, "The number of cpu core allocations which required pinning."),
        Counter(cpu_manager.ERRORS, "The number of cpu core allocations which required pinning failed."),
        Counter(memory_manager.REQUESTS, "The number of memory pages allocations which required pinning."),
        Counter(memory_manager.ERRORS, "The number of memory pages allocations which required pinning that failed."),
        Counter(topology_scopes.REQUESTS, "The number of admission requests where resources have to be aligned."),
        Counter(
            topology_scopes.ERRORS, "The number of admission request failures where resources could not be aligned."
        ),
        Counter(
            cpu_manager.ALIGNED,
            "Cumulative number of aligned compute resources allocated to containers by alignment type.",
            _BOUNDARY,
        ),
        Counter(
            cpu_manager.ALIGNED_FAILURE,
            "Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
            _BOUNDARY,
        ),
        Counter(
            pod_level.ALLOCATIONS,
            "Number of exclusive resource allocations performed by a resource manager.",
            ("resource_name", "source"),
        ),
        Counter(
            pod_level.ALLOCATION_ERRORS,
            "Number of errors encountered during exclusive resource allocation.",
            ("resource_name", "source"),
        ),
        Counter(
            pod_level.ASSIGNMENTS,
            "Number of containers with a specific type of resource assignment.",
            ("resource_name", "assignment_type"),
        ),
    )
}
DURATION = Histogram(
    "kubelet_topology_manager_admission_duration_ms",
    "Duration in milliseconds to serve a pod admission request.",
    bounds=(0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2),
)
SHARED_POOL = Gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
)
EXCLUSIVE = Gauge(
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "The total number of CPUs exclusively allocated to containers running on this node",
)
PER_NODE = Gauge("kubelet_cpu_manager_allocation_per_numa", "Number of CPUs allocated per NUMA node", ("numa_node",))


def count_increments(increments: Iterable[MetricIncrement]) -> None:
    """Count what has happened in an topology_scopes."""
    for increment in increments:
        _COUNTERS[increment.metric].inc(*(label for _, label in increment.labels))


def show_initial(managers: Managers) -> None:
    """Show the series that exist from the start, with the value 0."""
    increments = cpu_manager.INITIAL_INCREMENTS if managers.cpus is not None else ()
    for increment in (*increments, *topology_scopes.initial_increments(managers.topology)):
        _COUNTERS[increment.metric].inc(*(label for _, label in increment.labels), by=0.0)
    SHARED_POOL.set(0)
    EXCLUSIVE.set(0)
    show_gauges(managers)


def show_gauges(managers: Managers) -> None:
    """Show how many CPUs are shared and how many exclusive."""
    if managers.cpus is None:
        return
    now = cpu_manager.gauges(managers.cpus.policy, managers.cpus.state)
    SHARED_POOL.set(now.shared_pool_millicores)
    EXCLUSIVE.set(now.exclusive)
    for node, count in now.per_node.items():
        PER_NODE.set(count, str(node))
