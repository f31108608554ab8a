"""Mounts the file system of a block device on its global directory, and unmounts it: for local, iscsi and fc. Blocks.

A kind's `stage` finds the device and calls `mount_device` through `CallContext.blocking` with the deadline `STAGE_S`; its
`unstage` calls `unmount_device`.
"""

from __future__ import annotations

import posixpath

from pykubelet.base.model import reasons
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.devices.block_devices import is_block_device, is_device_in_use
from pykubelet.edges.host.devices.disk_formats import (
    FORMAT_AND_MOUNT_S,
    FilesystemMismatchError,
    format_and_mount,
)
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes.directories import make_empty_volume_dir
from pykubelet.provide.volumes.kind import MOUNT_DEVICE, UncertainError, VolumesError

#: The deadline for `mount_device`: mkfs and fsck of a large device may take long.
STAGE_S = FORMAT_AND_MOUNT_S + 60.0
_PLUGINS = "/plugins/kubernetes.io/"


class MismatchError(VolumesError):
    """The device carries another file system than the volume names: reported by an Event on the PersistentVolume."""

    volume_reason = reasons.EVENT_FILESYSTEM_MISMATCH


def mount_device(device: str, directory: Beneath, fs_type: str = "", options: tuple[str, ...] = ()) -> None:
    """Mount the file system of the block device `device` on `directory`, unless something is mounted there.

    An empty device is formatted (`fs_type`: "" is ext4), unless `ro` is in `options`. Raises VolumesError (step MountDevice)
    with nothing mounted and no directory left, UncertainError if it may be mounted, MismatchError: see there.
    """
    if mounts.is_mount_point(directory):
        return
    make_empty_volume_dir(directory)
    try:
        format_and_mount(device, directory, fs_type, options)
    except HostError as error:
        if mounts.is_mount_point(directory) or error.errno_name == "ETIMEDOUT":
            raise UncertainError(error.message, MOUNT_DEVICE) from error
        beneath.remove_dir(directory)
        kind = MismatchError if isinstance(error, FilesystemMismatchError) else VolumesError
        raise kind(error.message, MOUNT_DEVICE) from error


def unmount_device(directory: Beneath, name: str) -> None:
    """Unmount a device's global directory and remove it. A directory that is not there or not mounted is no error.

    VolumesError as long as the file system is mounted elsewhere too, for a pod for example. `name`: the volume, for that text.
    """
    if beneath.stat_file(directory) is None:
        return
    if mounts.is_mount_point(directory):
        refuse_references(directory, name)
        mounts.unmount(directory)
    beneath.remove_dir(directory)


def refuse_references(directory: str, name: str) -> None:
    """Raise VolumesError if what is mounted on `directory` is mounted elsewhere too.

    Paths that contain the tail of `directory` do not count: the same mount may be seen through another path.
    """
    begin = directory.find(_PLUGINS)
    tail = directory[begin:] if begin >= 0 else directory
    others = sorted({mount.target for mount in mounts.mounts_of(directory) if tail not in mount.target})
    if others:
        raise VolumesError(
            f'GetDeviceMountRefs check failed for volume "{name}" ({posixpath.basename(directory)}): the device mount path '
            f'"{directory}" is still mounted by other references [{" ".join(others)}]'
        )


def refuse_users(device: str) -> None:
    """Raise VolumesError if a block device is in use once the node has unmounted it: by another mount namespace, for example.

    A device that is gone is not in use. Anything but a block device is not looked at.
    """
    if is_block_device(device) and is_device_in_use(device):
        raise VolumesError("the device is in use when it was no longer expected to be in use", MOUNT_DEVICE)
