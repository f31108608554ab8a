"""Metrics of image pulls, access checks, garbage collection and credential plugins."""

from __future__ import annotations

from bisect import bisect_left

from pykubelet.base.kit.metrics import Counter, Gauge, Histogram

_MIB, _GIB = 1 << 20, 1 << 30
_SIZES = (
    (10 * _MIB, "0-10MB"),
    (100 * _MIB, "10MB-100MB"),
    (500 * _MIB, "100MB-500MB"),
    (_GIB, "500MB-1GB"),
    (5 * _GIB, "1GB-5GB"),
    (10 * _GIB, "5GB-10GB"),
    (20 * _GIB, "10GB-20GB"),
    (30 * _GIB, "20GB-30GB"),
    (40 * _GIB, "30GB-40GB"),
    (60 * _GIB, "40GB-60GB"),
    (100 * _GIB, "60GB-100GB"),
)
_LIMITS = tuple(limit for limit, _ in _SIZES)
_PULL_BOUNDS_S = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)

PULL_DURATIONS = Histogram(
    "kubelet_image_pull_duration_seconds",
    "Duration in seconds to pull an image.",
    ("image_size_in_bytes",),
    _PULL_BOUNDS_S,
)
ENSURED = Counter(
    "kubelet_image_manager_ensure_image_requests_total",
    "Number of ensure-image requests processed by the kubelet.",
    ("present_locally", "pull_policy", "pull_required"),
)
ACCESS_CHECKS = Counter(
    "kubelet_imagemanager_image_mustpull_checks_total",
    "Counter for how many times kubelet checked whether credentials need to be re-verified to access an image",
    ("result",),
)
INTENTS = Gauge("kubelet_imagemanager_ondisk_pullintents", "Number of ImagePullIntents stored on disk.")
RECORDS = Gauge("kubelet_imagemanager_ondisk_pulledrecords", "Number of ImagePulledRecords stored on disk.")
COLLECTED = Counter(
    "kubelet_image_garbage_collected_total",
    "Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
    ("reason",),
)
PLUGIN_DURATIONS = Histogram(
    "kubelet_credential_provider_plugin_duration",
    "Duration of execution in seconds for credential provider plugin",
    ("plugin_name",),
)
PLUGIN_ERRORS = Counter(
    "kubelet_credential_provider_plugin_errors_total",
    "Number of errors from credential provider plugin",
    ("plugin_name",),
)


def size_words(size: int) -> str:
    """The label of an image's size in bytes. Pure."""
    if size <= 0:
        return "N/A"
    place = bisect_left(_LIMITS, size)
    return _SIZES[place][1] if place < len(_SIZES) else "GT100GB"
