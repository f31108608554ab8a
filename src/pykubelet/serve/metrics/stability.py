"""The stability levels that Kubernetes' programs write in front of each metric's help text. Pure.

cAdvisor's metrics, the process's own (`process_...` of `/metrics`) and those of this project (`pykubelet_...`) have none.
Source: the Kubernetes documentation "Kubernetes Metrics Reference".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pykubelet.base.kit.metrics import MetricFamily
from pykubelet.base.kit.values import replace
from pykubelet.base.model.version import CURRENT, Release
from pykubelet.serve.metrics.releases import is_beta

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
