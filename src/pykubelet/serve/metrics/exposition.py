"""Metrics as text, in Prometheus' exposition format. Pure.

Owns: escaping, numbers, the order of lines, and the stability levels that Kubernetes' programs write in front of each help text: cAdvisor's
metrics, the process's own (`process_...` of `/metrics`) and those of this project (`pykubelet_...`) have none.
Source: the Prometheus documentation "Exposition formats", the Kubernetes documentation "Kubernetes Metrics Reference".
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator

from pykubelet.base.kit.metrics import Labels, MetricFamily
from pykubelet.base.kit.values import replace
from pykubelet.base.model.version import CURRENT, Release
from pykubelet.serve.metrics.releases import is_beta

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
#: Whole numbers below this are written without a fraction and exactly.
_EXACT = 10**15
_UNUSUAL = {float("inf"): "+Inf", float("-inf"): "-Inf"}


class _Labels(dict[Labels, str]):
    """A cache of labels as text, because many families have the same or similar labels."""

    def __init__(self) -> None:
        self._pairs = _Pairs()

    def __missing__(self, labels: Labels) -> str:
        text = "{" + ",".join(map(self._pairs.__getitem__, labels)) + "}" if labels else ""
        self[labels] = text
        return text


class _Pairs(dict[tuple[str, str], str]):
    """A cache of single labels with their values as text."""

    def __missing__(self, pair: tuple[str, str]) -> str:
        text = self[pair] = f'{pair[0]}="{_escaped(pair[1])}"'
        return text


class _Numbers(dict[float, str]):
    """A cache of values as text, because many values are equal."""

    def __missing__(self, value: float) -> str:
        text = self[value] = _number(value)
        return text


def render_metrics(families: Iterable[MetricFamily]) -> bytes:
    """Render metric families. Families without samples are left out."""
    lines: list[str] = []
    labels, numbers = _Labels(), _Numbers()
    at: float | None = None
    stamp = ""
    for family in families:
        name = family.name
        before = len(lines)
        lines += (f"# HELP {name} {_help(family.help)}", f"# TYPE {name} {family.kind}")
        for sample in family.samples:
            if sample.at != at:
                at = sample.at
                stamp = f" {int(at * 1000)}" if at is not None else ""
            lines.append(f"{name}{sample.suffix}{labels[sample.labels]} {numbers[sample.value]}{stamp}")
        if len(lines) == before + 2:
            del lines[before:]
    lines.append("")
    return "\n".join(lines).encode()


def with_labels(labels: Labels, *more: tuple[str, str]) -> Labels:
    """Add labels to sorted labels, keeping the order."""
    found = list(labels)
    for pair in more:
        insort(found, pair)
    return tuple(found)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value) if abs(value) < _EXACT else repr(float(value))
    if value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return _UNUSUAL.get(value) or ("NaN" if value != value else repr(value))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


_STABLE = frozenset(
    {
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_start_time_seconds",
        "kubernetes_healthcheck",
        "kubernetes_healthchecks_total",
        "node_cpu_usage_seconds_total",
        "node_memory_working_set_bytes",
        "pod_cpu_usage_seconds_total",
        "pod_memory_working_set_bytes",
        "resource_scrape_error",
    }
)
_BETA = frozenset(
    {
        "kubelet_image_volume_mounted_errors_total",
        "kubelet_image_volume_mounted_succeed_total",
        "kubelet_image_volume_requested_total",
        "kubernetes_build_info",
        "kubernetes_feature_enabled",
        "prober_probe_total",
    }
)
_INTERNAL = frozenset({"kubelet_first_network_pod_start_sli_duration_seconds"})
_LEVELS = {
    name: level for level, names in (("STABLE", _STABLE), ("BETA", _BETA), ("INTERNAL", _INTERNAL)) for name in names
}
_WITHOUT = ("process_", "pykubelet_")


def with_stability(
    families: Iterable[MetricFamily], release: Release = CURRENT, *, without: tuple[str, ...] = _WITHOUT
) -> Iterator[MetricFamily]:
    """The families with their levels in their help texts. A metric that is in none of the lists is an alpha metric.

    `without`: prefixes of metrics without a level.
    """
    for family in families:
        if family.name.startswith(without):
            yield family
        else:
            level = "BETA" if is_beta(family.name, release) else _LEVELS.get(family.name, "ALPHA")
            yield replace(family, help=f"[{level}] {family.help}")
