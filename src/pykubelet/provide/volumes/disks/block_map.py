"""Maps block devices for pods, without a file system: for volumes of volumeMode Block. Blocks.

A map consists of three parts. The pod's link, below its `volumeDevices`, leads to the device; containers get that.
The device is bind-mounted on the file `<global map>/<pod uid>`, which shows after a restart which pods have it. A loop device
on that file keeps the device open, so that it cannot be removed and another get its number.
The link is made first and removed last, because a restarted agent finds a volume by it.
Source: KEP-1755 (raw block volumes).
"""

from __future__ import annotations

from pykubelet.base.model.ids import PodUID, is_pod_uid
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.devices.block_devices import is_block_device, open_device
from pykubelet.edges.host.devices.loops import attach_loop, detach_loop, find_loops
from pykubelet.edges.host.fs import beneath, files, mounts
from pykubelet.edges.host.fs.beneath import list_entries
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind
from pykubelet.provide.volumes.disks.block_paths import BlockMap
from pykubelet.provide.volumes.kind import UncertainError, VolumesError
from pykubelet.provide.volumes.mounted_parents import refuse_mounted, refuse_mounts_above

EVAL_LINKS, MAP_VOLUME = "EvalHostSymlinks", "MapBlockVolume"


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
    beneath.make_dirs(map.link.parent, 0o750)
    beneath.replace_symlink(device, map.link)
    beneath.make_dirs(map.directory, 0o750)
    beneath.create_file(map.file, 0o640)
    if not mounts.is_mount_point(map.file):
        with files.OpenDescriptor(open_device(device)) as descriptor:
            mounts.bind_fd(descriptor, map.file)
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
    refuse_mounts_above(map.file)
    for loop in find_loops(map.file):
        detach_loop(loop)
    while mounts.unmount(map.file):
        continue
    found = beneath.stat_file(map.file)
    if found is None:
        return
    if not found.is_file or found.size:
        raise VolumesError(f"{map.file} is not an empty file: remove it")
    beneath.remove_file(map.file)


def remove_link(map: BlockMap) -> None:
    """Remove the pod's link, after everything else. A link that is not there is no error; anything else is not removed."""
    found = beneath.stat_file(map.link)
    if found is None:
        return
    if found.kind is not FileKind.SYMLINK:
        raise VolumesError(f"{map.link} is not a link to a device: remove it")
    beneath.remove_file(map.link)


def close_map(directory: Beneath) -> None:
    """Undo what interrupted maps have left in a device's global map. VolumesError while the device is mapped for a pod."""
    refuse_mounted(directory)
    refuse_mounts_above(directory)
    names = [entry.name for entry in list_entries(directory) if is_pod_uid(entry.name)]
    mapped = [name for name in names if mounts.is_mount_point(directory / name)]
    if mapped:
        raise VolumesError(f'the device "{directory}" is still referenced from other Pods [{" ".join(mapped)}]')
    for name in names:  # a map that was interrupted
        unmap_device(BlockMap(directory, PodUID(name), Beneath("", "")))


def remove_map(directory: Beneath) -> None:
    """As `close_map`, and remove the directory, which must be empty then. One that is not there is no error."""
    close_map(directory)
    if beneath.stat_file(directory) is not None:
        beneath.remove_dir(directory)
