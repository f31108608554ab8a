"""Metrics of started containers, sandboxes and image volumes."""

from __future__ import annotations

from pykubelet.base.kit.metrics import Counter

STARTED_PODS = Counter("kubelet_started_pods_total", "Cumulative number of pods started")
STARTED_PODS_ERRORS = Counter("kubelet_started_pods_errors_total", "Cumulative number of errors when starting pods")
STARTED_USERNS = Counter(
    "kubelet_started_user_namespaced_pods_total",
    "Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.",
)
STARTED_USERNS_ERRORS = Counter(
    "kubelet_started_user_namespaced_pods_errors_total",
    "Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.",
)
IMAGE_VOLUMES = Counter("kubelet_image_volume_requested_total", "Number of requested image volumes.")
IMAGE_VOLUMES_MOUNTED = Counter(
    "kubelet_image_volume_mounted_succeed_total", "Number of successful image volume mounts."
)
IMAGE_VOLUMES_ERRORS = Counter("kubelet_image_volume_mounted_errors_total", "Number of failed image volume mounts.")
HTTP_FALLBACKS = Counter(
    "kubelet_lifecycle_handler_http_fallbacks_total",
    "The number of times lifecycle handlers successfully fell back to http from https.",
)
SLEEPS_CUT_SHORT = Counter(
    "kubelet_sleep_action_terminated_early_total",
    "The number of times lifecycle sleep handler got terminated before it finishes",
)
STARTED_CONTAINERS = Counter(
    "kubelet_started_containers_total", "Cumulative number of containers started", ("container_type",)
)
STARTED_CONTAINERS_ERRORS = Counter(
    "kubelet_started_containers_errors_total",
    "Cumulative number of errors when starting containers",
    ("container_type", "code"),
)
