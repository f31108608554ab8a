"""Finds Fibre Channel disks, mounts or maps them for the node, and undoes that. Blocks, but for `stage` and `unstage`.

The unique name of a volume names its disk fully, so nothing else has to be noted for a restarted agent.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable

from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.edges.host.devices.disk_formats import FilesystemMismatchError, format_and_mount
from pykubelet.edges.host.devices.scsi import (
    ScsiPaths,
    disks_by_id,
    disks_by_path,
    remove_disks,
    scan_all_hosts,
    wait_for,
)
from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes.directories import VolumeDirs
from pykubelet.provide.volumes.disks import disk_mount
from pykubelet.provide.volumes.disks.device_mount import STAGE_S, MismatchError
from pykubelet.provide.volumes.disks.disk_mount import (
    disk_directories,
    disk_of,
    disk_path,
    make_disk_directory,
    mapped_in,
    remove_disk_directory,
    unmount_disk,
)
from pykubelet.provide.volumes.disks.disk_plan import DiskPlan, trees_of
from pykubelet.provide.volumes.disks.fc_plan import NAME, PLUGIN, FcDevice, FcDisk, disk_from, disks, name_from
from pykubelet.provide.volumes.kind import (
    MOUNT_DEVICE,
    CallContext,
    FoundDevice,
    SetUpContext,
    UncertainError,
    VolumesError,
)

WAIT_FOR_ATTACH = "WaitForAttach"
#: How long a disk may take to appear after a rescan of all hosts: seconds.
RESCAN_S = 10.0
UNSTAGE_S = 180.0


def find_disks(machine: ScsiPaths, disk: FcDisk) -> list[str]:
    """The paths to the disk that the node has now."""
    found: list[str] = []
    for wwn in disk.wwns:
        found += disks_by_path(machine, f"*fc-0x{glob.escape(wwn)}-lun-{disk.lun}")
    for wwid in disk.wwids:
        found += disks_by_id(machine, f"scsi-{wwid}")
    return list(dict.fromkeys(found))


async def stage(plan: FcDevice, context: CallContext) -> None:
    """Find the disk and mount it, unless it is mounted. In block mode it is only found."""
    await context.blocking(lambda: mount_disk(plan, ScsiPaths()), STAGE_S)


def mount_disk(plan: FcDevice, machine: ScsiPaths) -> None:
    """Find the disk, after a rescan if need be, and mount it. VolumesError if there is none; UncertainError after that."""
    if mounts.is_mount_point(plan.directory):
        return
    found = find_disks(machine, plan.disk)
    if not found:
        scan_all_hosts(machine)
        found = list(wait_for(lambda: find_disks(machine, plan.disk), 1, RESCAN_S))
    if not found:
        raise VolumesError("no fc disk found", WAIT_FOR_ATTACH)
    make_disk_directory(plan.directory, plan.name)
    if plan.is_block:
        return
    try:
        format_and_mount(disk_path(machine, found), plan.directory, plan.fs_type, plan.options)
    except FilesystemMismatchError as error:
        remove_disk_directory(plan.directory)
        raise MismatchError(error.message, MOUNT_DEVICE) from error
    except HostError as error:
        raise UncertainError(error.message, MOUNT_DEVICE) from error


async def unstage(found: FoundDevice, context: CallContext) -> None:
    """Unmount the disk, or undo its map, and take it off the node."""
    await context.blocking(lambda: unmount(found.directory, found.name, ScsiPaths()), UNSTAGE_S)


def unmount(directory: Beneath, name: str, machine: ScsiPaths) -> None:
    """As `unstage`. VolumesError as long as the disk is mounted elsewhere too, or mapped."""
    unmount_disk(directory, name, PLUGIN)
    disk = disk_from(name)
    if disk is not None:
        remove_disks(machine, find_disks(machine, disk), flush=True)
    remove_disk_directory(directory)


def find_devices(paths: Paths) -> Iterable[FoundDevice]:
    """The disks that have a directory."""
    for tree in trees_of(disks(paths.plugins)):
        for directory, noted in disk_directories(tree):
            if name := noted or name_from(directory):
                yield FoundDevice(name, NAME, directory)


def device_of(paths: Paths, dirs: VolumeDirs) -> str:
    """The unique name of the disk that is bound or mapped for a pod's volume."""
    directory: str | None = mapped_in(dirs, _maps(dirs)) if dirs.is_block else disk_of(dirs, disks(paths.plugins))
    return next((found.name for found in find_devices(paths) if found.directory == directory), "")


def _maps(dirs: VolumeDirs) -> list[Beneath]:
    return [directory for directory, _ in disk_directories(trees_of(disks(dirs.plugins))[1])]


def set_up(plan: DiskPlan, context: SetUpContext) -> None:
    """Bind the disk's mount, or map the disk, for the pod."""
    assert isinstance(plan.staged, FcDevice)
    machine, staged = ScsiPaths(), plan.staged
    disk_mount.set_up(plan, disk_path(machine, find_disks(machine, staged.disk)) if staged.is_block else "", context)


def tear_down(dirs: VolumeDirs) -> None:
    """Undo `set_up`."""
    disk_mount.tear_down(dirs, _maps(dirs))
