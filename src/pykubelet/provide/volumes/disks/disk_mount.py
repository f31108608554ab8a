"""Binds the mount of a network disk for pods, or maps the disk, and takes it off the node: for iscsi and fc. Blocks.

A note beside the disk's directory has the volume's unique name: the directory alone does not contain it, and a
restarted agent must know the same name as before.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence

from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.devices.scsi import ScsiPaths, multipath_of
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.beneath import list_directories
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes.directories import VolumeDirs, make_empty_volume_dir, release_volume
from pykubelet.provide.volumes.disks.block_map import close_map, map_device, remove_link, unmap_device
from pykubelet.provide.volumes.disks.block_paths import map_of
from pykubelet.provide.volumes.disks.device_mount import refuse_references
from pykubelet.provide.volumes.disks.disk_plan import MAPS, DiskPlan, is_map
from pykubelet.provide.volumes.kind import Reports, VolumesError
from pykubelet.provide.volumes.ownership import GroupChange, change_group

_NOTE = ".volume"


# Pods


def set_up(plan: DiskPlan, disk: str, reports: Reports) -> None:
    """Bind the disk's mount for the pod, or map `disk`, the path of its device; "" if there is none now. VolumesError."""
    if plan.map is not None:
        map_device(disk, plan.map)
    else:
        _bind(plan, reports)


def _bind(plan: DiskPlan, reports: Reports) -> None:
    """Bind the disk's mount unless it is bound, and give its files to the pod's group. VolumesError if it is not mounted."""
    options = ("ro",) if plan.mounted.read_only else ()
    if mounts.is_mount_point(plan.directory):
        mounts.apply_bind_options(plan.directory, options)  # an earlier set-up may have been cut short before it did
        return
    source = plan.staged.directory
    if not mounts.is_mount_point(source):
        raise VolumesError(f"the disk is not mounted at {source}")
    if plan.fs_group is not None:  # before the bind, which is the mark of a finished volume
        plugin = f"kubernetes.io/{plan.kind}"
        change_group(GroupChange(source, plan.fs_group, plan.directory, plugin, plan.is_group_lasting), reports)
    make_empty_volume_dir(plan.directory)
    mounts.bind_with_options(source, plan.directory, options)


def tear_down(dirs: VolumeDirs, directories: Iterable[Beneath]) -> None:
    """Unmount the volume, or undo the map. `directories`: of all disks of the kind that may be mapped."""
    if not dirs.is_block:
        release_volume(dirs)
        return
    directory = mapped_in(dirs, directories)
    map = map_of(directory or Beneath("", ""), dirs)
    if directory is not None:
        unmap_device(map)
    remove_link(map)


def mapped_in(dirs: VolumeDirs, directories: Iterable[Beneath]) -> Beneath | None:
    """The one of the directories in which the pod's volume is mapped; None if it is not mapped.

    Several disks of one pod are distinguished by the name of the device, which the kernel knows even of one that is gone.
    """
    found = [one for one in directories if beneath.stat_file(one / dirs.uid) is not None]
    if len(found) > 1:
        device = posixpath.basename(beneath.read_link(dirs.path) or "")
        shown = {
            mount.target: posixpath.basename(mount.root.removesuffix("//deleted")) for mount in mounts.read_mounts()
        }
        found = [one for one in found if shown.get(one / dirs.uid) == device]
    return found[0] if found else None


# The node


def make_disk_directory(directory: Beneath, name: str) -> None:
    """Make the directory that a disk is mounted on, with the note of the volume's unique name."""
    make_empty_volume_dir(directory)
    beneath.write_atomic(directory.suffixed(_NOTE), name.encode(), 0o640, durable=True)


def remove_disk_directory(directory: Beneath) -> None:
    """Remove the directory of a disk, which must be empty, and then the note."""
    beneath.remove_dir(directory)
    beneath.remove_file(directory.suffixed(_NOTE))


def disk_directories(top: Beneath) -> Iterator[tuple[Beneath, str]]:
    """The directories of disks in a directory, and the unique name of each: "" if nothing is noted."""
    for entry in list_directories(top):
        if entry.name != MAPS:
            directory = top / entry.name
            yield directory, _noted(directory)


def _noted(directory: Beneath) -> str:
    try:
        return beneath.read_text(directory.suffixed(_NOTE), 4096).strip()
    except HostError:
        return ""


def disk_of(dirs: VolumeDirs, top: str) -> str:
    """The directory below `top` whose mount is bound for the pod's volume; "" if there is none."""
    table = mounts.read_mounts()
    bound = next((mount for mount in reversed(table) if mount.target == dirs.path), None)
    if bound is None:
        return ""
    shown = (m.target for m in table if m.target.startswith(f"{top}/") and (m.device, m.root) == (bound.device, "/"))
    return next(shown, "")


def disk_path(machine: ScsiPaths, paths: Sequence[str]) -> str:
    """The multipath device over the paths to a disk, or else the first path; "" if there is none."""
    return next((over for one in paths if (over := multipath_of(machine, one))), paths[0] if paths else "")


def unmount_disk(directory: Beneath, name: str, plugin: str) -> None:
    """Unmount a disk of a plugin such as `kubernetes.io/fc`, or undo its map. One that is not mounted is no error.

    VolumesError as long as it is mounted elsewhere too, or mapped for a pod. `name`: the volume, for that text.
    """
    if is_map(directory, plugin):
        close_map(directory)
        return
    if mounts.is_mount_point(directory):
        refuse_references(directory, name)
    while mounts.is_mount_point(directory):
        mounts.unmount(directory)
