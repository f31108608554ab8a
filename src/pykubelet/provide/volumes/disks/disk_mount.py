"""Mounts or maps network disks for the node, and binds them for pods: what iscsi and fc have in common.

A note beside the disk's directory has the volume's unique name: the directory alone does not contain it, and a
restarted agent must know the same name as before.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pykubelet.base.kit.values import Value
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.edges.host.devices.scsi import ScsiPaths, multipath_of
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.beneath import list_directories
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes.directories import VolumeDirs, make_empty_volume_dir, release_volume
from pykubelet.provide.volumes.disks.block_map import close_map, map_device, remove_link, unmap_device
from pykubelet.provide.volumes.disks.block_paths import map_of
from pykubelet.provide.volumes.disks.device_mount import refuse_references
from pykubelet.provide.volumes.disks.disk_plan import MAPS, DiskDevice, DiskPlan, is_map, trees_of
from pykubelet.provide.volumes.kind import (
    CallContext,
    FoundDevice,
    PlanInputs,
    Reports,
    UndecidedPlan,
    VolumeKind,
    VolumesError,
)
from pykubelet.provide.volumes.ownership import GroupChange, change_group

_NOTE = ".volume"


class NetworkDisks(Value):
    """What the kinds of disks that the node reaches over a network have in common. Blocks, but for `stage` and `unstage`.

    `find`: the paths to a disk that the node has now. `name_of`: the unique name by the directory, for a disk of another kubelet; "" if it
    is none. `mount`: finds the disk and mounts it, in block mode only the former; `unmount` undoes that. `directories`: those of the disks
    in a tree, with the names that are noted.
    """

    name: str
    find: Callable[[ScsiPaths, Any], Sequence[str]]
    name_of: Callable[[str], str]
    mount: Callable[[Any, ScsiPaths], None]
    unmount: Callable[[Beneath, str, ScsiPaths], None]
    mount_s: float
    unmount_s: float
    directories: Callable[[Beneath], Iterable[tuple[Beneath, str]]]

    @property
    def plugin(self) -> str:
        """The name of the plugin, such as `kubernetes.io/fc`, which is also the directory of the disks."""
        return f"kubernetes.io/{self.name}"

    def volume_kind(self, plan: Callable[[PlanInputs], DiskPlan | UndecidedPlan]) -> VolumeKind[DiskPlan]:
        """The kind of volumes on such disks."""
        return VolumeKind(
            name=self.name,
            plugin=self.plugin,
            plan=plan,
            set_up=self.set_up,
            is_persistent=True,
            mount_options=True,
            maps_devices=True,
            tear_down=self.tear_down,
            stage=self.stage,
            unstage=self.unstage,
            find_devices=self.find_devices,
            device_of=self.device_of,
        )

    async def stage(self, plan: DiskDevice, context: CallContext) -> None:
        """Find the disk and mount it, unless it is mounted. In block mode it is only found."""
        await context.blocking(lambda: self.mount(plan, ScsiPaths()), self.mount_s)

    async def unstage(self, found: FoundDevice, context: CallContext) -> None:
        """Unmount the disk, or undo its map, and take it off the node."""
        await context.blocking(lambda: self.unmount(found.directory, found.name, ScsiPaths()), self.unmount_s)

    def find_devices(self, paths: Paths) -> Iterator[FoundDevice]:
        """The disks that have a directory."""
        for tree in trees_of(Beneath(paths.plugins, self.plugin)):
            for directory, noted in self.directories(tree):
                if name := noted or self.name_of(directory):
                    yield FoundDevice(name, self.name, directory)

    def device_of(self, paths: Paths, dirs: VolumeDirs) -> str:
        """The unique name of the disk that is bound or mapped for a pod's volume."""
        top = Beneath(paths.plugins, self.plugin)
        directory: str | None = mapped_in(dirs, self._maps(dirs)) if dirs.is_block else disk_of(dirs, top)
        return next((found.name for found in self.find_devices(paths) if found.directory == directory), "")

    def _maps(self, dirs: VolumeDirs) -> list[Beneath]:
        """The directories of all disks that may be mapped."""
        return [directory for directory, _ in self.directories(trees_of(Beneath(dirs.plugins, self.plugin))[1])]

    def set_up(self, plan: DiskPlan, context: Reports) -> None:
        """Bind the disk's mount, or map the disk, for the pod. VolumesError."""
        machine = ScsiPaths()
        set_up(plan, disk_path(machine, self.find(machine, plan.staged)) if plan.map is not None else "", context)

    def tear_down(self, dirs: VolumeDirs) -> None:
        """Unmount the volume, or undo the map."""
        if not dirs.is_block:
            release_volume(dirs)
            return
        directory = mapped_in(dirs, self._maps(dirs))
        map = map_of(directory or Beneath("", ""), dirs)
        if directory is not None:
            unmap_device(map)
        remove_link(map)


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


def mapped_in(dirs: VolumeDirs, directories: Iterable[Beneath]) -> Beneath | None:
    """The one of the directories in which the pod's volume is mapped; None if it is not mapped.

    Several disks of one pod are distinguished by the name of the device, which the kernel knows even of one that is gone.
    """
    found = [directory for directory in directories if beneath.stat_file(directory / dirs.uid) is not None]
    if len(found) > 1:
        device = posixpath.basename(beneath.read_link(dirs.path) or "")
        shown = {
            mount.target: posixpath.basename(mount.root.removesuffix("//deleted")) for mount in mounts.read_mounts()
        }
        found = [directory for directory in found if shown.get(directory / dirs.uid) == device]
    return found[0] if found else None


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
    return next((over for path in paths if (over := multipath_of(machine, path))), paths[0] if paths else "")


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
