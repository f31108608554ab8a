"""Metrics of work on volumes."""

from __future__ import annotations

from pykubelet.act.volumes.kind import VolumePlan
from pykubelet.act.volumes.model import FoundPod, Result, SetUp, TearDown
from pykubelet.act.volumes.registry import kind_named
from pykubelet.base.kit.metrics import Counter, Histogram

OPERATIONS = Histogram(
    "storage_operation_duration_seconds",
    "Storage operation duration",
    ("volume_plugin", "operation_name", "status", "migrated"),
    (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600),
)
FOUND = Counter(
    "reconstruct_volume_operations_total",
    "The number of volumes that were attempted to be reconstructed from the operating system during kubelet startup. This"
    " includes both successful and failed reconstruction.",
)
NOT_FOUND = Counter(
    "reconstruct_volume_operations_errors_total",
    "The number of volumes that failed reconstruction from the operating system during kubelet startup.",
)


def count_found(found: tuple[FoundPod, ...] | None) -> None:
    """Count the volumes that the first scan after a start has found. None: the scan failed."""
    if FOUND.value() or NOT_FOUND.value():
        return
    if found is None:
        NOT_FOUND.inc()
    FOUND.inc(by=sum(len(pod.volumes) for pod in found or ()))


def count_operation(command: SetUp | TearDown, result: Result, took_s: float) -> None:
    """Count a mount or unmount that took `took_s` seconds."""
    operation = "volume_mount" if isinstance(command, SetUp) else "volume_unmount"
    status = "success" if result is Result.DONE else "fail-unknown"
    is_migrated = isinstance(command, SetUp) and command.plan.mounted.is_migrated
    OPERATIONS.observe(took_s, plugin_of(command), operation, status, str(is_migrated).lower())


def count_expansion(plan: VolumePlan, result: Result, took_s: float) -> None:
    """Count an expansion that took `took_s` seconds."""
    status = "success" if result is Result.DONE else "fail-unknown"
    OPERATIONS.observe(took_s, plugin_of_plan(plan), "volume_fs_resize", status, str(plan.mounted.is_migrated).lower())


def plugin_of_plan(plan: VolumePlan) -> str:
    """The Kubernetes name of the volume plugin, with that of its driver if it has one. Pure."""
    plugin = kind_named(plan.kind).plugin
    return f"{plugin}:{plan.driver}" if plan.driver else plugin


def plugin_of(command: SetUp | TearDown) -> str:
    """The Kubernetes name of the volume plugin, such as `kubernetes.io/empty-dir`. Pure."""
    if isinstance(command, SetUp):
        return plugin_of_plan(command.plan)
    return command.plugin.replace("~", "/")
