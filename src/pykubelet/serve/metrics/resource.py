"""`/metrics/resource`: CPU, memory and swap of the node, its pods and containers. Pure.

Source: the Kubernetes documentation "Node metrics data"; KEP-2371's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pykubelet.base.kit.metrics import MetricFamily, MetricSample
from pykubelet.base.kit.values import Value
from pykubelet.base.model.usage import GroupUse, Usage

NANO = 1e9
Labels = tuple[tuple[str, str], ...]
Read = Callable[[GroupUse], float | None]


class _Metric(Value):
    name: str
    kind: str
    help: str
    read: Read


_CPU = "Cumulative cpu time consumed by the {} in core-seconds"
_MEMORY = "Current working set of the {} in bytes"
_NODE_SWAP = "Current swap usage of the node in bytes. Reported only on non-windows systems"
_SWAP = "Current amount of the {} swap usage in bytes. Reported only on non-windows systems"


def _of(owner: str, swap: str = _SWAP) -> tuple[_Metric, ...]:
    return (
        _Metric(f"{owner}_cpu_usage_seconds_total", "counter", _CPU.format(owner), lambda g: g.cpu.total_ns / NANO),
        _Metric(f"{owner}_memory_working_set_bytes", "gauge", _MEMORY.format(owner), lambda g: g.memory.working_set),
        _Metric(f"{owner}_swap_usage_bytes", "gauge", swap.format(owner), lambda g: g.memory.swap),
    )


_CONTAINER = (
    *_of("container"),
    _Metric(
        "container_swap_limit_bytes",
        "gauge",
        "Current amount of the container swap limit in bytes. Reported only on non-windows systems",
        lambda g: g.memory.swap_limit,
    ),
)
_NODE, _POD = _of("node", _NODE_SWAP), _of("pod")


def resource_families(usage: Usage, *, with_hidden: bool = False) -> Iterator[MetricFamily]:
    """All metric families. The error metric is 1 if the usage could not be read."""
    if usage.node is not None:
        yield from _families(_NODE, [((), usage.node.group)])
    containers: list[tuple[Labels, GroupUse]] = []
    started: list[MetricSample] = []
    pods: list[tuple[Labels, GroupUse]] = []
    for pod in usage.pods.values():
        of_pod = (("namespace", pod.ref.namespace), ("pod", pod.ref.name))
        if pod.group is not None:
            pods.append((of_pod, pod.group))
        for container in pod.containers:
            labels = (("container", container.name), *of_pod)
            containers.append((labels, container.group))
            started.append(MetricSample(container.started_at, labels))
    yield from _families(_CONTAINER, containers)
    yield MetricFamily(
        "container_start_time_seconds",
        "gauge",
        "Start time of the container since unix epoch in seconds",
        started,
    )
    yield from _families(_POD, pods)
    failed = MetricSample(1.0 if usage.error else 0.0)
    yield MetricFamily("resource_scrape_error", "gauge", _SCRAPE, [failed])
    if with_hidden:  # the former name of the same metric
        yield MetricFamily("scrape_error", "gauge", f"(Deprecated since 1.29.0) {_SCRAPE}", [failed])


_SCRAPE = "1 if there was an error while getting container metrics, 0 otherwise"


def _families(metrics: tuple[_Metric, ...], groups: list[tuple[Labels, GroupUse]]) -> Iterator[MetricFamily]:
    for metric in metrics:
        samples = [
            MetricSample(value, labels, group.at)
            for labels, group in groups
            if (value := metric.read(group)) is not None
        ]
        yield MetricFamily(metric.name, metric.kind, metric.help, samples)
