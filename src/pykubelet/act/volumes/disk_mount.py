"""Binds the mount of a network disk for pods, and notes which volume a disk belongs to. Blocks.

The note lies beside the disk's directory and has the volume's unique name: the directory alone does not contain it, and a
restarted agent must know the same name as before.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.act.volumes.directories import VolumeDirs, list_directories, make_empty_volume_dir
from pykubelet.act.volumes.disk_plan import DiskPlan
from pykubelet.act.volumes.kind import SetUpContext, VolumesError
from pykubelet.edges.host.fs import files, mounts, trees
from pykubelet.edges.host.fs.errors import HostError

_NOTE = ".volume"


def set_up(plan: DiskPlan, _context: SetUpContext) -> None:
    """Bind the disk's mount unless it is bound, and give its files to the pod's group. VolumesError if it is not mounted."""
    options = ("ro",) if plan.mounted.read_only else ()
    if mounts.is_mount_point(plan.path):
        mounts.apply_bind_options(plan.path, options)  # an earlier set-up may have been cut short before it did
        return
    source = plan.staged.directory
    if not mounts.is_mount_point(source):
        raise VolumesError(f"the disk is not mounted at {source}")
    if plan.fs_group is not None and not (plan.is_group_lasting and trees.group_is_applied(source, plan.fs_group)):
        trees.apply_group(source, plan.fs_group)  # before the bind, which is the mark of a finished volume
    make_empty_volume_dir(plan.path)
    mounts.bind_with_options(source, plan.path, options)


def make_disk_directory(directory: str, name: str) -> None:
    """Make the directory that a disk is mounted on, with the note of the volume's unique name."""
    make_empty_volume_dir(directory)
    files.write_atomic(f"{directory}{_NOTE}", name.encode(), 0o640, durable=True)


def remove_disk_directory(directory: str) -> None:
    """Remove the directory of a disk, which must be empty, and then the note."""
    files.remove_dir(directory)
    files.remove_file(f"{directory}{_NOTE}")


def disk_directories(top: str) -> Iterable[tuple[str, str]]:
    """The directories of disks in a directory, and the unique name of each: "" if nothing is noted."""
    for entry in list_directories(top):
        directory = f"{top}/{entry.name}"
        yield directory, _noted(directory)


def _noted(directory: str) -> str:
    try:
        return files.read_text(f"{directory}{_NOTE}", 4096).strip()
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


def unmount_disk(directory: str) -> None:
    """Unmount a disk. One that is not mounted is no error."""
    while mounts.is_mount_point(directory):
        mounts.unmount(directory)
