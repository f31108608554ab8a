"""Maps block devices for pods, without a file system: for volumes of volumeMode Block. Blocks.

A map consists of three parts. The pod's link, below its `volumeDevices`, leads to the device; containers get that.
The device is bind-mounted on the file `<global map>/<pod uid>`, which shows after a restart which pods have it. A loop device
on that file keeps the device open, so that it cannot be removed and another get its number.
The link is made first and removed last, because a restarted agent finds a volume by it.
Source: KEP-1755 (raw block volumes).
"""

from __future__ import annotations

import os
import posixpath

from pykubelet.act.volumes.directories import list_entries
from pykubelet.act.volumes.disks.block_paths import BlockMap
from pykubelet.act.volumes.kind import UncertainError, VolumesError
from pykubelet.base.model.ids import PodUID, is_pod_uid
from pykubelet.edges.host.devices.block_devices import device_size, is_block_device, open_device
from pykubelet.edges.host.devices.loops import attach_loop, detach_loop, find_loops
from pykubelet.edges.host.fs import files, mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind

MAP_DEVICE, EVAL_LINKS, MAP_VOLUME = "MapPodDevice", "EvalHostSymlinks", "MapBlockVolume"


def map_device(device: str, map: BlockMap) -> None:
    """Map a block device for a pod. Repeating it does no harm.

    Raises VolumesError with the step that failed, before anything is made; UncertainError afterwards.
    """
    if not device:
        raise VolumesError("device path of the volume is empty", "")
    try:
        real = files.real_path(device)
        if not is_block_device(real):
            raise VolumesError(f"{device} is not a block device", EVAL_LINKS)
    except HostError as error:
        raise VolumesError(str(error), EVAL_LINKS) from error
    try:
        _map(real, map)
    except (HostError, VolumesError) as error:
        raise UncertainError(str(error), MAP_VOLUME) from error


def _map(device: str, map: BlockMap) -> None:
    files.make_dirs(posixpath.dirname(map.link), 0o750)
    files.replace_symlink(device, map.link)
    files.make_dirs(map.directory, 0o750)
    files.create_file(map.file, 0o640)
    if not mounts.is_mount_point(map.file):
        descriptor = open_device(device)
        try:
            mounts.bind_fd(descriptor, map.file)
        finally:
            os.close(descriptor)
    if _number(map.file) != _number(device):
        raise VolumesError(f"another device than {device} is mapped at {map.file}")
    if not find_loops(map.file):
        attach_loop(map.file)


def _number(path: str) -> int:
    found = files.stat_file(path)
    return found.rdev if found is not None else 0


def unmap_device(map: BlockMap) -> None:
    """Undo a map except for the pod's link. What is not there is no error.

    VolumesError if a file with content, or something else than a file, is in the place of the device: it is not removed.
    """
    _refuse_mounts_above(map.file)
    for loop in find_loops(map.file):
        detach_loop(loop)
    while mounts.unmount(map.file):
        continue
    found = files.stat_file(map.file, follow=False)
    if found is None:
        return
    if not found.is_file or found.size:
        raise VolumesError(f"{map.file} is not an empty file: remove it")
    files.remove_file(map.file)


def remove_link(map: BlockMap) -> None:
    """Remove the pod's link, after everything else. A link that is not there is no error; anything else is not removed."""
    found = files.stat_file(map.link, follow=False)
    if found is None:
        return
    if found.kind is not FileKind.SYMLINK:
        raise VolumesError(f"{map.link} is not a link to a device: remove it")
    files.remove_file(map.link)


def close_map(directory: str) -> None:
    """Undo what interrupted maps have left in a device's global map. VolumesError while the device is mapped for a pod."""
    _refuse_mounts_above(f"{directory}/")
    names = [entry.name for entry in list_entries(directory) if is_pod_uid(entry.name)]
    mapped = [name for name in names if mounts.is_mount_point(f"{directory}/{name}")]
    if mapped:
        raise VolumesError(f'the device "{directory}" is still referenced from other Pods [{" ".join(mapped)}]')
    for name in names:  # a map that was interrupted
        unmap_device(BlockMap(directory, PodUID(name), ""))


def remove_map(directory: str) -> None:
    """As `close_map`, and remove the directory, which must be empty then. One that is not there is no error."""
    close_map(directory)
    if files.stat_file(directory, follow=False) is not None:
        files.remove_dir(directory)


def _refuse_mounts_above(path: str) -> None:
    """Raise VolumesError if anything is mounted between the directory of all plugins and `path`: what is there is not the agent's."""
    parent = posixpath.dirname(path)
    while parent not in ("", "/") and posixpath.basename(parent) != "plugins":
        if mounts.is_mount_point(parent):
            raise VolumesError(f"something is mounted at {parent}, so nothing below it is removed: unmount it")
        parent = posixpath.dirname(parent)


def mapped_size(map: BlockMap) -> int:
    """The size of the device in bytes. HostError if it is not mapped."""
    return device_size(map.file)
