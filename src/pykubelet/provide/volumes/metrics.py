"""Metrics of work on volumes.

`plugin` is the Kubernetes name of the volume plugin, such as `kubernetes.io/empty-dir`, with that of its driver if it has one.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.kit.metrics import Counter, Gauge, Histogram
from pykubelet.provide.volumes.kind import DevicePlan, FoundDevice, VolumePlan
from pykubelet.provide.volumes.model import (
    ContextOutcome,
    CountContext,
    FoundPod,
    PodVolumes,
    Result,
    SetUp,
    TearDown,
    VolumeFailure,
    VolumeNeed,
)

#: The directory that has the maps of block devices.
BLOCK_DEVICES = "volumeDevices"
BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
OPERATIONS = Histogram(
    "storage_operation_duration_seconds",
    "Storage operation duration",
    ("volume_plugin", "operation_name", "status", "migrated"),
    BUCKETS_S,
)
TOTAL = Histogram(
    "volume_operation_total_seconds",
    "Storage operation end to end duration in seconds",
    ("plugin_name", "operation_name"),
    BUCKETS_S,
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


ORPHANS = Gauge(
    "kubelet_orphan_pod_cleaned_volumes",
    "The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.",
)
ORPHAN_ERRORS = Gauge(
    "kubelet_orphan_pod_cleaned_volumes_errors",
    "The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.",
)


_CONTEXTS = {
    ContextOutcome.ADMITTED: (
        "Number of volumes whose SELinux context was fine and will be mounted with mount -o context option.",
        ("volume_plugin", "access_mode"),
    ),
    ContextOutcome.POD_MISMATCH: (
        "Number of errors when a Pod defines different SELinux contexts for its containers that use the same volume."
        " Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent the"
        " actual nr. of Pods.",
        ("access_mode",),
    ),
    ContextOutcome.VOLUME_MISMATCH: (
        "Number of errors when a Pod uses a volume that is already mounted with a different SELinux context than the Pod"
        " needs. Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent"
        " the actual nr. of Pods.",
        ("volume_plugin", "access_mode"),
    ),
}
CONTEXTS = {
    outcome: Gauge(f"volume_manager_selinux_{outcome}", text, labels) for outcome, (text, labels) in _CONTEXTS.items()
}


def count(plugin: str, operation: str, took_s: float, *, is_done: bool, is_migrated: bool = False) -> None:
    """Count an operation."""
    status = "success" if is_done else "fail-unknown"
    OPERATIONS.observe(took_s, plugin, operation, status, str(is_migrated).lower())


def count_context(command: CountContext) -> None:
    """Count a decision about the SELinux context of a volume."""
    labels = (command.plugin, command.access_mode)
    CONTEXTS[command.outcome].add(1.0, *labels[-len(_CONTEXTS[command.outcome][1]) :])


def count_orphans(pods: Iterable[PodVolumes]) -> None:
    """Count the pods that are not known any more and have left volumes or a directory, and those of which they could not be removed."""
    orphans = [pod for pod in pods if pod.need is VolumeNeed.ORPHANED]
    ORPHANS.set(len(orphans))
    ORPHAN_ERRORS.set(sum(any(_failures(pod)) for pod in orphans))


def _failures(pod: PodVolumes) -> Iterable[VolumeFailure | None]:
    return (pod.directory_failure, *(volume.failure for volume in pod.volumes.values()))


def count_found(found: tuple[FoundPod, ...] | None) -> None:
    """Count the volumes that the first scan after a start has found. None: the scan failed."""
    if FOUND.value() or NOT_FOUND.value():
        return
    if found is None:
        NOT_FOUND.inc()
    FOUND.inc(by=sum(len(pod.volumes) for pod in found or ()))


def count_operation(plugin: str, command: SetUp | TearDown, result: Result, took_s: float) -> None:
    """Count a mount or unmount that took `took_s` seconds; of block devices, their map and unmap."""
    if isinstance(command, SetUp):
        mounted = command.plan.mounted
        operation, is_migrated = "map_volume" if mounted.is_block else "volume_mount", mounted.is_migrated
    else:
        operation, is_migrated = "unmap_volume" if command.is_block else "volume_unmount", False
    _count(plugin, operation, result, took_s, is_migrated=is_migrated)


def count_expansion(plugin: str, plan: VolumePlan, result: Result, took_s: float) -> None:
    """Count an expansion that took `took_s` seconds."""
    _count(plugin, "volume_fs_resize", result, took_s, is_migrated=plan.mounted.is_migrated)


def count_unstaging(plugin: str, device: FoundDevice, result: Result, took_s: float) -> None:
    """Count an unstaging of a device that took `took_s` seconds."""
    operation = "unmap_device" if _is_map(device) else "unmount_device"
    _count(plugin, operation, result, took_s)


def _is_map(device: FoundDevice | DevicePlan) -> bool:
    return BLOCK_DEVICES in device.directory.split("/")


def count_staging(plugin: str, plan: DevicePlan, result: Result, took_s: float) -> None:
    """Count a failed staging of a device: it is a part of the mount, which is counted when it ends."""
    if result is not Result.DONE:
        _count(plugin, "map_volume" if _is_map(plan) else "volume_mount", result, took_s)


def count_mounted(plugin: str, plan: VolumePlan, took_s: float) -> None:
    """Count a volume that is mounted for the first time, `took_s` seconds after its pod has needed it.

    It counts as attached too. The Node is watched, so that to look whether it lists the volume takes no time.
    """
    TOTAL.observe(max(took_s, 0.0), plugin, "overall_volume_mount")
    _count(plugin, "verify_controller_attached_volume", Result.DONE, 0.0, is_migrated=plan.mounted.is_migrated)


def _count(plugin: str, operation: str, result: Result, took_s: float, *, is_migrated: bool = False) -> None:
    count(plugin, operation, took_s, is_done=result is Result.DONE, is_migrated=is_migrated)
