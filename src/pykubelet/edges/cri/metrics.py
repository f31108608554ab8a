"""Metrics of the calls to the runtime, by the reference's names of operations."""

from __future__ import annotations

import re

from pykubelet.base.kit.metrics import Counter, Gauge, Histogram, exponential_bounds

_BOUNDS_S = exponential_bounds(0.005, 2.5, 14)
OPERATIONS = Counter(
    "kubelet_runtime_operations_total",
    "Cumulative number of runtime operations by operation type.",
    ("operation_type",),
)
OPERATION_ERRORS = Counter(
    "kubelet_runtime_operations_errors_total",
    "Cumulative number of runtime operation errors by operation type.",
    ("operation_type",),
)
OPERATION_DURATIONS = Histogram(
    "kubelet_runtime_operations_duration_seconds",
    "Duration in seconds of runtime operations. Broken down by operation type.",
    ("operation_type",),
    _BOUNDS_S,
)
SANDBOX_DURATIONS = Histogram(
    "kubelet_run_podsandbox_duration_seconds",
    "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
    ("runtime_handler",),
)
SANDBOX_ERRORS = Counter(
    "kubelet_run_podsandbox_errors_total",
    "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
    ("runtime_handler",),
)
LOSING_SUPPORT = Gauge(
    "kubelet_cri_losing_support",
    "the Kubernetes version that the currently running CRI implementation will lose support on if not upgraded.",
    ("version",),
)


def operation_type(method: str) -> str:
    """The name of a method in metrics: `RunPodSandbox` is `run_podsandbox`. Pure."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method).lower()
    return words.replace("pod_sandbox", "podsandbox").replace("update_container_resources", "update_container")
