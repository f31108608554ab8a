"""Logs in to iSCSI targets and mounts their disks for the node, and undoes that.

Owns: `iscsi.json` in the disk's directory, hidden while the disk is mounted: with it a restarted agent can log out. It is
written before the first login and removed after the last logout. A target with several disks is logged out with the last one.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.act.volumes.device_mount import STAGE_S, MismatchError, refuse_references
from pykubelet.act.volumes.directories import VolumeDirs, list_directories
from pykubelet.act.volumes.disk_mount import (
    disk_directories,
    disk_of,
    make_disk_directory,
    remove_disk_directory,
    unmount_disk,
)
from pykubelet.act.volumes.iscsi_plan import (
    DATA,
    NAME,
    IscsiDevice,
    disks,
    is_of_target,
    name_from,
    read_target,
    write_target,
)
from pykubelet.act.volumes.kind import MOUNT_DEVICE, CallContext, FoundDevice, UncertainError
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.devices.disk_formats import FilesystemMismatchError, format_and_mount
from pykubelet.edges.host.devices.iscsi import find_disks, locked_target, log_in, log_out
from pykubelet.edges.host.devices.iscsi_target import IscsiTarget
from pykubelet.edges.host.devices.scsi import Machine, multipath_of, remove_disks, wait_for
from pykubelet.edges.host.fs import files, mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.programs import find_program

WAIT_FOR_ATTACH = "WaitForAttach"
#: How long the node waits for the first disk, for those at other portals, and for the multipath device over them.
DISK_S, MORE_DISKS_S, MULTIPATH_S = 30.0, 5.0, 10.0
UNSTAGE_S = 300.0


async def stage(plan: IscsiDevice, context: CallContext) -> None:
    """Log in and mount the disk, unless it is mounted."""
    await context.blocking(lambda: mount_disk(plan, Machine()), STAGE_S + UNSTAGE_S)


def mount_disk(plan: IscsiDevice, machine: Machine) -> None:
    """Log in and mount the disk, unless it is mounted. UncertainError: there may be a session, so it must be undone.

    HostError if there is no iscsiadm. MismatchError: see there; the node is logged out then.
    """
    if mounts.is_mount_point(plan.directory):
        return
    find_program("iscsiadm")
    make_disk_directory(plan.directory, plan.name)
    files.write_atomic(f"{plan.directory}/{DATA}", write_target(plan.volume, plan.target), 0o640, durable=True)
    try:
        with locked_target(plan.target.iqn):
            disk = _log_in(plan, machine)
    except HostError as error:
        raise UncertainError(str(error), WAIT_FOR_ATTACH) from error
    try:
        format_and_mount(disk, plan.directory, plan.fs_type, plan.options)
    except FilesystemMismatchError as error:
        unmount(plan.directory, plan.name, machine)
        raise MismatchError(error.message, MOUNT_DEVICE) from error
    except HostError as error:
        raise UncertainError(error.message, MOUNT_DEVICE) from error


def _log_in(plan: IscsiDevice, machine: Machine) -> str:
    """The disk, or the multipath device over several."""
    target = plan.target
    errors = log_in(machine, target, plan.chap)
    found = wait_for(lambda: find_disks(machine, target), 1, DISK_S if len(errors) < len(target.portals) else 0.0)
    if not found:
        last = errors[-1] if errors else "there is no such disk"
        text = f"failed to get any path for iscsi disk, last err seen:\n{last}"
        raise HostError("iscsi", target.iqn, "ENODEV", text)
    found = wait_for(lambda: find_disks(machine, target), len(target.portals) - len(errors), MORE_DISKS_S)
    if len(found) < 2:
        return multipath_of(machine, found[0]) or found[0]
    over = wait_for(lambda: [one] if (one := multipath_of(machine, found[0])) else [], 1, MULTIPATH_S)
    return over[0] if over else found[0]


async def unstage(found: FoundDevice, context: CallContext) -> None:
    """Unmount the disk, take it off the node, and log out unless other disks of the target are used."""
    await context.blocking(lambda: unmount(found.directory, found.name, Machine()), UNSTAGE_S)


def unmount(directory: str, name: str, machine: Machine) -> None:
    """As `unstage`. VolumesError as long as the disk is mounted elsewhere too."""
    if mounts.is_mount_point(directory):
        refuse_references(directory, name)
        unmount_disk(directory)
    if (target := _read(directory)) is not None:
        with locked_target(target.iqn):
            remove_disks(machine, find_disks(machine, target))
            if not _is_used(directory, target.iqn):
                log_out(target)
    files.remove_file(f"{directory}/{DATA}")
    remove_disk_directory(directory)


def _read(directory: str) -> IscsiTarget | None:
    try:
        return read_target(files.read_text(f"{directory}/{DATA}", 1 << 16))
    except HostError as error:
        if error.is_not_found:
            return None
        raise


def _is_used(directory: str, iqn: str) -> bool:
    """Whether there is a directory of another disk of the target."""
    top = directory.rsplit("/", 2)[0]
    others = (f"{interface.name}/{disk}" for interface in list_directories(top) for disk in _names(top, interface.name))
    return any(is_of_target(other, iqn) for other in others if f"{top}/{other}" != directory)


def _names(top: str, interface: str) -> Iterable[str]:
    return [entry.name for entry in list_directories(f"{top}/{interface}")]


def find_devices(paths: Paths) -> Iterable[FoundDevice]:
    """The disks that have a directory."""
    top = disks(paths.plugins)
    for interface in list_directories(top):
        for directory, noted in disk_directories(f"{top}/{interface.name}"):
            if name := noted or name_from(directory):
                yield FoundDevice(name, NAME, directory)


def device_of(paths: Paths, dirs: VolumeDirs) -> str:
    """The unique name of the disk that is bound for a pod's volume."""
    directory = disk_of(dirs, disks(paths.plugins))
    return next((found.name for found in find_devices(paths) if found.directory == directory), "")
