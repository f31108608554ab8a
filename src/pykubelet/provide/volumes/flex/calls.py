"""Calls a flexVolume driver to mount and unmount volumes, for pods and for the node.

A command that the driver does not have is done by the agent: a bind, the mount of a device, an unmount.
Source: as `edges/plugins/flexvolume.py`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.base.model.plugins import FlexDriver
from pykubelet.edges.host.devices.disk_formats import FORMAT_AND_MOUNT_S, GROW_S, grow_file_system
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.beneath import list_directories
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.plugins.flexvolume import FlexAnswer, FlexCallError, call_driver
from pykubelet.provide.volumes.directories import VolumeDirs, make_empty_volume_dir, release_volume
from pykubelet.provide.volumes.disks.device_mount import mount_device, refuse_references
from pykubelet.provide.volumes.expansion import ExpandError, ExpandFault
from pykubelet.provide.volumes.flex.extension import set_up_by_extension, tear_down_by_extension
from pykubelet.provide.volumes.flex.plan import (
    KIND_NAME,
    ExtensionPlan,
    FlexDevicePlan,
    FlexPlan,
    devices_of,
    extension_in,
)
from pykubelet.provide.volumes.kind import (
    MOUNT_DEVICE,
    SET_UP,
    CallContext,
    FoundDevice,
    Reports,
    TransientError,
    UncertainError,
    VolumesError,
)
from pykubelet.provide.volumes.ownership import GroupChange, change_group

#: How long a driver may take for one command: seconds.
CALL_S = 120.0
_WORK_S = CALL_S + 30.0
_STAGE_S = 2 * CALL_S + FORMAT_AND_MOUNT_S + 60.0
_SECRET = "kubernetes.io/secret/"


# A pod's volume


async def mount(plan: FlexPlan | ExtensionPlan, context: CallContext) -> None:
    """Mount the volume for its pod, unless it is mounted. TransientError while there is no such driver."""
    if isinstance(plan, ExtensionPlan):
        await set_up_by_extension(plan, context)
        return
    _require(context, plan.flex.name)
    await context.blocking(lambda: _mount(plan, context), _WORK_S)


def _mount(plan: FlexPlan, reports: Reports) -> None:
    if mounts.is_mount_point(plan.directory):
        return
    make_empty_volume_dir(plan.directory)
    secrets = {f"{_SECRET}{name}": base64.b64encode(value).decode() for name, value in plan.secrets.data.items()}
    arguments = (plan.directory, _as_json({**secrets, **plan.pod_options, **plan.options}))
    if _call(plan.flex, "mount", arguments, plan.directory, SET_UP) is None:
        if plan.staged is None:
            beneath.remove_dir(plan.directory)
            raise VolumesError("mount command is not supported by the driver")
        mounts.bind(plan.staged.directory, plan.directory)
    if plan.fs_group is not None:
        change = GroupChange(plan.directory, plan.fs_group, plan.directory, plan.flex.name, plan.is_group_lasting)
        change_group(change, reports)


async def expand(plan: FlexPlan | ExtensionPlan, size: int, context: CallContext) -> int:
    """Have the driver grow the file system, or grow it by the file system's own tool. ExpandError."""
    if isinstance(plan, ExtensionPlan):
        raise ExpandError(f"volumes of extension {plan.extension} do not grow on the node", ExpandFault.NOT_SUPPORTED)
    if not plan.flex.grows:
        text = f"the file systems of the flexVolume driver {plan.flex.name} do not grow on the node"
        raise ExpandError(text, ExpandFault.NOT_SUPPORTED)
    await context.blocking(lambda: _expand(plan, size, context.size), CALL_S + GROW_S + 30.0)
    return size


def _expand(plan: FlexPlan, size: int, before: int) -> None:
    device = _device_below(plan)
    try:
        arguments = (_as_json(plan.options), device, plan.directory, str(size), str(before))
        call_driver(plan.flex.program, "expandfs", arguments, CALL_S, plan.directory)
        return
    except FlexCallError as error:
        if not error.is_unsupported:
            raise ExpandError(str(error)) from error
    try:
        grow_file_system(device, plan.directory)
    except HostError as error:
        raise ExpandError(str(error)) from error


def _device_below(plan: FlexPlan) -> str:
    """The device of the volume: as the Node's status names it, or else as the mount table does."""
    if plan.staged is not None and plan.staged.device:
        return plan.staged.device
    return next((mount.source for mount in reversed(mounts.read_mounts()) if mount.target == plan.directory), "")


async def unmount(dirs: VolumeDirs, context: CallContext) -> None:
    """Unmount a pod's volume and remove its directory. What is mounted by a driver that is gone waits for the driver.

    Directories of kinds that Kubernetes had in the past are unmounted without a driver.
    """
    directory = dirs.path.split("/")[-2]
    if (extension := extension_in(directory)) and await tear_down_by_extension(dirs, extension, context):
        return
    driver = context.plugins.flex.usable.get(directory.replace("~", "/"))
    await context.blocking(lambda: _unmount(dirs, directory, driver), _WORK_S)


def _unmount(dirs: VolumeDirs, directory: str, driver: FlexDriver | None) -> None:
    if driver is not None and beneath.stat_file(dirs.path) is not None:
        _call(driver, "unmount", (dirs.path,), dirs.path, SET_UP)
    elif driver is None and not directory.startswith("kubernetes.io~") and mounts.is_mount_point(dirs.path):
        raise TransientError(_missing(directory.replace("~", "/")))
    release_volume(dirs)


# The node's mount


async def stage(plan: FlexDevicePlan, context: CallContext) -> None:
    """Mount the volume's device for the node, unless it is mounted. TransientError while there is no such driver."""
    _require(context, plan.driver.name)
    await context.blocking(lambda: _stage(plan), _STAGE_S)


def _stage(plan: FlexDevicePlan) -> None:
    if mounts.is_mount_point(plan.directory):
        return
    options = _as_json(plan.options)
    attached = _call(plan.driver, "waitforattach", (plan.device, options), plan.directory, "WaitForAttach")
    device = attached.device if attached is not None else plan.device
    make_empty_volume_dir(plan.directory)
    answer = _call(plan.driver, "mountdevice", (plan.directory, device, options), plan.directory, MOUNT_DEVICE)
    if answer is None and device:
        mount_device(device, plan.directory, plan.fs_type, ("ro" if plan.read_only else "rw",))


async def unstage(found: FoundDevice, context: CallContext) -> None:
    """Undo `stage`. What is mounted by a driver that is gone waits for the driver. VolumesError if it is mounted elsewhere too."""
    name = found.name.rpartition("/")[0]
    driver = context.plugins.flex.usable.get(name)
    await context.blocking(lambda: _unstage(found, name, driver), _WORK_S)


def _unstage(found: FoundDevice, name: str, driver: FlexDriver | None) -> None:
    directory = found.directory
    if beneath.stat_file(directory) is None:
        return
    if mounts.is_mount_point(directory):
        refuse_references(directory, found.name)
    if driver is not None:
        _call(driver, "unmountdevice", (directory,), directory, MOUNT_DEVICE)
    elif mounts.is_mount_point(directory):
        raise TransientError(_missing(name), MOUNT_DEVICE)
    while mounts.unmount(directory):
        continue
    beneath.remove_dir(directory)


def find_devices(paths: Paths) -> tuple[FoundDevice, ...]:
    """The devices of all drivers: `<vendor>/<driver>/mounts/<name>`, or `<driver>/mounts/<name>`."""
    top = devices_of(paths)
    firsts = [entry.name for entry in list_directories(top)]
    drivers = firsts + [f"{first}/{entry.name}" for first in firsts for entry in list_directories(top / first)]
    return tuple(
        FoundDevice(f"{driver}/{entry.name}", KIND_NAME, top / driver / "mounts" / entry.name)
        for driver in drivers
        for entry in list_directories(top / driver / "mounts")
    )


def device_of(paths: Paths, dirs: VolumeDirs) -> str:
    """The unique name of the device of a pod's volume, "" for a driver that mounts for pods alone."""
    _, directory, name = dirs.path.rsplit("/", 2)
    device = f"{directory.replace('~', '/')}/{name}"
    driver = device.rpartition("/")[0]
    return device if beneath.stat_file(devices_of(paths) / driver / "mounts" / name) is not None else ""


# Calls


def _require(context: CallContext, name: str) -> None:
    if name not in context.plugins.flex.usable:
        raise TransientError(_missing(name))


def _missing(name: str) -> str:
    return f"the flexVolume driver {name} is not there"


def _call(
    driver: FlexDriver, command: str, arguments: Sequence[str], directory: Beneath, step: str
) -> FlexAnswer | None:
    """The driver's answer; None if it has no such command. After a failure a `directory` that is empty and not mounted goes."""
    try:
        return call_driver(driver.program, command, arguments, CALL_S, directory)
    except FlexCallError as error:
        if error.is_unsupported:
            return None
        if error.is_unfinished or mounts.is_mount_point(directory):
            raise UncertainError(str(error), step) from error
        if command in ("mount", "mountdevice"):
            beneath.remove_dir(directory)
        raise VolumesError(str(error), step) from error


def _as_json(options: Mapping[str, str]) -> str:
    return json.dumps(options, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
