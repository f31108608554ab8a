"""Metrics of device plugins."""

from __future__ import annotations

from pykubelet.base.kit.metrics import Counter, Histogram

REGISTRATIONS = Counter(
    "kubelet_device_plugin_registration_total",
    "Cumulative number of device plugin registrations. Broken down by resource name.",
    ("resource_name",),
)
ALLOCATIONS = Histogram(
    "kubelet_device_plugin_alloc_duration_seconds",
    "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
    ("resource_name",),
)
