"""Logs in to iSCSI targets and mounts or maps their disks for the node, and undoes that.

Owns: `iscsi.json` in the disk's directory, hidden while a disk is mounted there: with it a restarted agent can log out. It is
written before the first login and removed after the last logout. A target with several disks is logged out with the last one.
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.edges.host.devices.disk_formats import FilesystemMismatchError, format_and_mount
from pykubelet.edges.host.devices.iscsi import find_disks, locked_target, log_in, log_out
from pykubelet.edges.host.devices.iscsi_target import IscsiTarget
from pykubelet.edges.host.devices.scsi import ScsiPaths, multipath_of, remove_disks, wait_for
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.beneath import list_directories
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.programs import find_program
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
from pykubelet.provide.volumes.disks.iscsi_plan import (
    DATA,
    NAME,
    PLUGIN,
    IscsiDevice,
    disks,
    is_of_target,
    name_from,
    read_target,
    write_target,
)
from pykubelet.provide.volumes.kind import (
    MOUNT_DEVICE,
    CallContext,
    FoundDevice,
    SetUpContext,
    UncertainError,
    VolumesError,
)

WAIT_FOR_ATTACH = "WaitForAttach"
#: How long the node waits for the first disk, for those at other portals, and for the multipath device over them.
DISK_S, MORE_DISKS_S, MULTIPATH_S = 30.0, 5.0, 10.0
UNSTAGE_S = 300.0


async def stage(plan: IscsiDevice, context: CallContext) -> None:
    """Log in and mount the disk, unless it is mounted. In block mode the node only logs in."""
    await context.blocking(lambda: mount_disk(plan, ScsiPaths()), STAGE_S + UNSTAGE_S)


def mount_disk(plan: IscsiDevice, machine: ScsiPaths) -> None:
    """As `stage`. UncertainError: there may be a session, so it must be undone. VolumesError if there is no iscsiadm.

    MismatchError: see there; the node is logged out then.
    """
    if mounts.is_mount_point(plan.directory):
        return
    try:
        find_program("iscsiadm")
    except HostError as error:
        raise VolumesError(error.message, WAIT_FOR_ATTACH) from error
    make_disk_directory(plan.directory, plan.name)
    beneath.write_atomic(plan.directory / DATA, write_target(plan.volume, plan.target), 0o640, durable=True)
    try:
        with locked_target(plan.target.iqn):
            disk = _log_in(plan, machine)
    except HostError as error:
        raise UncertainError(str(error), WAIT_FOR_ATTACH) from error
    if plan.is_block:
        return
    try:
        format_and_mount(disk, plan.directory, plan.fs_type, plan.options)
    except FilesystemMismatchError as error:
        try:
            unmount(plan.directory, plan.name, machine)
        except (HostError, VolumesError) as left:  # there may be a session, so it must be undone
            raise UncertainError(f"{error.message}; {left}", MOUNT_DEVICE) from error
        raise MismatchError(error.message, MOUNT_DEVICE) from error
    except HostError as error:
        raise UncertainError(error.message, MOUNT_DEVICE) from error


def _log_in(plan: IscsiDevice, machine: ScsiPaths) -> str:
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
    """Unmount the disk, or undo its map, take it off the node, and log out unless other disks of the target are used."""
    await context.blocking(lambda: unmount(found.directory, found.name, ScsiPaths()), UNSTAGE_S)


def unmount(directory: Beneath, name: str, machine: ScsiPaths) -> None:
    """As `unstage`. VolumesError as long as the disk is mounted elsewhere too, or mapped."""
    unmount_disk(directory, name, PLUGIN)
    if (target := _read(directory)) is not None:
        with locked_target(target.iqn):
            remove_disks(machine, find_disks(machine, target))
            if not _is_used(directory, target.iqn):
                log_out(target)
    beneath.remove_file(directory / DATA)
    remove_disk_directory(directory)


def _read(directory: Beneath) -> IscsiTarget | None:
    try:
        return read_target(beneath.read_text(directory / DATA, 1 << 16))
    except HostError as error:
        if error.is_not_found:
            return None
        raise


def _is_used(directory: Beneath, iqn: str) -> bool:
    """Whether there is a directory of another disk of the target."""
    others = (other for tree in trees_of(disks(directory.top)) for other, _ in _directories(tree))
    return any(is_of_target(other, iqn) for other in others if other != directory)


def _directories(tree: Beneath) -> Iterator[tuple[Beneath, str]]:
    """The directories of disks in a tree, with the unique names that are noted."""
    for interface in list_directories(tree):
        if interface.name.startswith("iface-"):
            yield from disk_directories(tree / interface.name)


def find_devices(paths: Paths) -> Iterator[FoundDevice]:
    """The disks that have a directory."""
    for tree in trees_of(disks(paths.plugins)):
        for directory, noted in _directories(tree):
            if name := noted or name_from(directory):
                yield FoundDevice(name, NAME, directory)


def device_of(paths: Paths, dirs: VolumeDirs) -> str:
    """The unique name of the disk that is bound or mapped for a pod's volume."""
    directory: str | None = mapped_in(dirs, _maps(dirs)) if dirs.is_block else disk_of(dirs, disks(paths.plugins))
    return next((found.name for found in find_devices(paths) if found.directory == directory), "")


def _maps(dirs: VolumeDirs) -> list[Beneath]:
    return [directory for directory, _ in _directories(trees_of(disks(dirs.plugins))[1])]


def set_up(plan: DiskPlan, context: SetUpContext) -> None:
    """Bind the disk's mount, or map the disk, for the pod."""
    assert isinstance(plan.staged, IscsiDevice)
    machine, staged = ScsiPaths(), plan.staged
    disk_mount.set_up(plan, disk_path(machine, find_disks(machine, staged.target)) if staged.is_block else "", context)


def tear_down(dirs: VolumeDirs) -> None:
    """Undo `set_up`."""
    disk_mount.tear_down(dirs, _maps(dirs))
