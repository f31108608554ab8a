"""Finds Fibre Channel disks, mounts them for the node, and undoes that. Blocks, but for `stage` and `unstage`.

The unique name of a volume names its disk fully, so nothing else has to be noted for a restarted agent.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable

from pykubelet.act.volumes.device_mount import STAGE_S, MismatchError, refuse_references
from pykubelet.act.volumes.directories import VolumeDirs
from pykubelet.act.volumes.disk_mount import (
    disk_directories,
    disk_of,
    make_disk_directory,
    remove_disk_directory,
    unmount_disk,
)
from pykubelet.act.volumes.fc_plan import NAME, FcDevice, FcDisk, disk_from, disks, name_from
from pykubelet.act.volumes.kind import MOUNT_DEVICE, CallContext, FoundDevice, UncertainError, VolumesError
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.devices.disk_formats import FilesystemMismatchError, format_and_mount
from pykubelet.edges.host.devices.scsi import (
    Machine,
    disks_by_id,
    disks_by_path,
    multipath_of,
    remove_disks,
    scan_all_hosts,
    wait_for,
)
from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.errors import HostError

WAIT_FOR_ATTACH = "WaitForAttach"
#: How long a disk may take to appear after a rescan of all hosts: seconds.
RESCAN_S = 10.0
UNSTAGE_S = 180.0


def find_disks(machine: Machine, disk: FcDisk) -> list[str]:
    """The paths to the disk that the node has now."""
    found: list[str] = []
    for wwn in disk.wwns:
        found += disks_by_path(machine, f"*fc-0x{glob.escape(wwn)}-lun-{disk.lun}")
    for wwid in disk.wwids:
        found += disks_by_id(machine, f"scsi-{wwid}")
    return list(dict.fromkeys(found))


async def stage(plan: FcDevice, context: CallContext) -> None:
    """Find the disk and mount it, unless it is mounted."""
    await context.blocking(lambda: mount_disk(plan, Machine()), STAGE_S)


def mount_disk(plan: FcDevice, machine: Machine) -> None:
    """Find the disk, after a rescan if need be, and mount it. VolumesError if there is none; UncertainError after that."""
    if mounts.is_mount_point(plan.directory):
        return
    found = find_disks(machine, plan.disk)
    if not found:
        scan_all_hosts(machine)
        found = list(wait_for(lambda: find_disks(machine, plan.disk), 1, RESCAN_S))
    if not found:
        raise VolumesError("no fc disk found", WAIT_FOR_ATTACH)
    device = next((over for disk in found if (over := multipath_of(machine, disk))), found[0])
    make_disk_directory(plan.directory, plan.name)
    try:
        format_and_mount(device, plan.directory, plan.fs_type, plan.options)
    except FilesystemMismatchError as error:
        remove_disk_directory(plan.directory)
        raise MismatchError(error.message, MOUNT_DEVICE) from error
    except HostError as error:
        raise UncertainError(error.message, MOUNT_DEVICE) from error


async def unstage(found: FoundDevice, context: CallContext) -> None:
    """Unmount the disk and take it off the node."""
    await context.blocking(lambda: unmount(found.directory, found.name, Machine()), UNSTAGE_S)


def unmount(directory: str, name: str, machine: Machine) -> None:
    """As `unstage`. VolumesError as long as the disk is mounted elsewhere too."""
    if mounts.is_mount_point(directory):
        refuse_references(directory, name)
        unmount_disk(directory)
    disk = disk_from(name)
    if disk is not None:
        remove_disks(machine, find_disks(machine, disk), flush=True)
    remove_disk_directory(directory)


def find_devices(paths: Paths) -> Iterable[FoundDevice]:
    """The disks that have a directory."""
    for directory, noted in disk_directories(disks(paths.plugins)):
        if name := noted or name_from(directory):
            yield FoundDevice(name, NAME, directory)


def device_of(paths: Paths, dirs: VolumeDirs) -> str:
    """The unique name of the disk that is bound for a pod's volume."""
    directory = disk_of(dirs, disks(paths.plugins))
    return next((found.name for found in find_devices(paths) if found.directory == directory), "")
