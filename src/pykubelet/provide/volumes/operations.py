"""The histogram of operations on volumes."""

from __future__ import annotations

from pykubelet.base.kit.metrics import Histogram

BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
OPERATIONS = Histogram(
    "storage_operation_duration_seconds",
    "Storage operation duration",
    ("volume_plugin", "operation_name", "status", "migrated"),
    BUCKETS_S,
)


def count(plugin: str, operation: str, took_s: float, *, is_done: bool, is_migrated: bool = False) -> None:
    """Count an operation. `plugin`: the Kubernetes name of the volume plugin, with that of its driver if it has one."""
    status = "success" if is_done else "fail-unknown"
    OPERATIONS.observe(took_s, plugin, operation, status, str(is_migrated).lower())
