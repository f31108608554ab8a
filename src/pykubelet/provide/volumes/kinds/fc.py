"""fc volumes: a disk that the node's Fibre Channel adapters reach.

The disk is mounted once for the node, an empty one is formatted before; pods get binds. A volume of mode Block is mapped for
the pod as it is. The unique name of a volume names its disk fully, so nothing else has to be noted for a restarted agent.
Source: the Kubernetes documentation "Volumes", fc; layout and names are those of the reference kubelet.
"""

from __future__ import annotations

import glob
import re

from pykubelet.base.api.core import FCVolumeSource
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.base.model.paths import Beneath
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
from pykubelet.provide.volumes.attached import await_attachment
from pykubelet.provide.volumes.disks.device_mount import STAGE_S, MismatchError
from pykubelet.provide.volumes.disks.disk_mount import (
    NetworkDisks,
    disk_directories,
    disk_path,
    make_disk_directory,
    remove_disk_directory,
    unmount_disk,
)
from pykubelet.provide.volumes.disks.disk_plan import (
    DiskDevice,
    DiskPlan,
    is_read_only,
    mount_options,
    plan_bind,
    trees_of,
)
from pykubelet.provide.volumes.kind import (
    MOUNT_DEVICE,
    NEW_MOUNTER,
    PlanInputs,
    UncertainError,
    UndecidedPlan,
    VolumesError,
)
from pykubelet.provide.volumes.selinux import mount_context

NAME, PLUGIN = "fc", "kubernetes.io/fc"
WAIT_FOR_ATTACH = "WaitForAttach"
#: How long a disk may take to appear after a rescan of all hosts: seconds.
RESCAN_S = 10.0
UNSTAGE_S = 180.0
#: What may be part of a directory's name.
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_SHOWN = 80
_UNIQUE = re.compile(r"kubernetes\.io/fc/\[([^\]]+)\](?::([0-9]+))?")
_DIRECTORY = re.compile(r"(.+?)(?:-lun-([0-9]+))?")


class FcDisk(Value):
    """A disk by the world wide names of its target ports and a logical unit, or by its own identifiers."""

    wwns: tuple[str, ...] = ()
    lun: int = 0
    wwids: tuple[str, ...] = ()

    @property
    def unique_name(self) -> str:
        """The volume's name in the Node's status."""
        names = " ".join(self.wwns or self.wwids)
        return f"{PLUGIN}/[{names}]:{self.lun}" if self.wwns else f"{PLUGIN}/[{names}]"

    @property
    def directory_name(self) -> str:
        """The last part of the directory that the disk is mounted on."""
        names = "-".join(self.wwns or self.wwids)
        return f"{names}-lun-{self.lun}" if self.wwns else names


class FcDevice(DiskDevice, kw_only=True):
    """The plan to find the disk and mount it."""

    disk: FcDisk

    @property
    def progress(self) -> str:
        """What is being done, for users."""
        return f"its Fibre Channel disk is being {'looked for' if self.is_block else 'mounted'}"


def disk_of_source(source: FCVolumeSource) -> FcDisk:
    """The disk. VolumesError for names that cannot be those of disks, or if there are none."""
    for name in (*source.targetWWNs, *source.wwids):
        if not _is_word(name):
            raise VolumesError(f"fc: {name[:_SHOWN]!a} is no name of a port or disk", NEW_MOUNTER)
    if source.targetWWNs and source.lun is not None:
        return FcDisk(source.targetWWNs, source.lun)
    if source.wwids:
        return FcDisk(wwids=source.wwids)
    raise VolumesError("fc: no fc disk information found. failed to make a new mounter", NEW_MOUNTER)


def _is_word(name: str) -> bool:
    return _PLAIN.fullmatch(name) is not None and not name.startswith(".")


def disks(plugins: str) -> Beneath:
    """The directory with one directory for each disk."""
    return Beneath(plugins, PLUGIN)


def disk_from(name: str) -> FcDisk | None:
    """The disk with this unique name; None if it is none of fc."""
    found = _UNIQUE.fullmatch(name)
    if found is None:
        return None
    names, lun = tuple(found[1].split(" ")), found[2]
    if not all(map(_is_word, names)):
        return None
    return FcDisk(wwids=names) if lun is None else FcDisk(names, parse_decimal(lun) or 0)


def name_from(directory: str) -> str:
    """The unique name by the directory, for one that another kubelet has made. Names in it are taken to have no hyphens."""
    found = _DIRECTORY.fullmatch(directory.rpartition("/")[2])
    if found is None or not _PLAIN.fullmatch(found[1]):
        return ""
    names = tuple(found[1].split("-"))
    return (FcDisk(wwids=names) if found[2] is None else FcDisk(names, int(found[2]))).unique_name


def plan(inputs: PlanInputs) -> DiskPlan | UndecidedPlan:
    """The disk and its bind; undecided until it is attached. VolumesError."""
    source = inputs.source.fc
    assert source is not None
    read_only = is_read_only(inputs, source.readOnly)
    disk = disk_of_source(source)
    device = FcDevice(
        name=disk.unique_name,
        kind=NAME,
        directory=trees_of(disks(inputs.paths.plugins))[inputs.is_block] / disk.directory_name,
        is_attachable=inputs.content.available,
        fs_type=source.fsType,
        options=mount_options(inputs, read_only),
        is_block=inputs.is_block,
        context=mount_context(inputs),
        disk=disk,
    )
    return await_attachment(inputs, device, is_nothing=True) or plan_bind(inputs, device, read_only, has_stats=False)


def find_disks(machine: ScsiPaths, disk: FcDisk) -> list[str]:
    """The paths to the disk that the node has now."""
    found: list[str] = []
    for wwn in disk.wwns:
        found += disks_by_path(machine, f"*fc-0x{glob.escape(wwn)}-lun-{disk.lun}")
    for wwid in disk.wwids:
        found += disks_by_id(machine, f"scsi-{wwid}")
    return list(dict.fromkeys(found))


def _find(machine: ScsiPaths, plan: FcDevice) -> list[str]:
    return find_disks(machine, plan.disk)


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


def unmount(directory: Beneath, name: str, machine: ScsiPaths) -> None:
    """Unmount the disk, or undo its map, and take it off the node. VolumesError as long as it is mounted elsewhere too, or mapped."""
    unmount_disk(directory, name, PLUGIN)
    disk = disk_from(name)
    if disk is not None:
        remove_disks(machine, find_disks(machine, disk), flush=True)
    remove_disk_directory(directory)


DISKS = NetworkDisks(NAME, _find, name_from, mount_disk, unmount, STAGE_S, UNSTAGE_S, disk_directories)
KIND = DISKS.volume_kind(plan)
