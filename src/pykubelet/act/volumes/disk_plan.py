"""The plans of volumes on disks that the node reaches over a network: iscsi and fc. Pure.

The disk's file system is mounted once for the node; pods get binds of that mount.
"""

from __future__ import annotations

from pykubelet.act.volumes.kind import DevicePlan, PlanInputs, VolumePlan


class DiskDevice(DevicePlan, kw_only=True):
    """The plan to mount a disk for the node. `fs_type` "": ext4. `options`: those of the mount."""

    fs_type: str = ""
    options: tuple[str, ...] = ()


class DiskPlan(VolumePlan):
    """The plan to bind the disk's mount for a pod. `fs_group` None: files keep their group. `is_group_lasting`: `OnRootMismatch`."""

    staged: DiskDevice
    fs_group: int | None = None
    is_group_lasting: bool = False

    @property
    def device(self) -> DiskDevice:
        """The disk."""
        return self.staged


def is_read_only(inputs: PlanInputs, stated: bool | None) -> bool:
    """Whether the pod gets the volume read-only. `stated`: in the source, which counts for volumes of the pod's own."""
    return bool(stated) if inputs.claimed is None else inputs.claimed.read_only


def mount_options(inputs: PlanInputs, read_only: bool) -> tuple[str, ...]:
    """The options of the disk's mount, sorted."""
    stated = inputs.claimed.mount_options if inputs.claimed is not None else ()
    return tuple(sorted({*stated, "ro" if read_only else "rw"}))


def plan_bind(inputs: PlanInputs, device: DiskDevice, read_only: bool, *, has_stats: bool) -> DiskPlan:
    """The bind of the disk's mount for the pod."""
    context = inputs.pod.spec.securityContext
    mounted = inputs.mounted(
        inputs.dirs.path,
        read_only=read_only,
        supports_relabel=not read_only,
        is_measured=False,
        has_stats=has_stats,
    )
    lasting = context is not None and context.fsGroupChangePolicy == "OnRootMismatch"
    return DiskPlan(mounted, device, None if read_only else inputs.fs_group, lasting)
