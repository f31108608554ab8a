"""What metrics-server 0.8 makes of a scrape of `/metrics/resource`, and `kubectl top` of two of them.

The rules are those of its scraper and storage: samples are read by Prometheus' own parser; a node or pod with an incomplete
or zero figure is left out; a rate is what two points of one container's life differ by.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

PodKey = tuple[str, str]


@dataclass
class Point:
    """`cpu` in core-seconds, `memory` in bytes, times in wall seconds; 0: not reported."""

    cpu: float = 0.0
    memory: float = 0.0
    at: float = 0.0
    started_at: float = 0.0

    @property
    def is_whole(self) -> bool:
        return bool(self.cpu and self.memory and self.at)


@dataclass
class Batch:
    """`pods`: by namespace and name, then by container."""

    node: Point | None = None
    pods: dict[PodKey, dict[str, Point]] = field(default_factory=dict)


def decode(text: str) -> Batch:
    """A scrape, without what is not whole."""
    node = Point()
    pods: dict[PodKey, dict[str, Point]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name, at = sample.name, float(sample.timestamp or 0)
            if name.startswith("node_"):
                point = node
            elif name.startswith("container_"):
                key = sample.labels["namespace"], sample.labels["pod"]
                point = pods.setdefault(key, {}).setdefault(sample.labels["container"], Point())
            else:
                continue
            if name.endswith("_cpu_usage_seconds_total"):
                point.cpu, point.at = sample.value, at
            elif name.endswith("_memory_working_set_bytes"):
                point.memory, point.at = sample.value, point.at or at
            elif name == "container_start_time_seconds":
                point.started_at = sample.value
    whole = {key: points for key, points in pods.items() if all(point.is_whole for point in points.values())}
    return Batch(node if node.is_whole else None, whole)


def usage(before: Point, now: Point) -> tuple[float, float] | None:
    """Cores and bytes, as `kubectl top` shows them; None: these two give no rate."""
    if now.at <= before.at or now.cpu < before.cpu or now.started_at >= now.at or now.started_at != before.started_at:
        return None
    return (now.cpu - before.cpu) / (now.at - before.at), now.memory


def top(before: Batch, now: Batch) -> dict[str, tuple[float, float]]:
    """`node`, and each pod by its name, that has a figure for all its containers."""
    reported = {}
    if before.node is not None and now.node is not None and (node := usage(before.node, now.node)) is not None:
        reported["node"] = node
    for key, points in now.pods.items():
        old = before.pods.get(key, {})
        found = [usage(old[name], point) if name in old else None for name, point in points.items()]
        rates = [rate for rate in found if rate is not None]
        if len(rates) == len(found):
            reported[key[1]] = sum(cpu for cpu, _ in rates), sum(memory for _, memory in rates)
    return reported
