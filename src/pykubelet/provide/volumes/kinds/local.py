"""local persistent volumes: a directory or block device of this node. The data outlive the pods.

A directory is bound below the pod's own. The file system of a block device is mounted once on the node and that mount bound
for each pod; an empty device is formatted before. A volume of mode Block is mapped for the pod as it is.
Source: the Kubernetes documentation "Volumes", local.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.api.storage import PersistentVolumeSpec
from pykubelet.base.model import reasons
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.edges.host.devices.disk_formats import GROW_S, grow_file_system
from pykubelet.edges.host.fs import files, mounts
from pykubelet.edges.host.fs.beneath import list_entries
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind, FileStat
from pykubelet.provide.volumes.directories import VolumeDirs, make_empty_volume_dir, release_volume
from pykubelet.provide.volumes.disks.block_map import map_device, remove_link, remove_map, unmap_device
from pykubelet.provide.volumes.disks.block_paths import BlockMap, map_of
from pykubelet.provide.volumes.disks.device_mount import STAGE_S, mount_device, unmount_device
from pykubelet.provide.volumes.expansion import ExpandError
from pykubelet.provide.volumes.kind import (
    NEW_MOUNTER,
    CallContext,
    DevicePlan,
    DirectoryPlan,
    FoundDevice,
    Note,
    PlanInputs,
    SetUpContext,
    VolumeKind,
    VolumesError,
)
from pykubelet.provide.volumes.ownership import GroupChange, change_group

_NAME, _PLUGIN, _DIRECTORY = "local", "kubernetes.io/local-volume", "kubernetes.io~local-volume"


class LocalDevice(DevicePlan):
    """The directory or device at `path`. `fs_type`: "" is ext4. `options`: those of the device's mount."""

    path: str = ""
    fs_type: str = ""
    options: tuple[str, ...] = ()
    is_block: bool = False

    @property
    def device_path(self) -> str:
        """The device of a volume of mode Block: whether the path is a device is otherwise known on the host only."""
        return self.path if self.is_block else ""


class LocalPlan(DirectoryPlan):
    """A plan to bind `source.path`, or to map it. `fs_group` None: files keep their group. `is_group_lasting`: `OnRootMismatch`."""

    source: LocalDevice
    options: tuple[str, ...] = ()
    fs_group: int | None = None
    is_group_lasting: bool = False
    map: BlockMap | None = None

    @property
    def device(self) -> LocalDevice:
        """A directory has one too: what the path leads to is known on the host only."""
        return self.source


def plan(inputs: PlanInputs) -> LocalPlan:
    """The bind or map of the path. VolumesError for a path with `..`."""
    source, claimed = inputs.source, inputs.claimed
    assert claimed is not None and isinstance(source, PersistentVolumeSpec) and source.local is not None
    local, dirs, name, is_block = source.local, inputs.dirs, f"{_PLUGIN}/{inputs.spec_name}", inputs.is_block
    if ".." in local.path.split("/"):
        raise VolumesError(f"invalid local path `{local.path}`: must not contain '..'", NEW_MOUNTER)
    mounted = inputs.mounted(
        dirs.path,
        read_only=claimed.read_only,
        supports_relabel=not claimed.read_only and not is_block,
        is_measured=False,
        has_stats=True,
    )
    if is_block:
        map = map_of(_maps(inputs.paths.plugins) / inputs.spec_name, dirs)
        return LocalPlan(
            mounted, dirs.path, LocalDevice(name, _NAME, map.directory, path=local.path, is_block=True), map=map
        )
    options = tuple(sorted({*claimed.mount_options, *(("ro",) if claimed.read_only else ())}))
    directory = _mounts(inputs.paths.plugins) / inputs.spec_name
    device = LocalDevice(name, _NAME, directory, path=local.path, fs_type=local.fsType or "", options=options)
    context = inputs.pod.spec.securityContext
    lasting = context is not None and context.fsGroupChangePolicy == "OnRootMismatch"
    return LocalPlan(mounted, dirs.path, device, options, None if claimed.read_only else inputs.fs_group, lasting)


def _mounts(plugins: str) -> Beneath:
    return Beneath(plugins, f"{_PLUGIN}/mounts")


def _maps(plugins: str) -> Beneath:
    return Beneath(plugins, f"{_DIRECTORY}/volumeDevices")


def _stat(path: str) -> FileStat:
    """What is at the path: a directory or a block device. VolumesError otherwise."""
    found = files.stat_file(path)
    if found is None:
        raise VolumesError(f'path "{path}" does not exist', NEW_MOUNTER)
    if not found.is_dir and found.kind is not FileKind.BLOCK_DEVICE:
        raise VolumesError("only directory and block device are supported", NEW_MOUNTER)
    return found


# Devices


async def stage(plan: LocalDevice, context: CallContext) -> None:
    """Mount the file system of a block device. For a directory and in block mode there is nothing to do."""
    if not plan.is_block:
        await context.blocking(lambda: _mount_device(plan), STAGE_S)


def _mount_device(plan: LocalDevice) -> None:
    if _is_bound(plan):
        return  # without asking the path, which may be on a file system that hangs
    if not _stat(plan.path).is_dir:
        mount_device(plan.path, plan.directory, plan.fs_type, plan.options)


async def unstage(found: FoundDevice, context: CallContext) -> None:
    """Unmount the file system of a block device, or remove its global map."""
    name = found.name.removeprefix(f"{_PLUGIN}/")
    is_map = found.directory.endswith(f"/{_DIRECTORY}/volumeDevices/{name}")
    await context.blocking(
        lambda: remove_map(found.directory) if is_map else unmount_device(found.directory, name), UNSTAGE_S
    )


def find_devices(paths: Paths) -> Iterable[FoundDevice]:
    """The mounted and the mapped devices."""
    for top in (_mounts(paths.plugins), _maps(paths.plugins)):
        for entry in list_entries(top):
            yield FoundDevice(f"{_PLUGIN}/{entry.name}", _NAME, top / entry.name)


def device_of(_paths: Paths, dirs: VolumeDirs) -> str:
    """The unique name of the volume."""
    return f"{_PLUGIN}/{dirs.name}"


# Pods


def set_up(plan: LocalPlan, context: SetUpContext) -> None:
    """Bind the directory or the mounted device unless it is bound, and give its files to the pod's group; or map the device."""
    if plan.map is not None:
        map_device(plan.source.path, plan.map)
        return
    if mounts.is_mount_point(plan.directory):
        mounts.apply_bind_options(
            plan.directory, plan.options
        )  # an earlier set-up may have been cut short before it did
        return  # without asking the path, which may be on a file system that hangs
    source = plan.source.path
    if not _stat(source).is_dir:
        source = plan.source.directory
        if not mounts.is_mount_point(source):
            raise VolumesError(f"the device {plan.source.path} is not mounted at {source}")
    _apply_group(plan, source, context)  # before the bind, which is the mark of a finished volume
    make_empty_volume_dir(plan.directory)
    mounts.bind_with_options(source, plan.directory, plan.options)


def _apply_group(plan: LocalPlan, source: str, context: SetUpContext) -> None:
    """Give the files to the pod's group, unless another pod uses them."""
    group = plan.fs_group
    if group is None:
        return
    if not _is_bound(plan.source):
        change_group(GroupChange(source, group, plan.directory, _PLUGIN, plan.is_group_lasting), context)
        return
    found = files.stat_file(source)
    if found is not None and found.gid != group:
        text = (
            f"The requested fsGroup is {group}, but the volume {plan.spec_name} has GID {found.gid}. "
            "The volume may not be shareable."
        )
        context.note(Note(reasons.EVENT_ALREADY_MOUNTED_VOLUME, text))


def _is_bound(device: LocalDevice) -> bool:
    """Whether the volume is bound for any pod of this node."""
    root, _, name = device.directory.removesuffix("/").partition(f"/plugins/{_PLUGIN}/mounts/")
    below_pod = f"/volumes/{_DIRECTORY}/{name}"
    return any(mount.target.endswith(below_pod) for mount in mounts.mounts_below(f"{root}/pods"))


async def expand(plan: LocalPlan, size: int, context: CallContext) -> int:
    """Grow the file system of a block device to the size of the device. A directory and a device without one have their size."""
    if not plan.source.is_block:
        await context.blocking(lambda: _grow(plan.source), GROW_S)
    return size


def _grow(device: LocalDevice) -> None:
    try:
        if not _stat(device.path).is_dir:
            grow_file_system(device.path, device.directory)
    except HostError as error:
        raise ExpandError(str(error)) from error


def tear_down(dirs: VolumeDirs) -> None:
    """Unmount the volume, or undo the map."""
    if not dirs.is_block:
        release_volume(dirs)
        return
    map = map_of(_maps(dirs.plugins) / dirs.name, dirs)
    unmap_device(map)
    remove_link(map)


UNSTAGE_S = 120.0
KIND = VolumeKind(
    name=_NAME,
    plugin=_PLUGIN,
    plan=plan,
    set_up=set_up,
    is_persistent=True,
    mount_options=True,
    maps_devices=True,
    tear_down=tear_down,
    stage=stage,
    unstage=unstage,
    find_devices=find_devices,
    device_of=device_of,
    expand=expand,
)
