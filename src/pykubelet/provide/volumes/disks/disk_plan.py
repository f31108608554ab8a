"""The plans of volumes on disks that the node reaches over a network: iscsi and fc. Pure.

The disk's file system is mounted once for the node; pods get binds of that mount. A volume of mode Block is mapped for its pods.
"""

from __future__ import annotations

from pykubelet.base.model.paths import Beneath
from pykubelet.provide.volumes.disks.block_paths import BlockMap, map_of
from pykubelet.provide.volumes.kind import DevicePlan, DirectoryPlan, PlanInputs
from pykubelet.provide.volumes.selinux import mount_context, mount_option

#: The directory, beside those of mounted disks, with the directories of mapped ones.
MAPS = "volumeDevices"


class DiskDevice(DevicePlan, kw_only=True):
    """The plan to mount a disk for the node. `fs_type` "": ext4. `options`: those of the mount.

    `is_block`: the disk is not mounted, but mapped for pods in `directory`.
    """

    fs_type: str = ""
    options: tuple[str, ...] = ()
    is_block: bool = False


class DiskPlan(DirectoryPlan):
    """The plan to bind the disk's mount for a pod, or to map the disk.

    `fs_group` None: files keep their group. `is_group_lasting`: `OnRootMismatch`.
    """

    staged: DiskDevice
    fs_group: int | None = None
    is_group_lasting: bool = False
    map: BlockMap | None = None

    @property
    def device(self) -> DiskDevice:
        """The disk."""
        return self.staged


def trees_of(top: Beneath) -> tuple[Beneath, Beneath]:
    """The directory of mounted disks, and that of mapped ones."""
    return top, top / MAPS


def is_map(directory: str, plugin: str) -> bool:
    """Whether the disk of this directory of a plugin, such as `kubernetes.io/fc`, is mapped and not mounted."""
    return f"/{plugin}/{MAPS}/" in directory


def is_read_only(inputs: PlanInputs, stated: bool | None) -> bool:
    """Whether the pod gets the volume read-only. `stated`: in the source, which counts for volumes of the pod's own."""
    return bool(stated) if inputs.claimed is None else inputs.claimed.read_only


def mount_options(inputs: PlanInputs, read_only: bool) -> tuple[str, ...]:
    """The options of the disk's mount, sorted, then its SELinux context."""
    stated = inputs.claimed.mount_options if inputs.claimed is not None else ()
    return (*sorted({*stated, "ro" if read_only else "rw"}), *mount_option(mount_context(inputs)))


def plan_bind(inputs: PlanInputs, device: DiskDevice, read_only: bool, *, has_stats: bool) -> DiskPlan:
    """The bind of the disk's mount for the pod, or the map of the disk."""
    context = inputs.pod.spec.securityContext
    mounted = inputs.mounted(
        inputs.dirs.path,
        read_only=read_only,
        supports_relabel=not read_only and not inputs.is_block and not device.context,
        is_measured=False,
        has_stats=has_stats or inputs.is_block,
    )
    if inputs.is_block:
        return DiskPlan(mounted, inputs.dirs.path, device, map=map_of(device.directory, inputs.dirs))
    lasting = context is not None and context.fsGroupChangePolicy == "OnRootMismatch"
    return DiskPlan(mounted, inputs.dirs.path, device, None if read_only else inputs.fs_group, lasting)
