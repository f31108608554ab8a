"""Stages and unstages CSI volumes, once for all pods of the node, and finds the staged ones after a restart.

Rules:
 1. Nothing is done for a driver that does not stage volumes, except that the `vol_data.json` of a block volume is written.
 2. `vol_data.json` is written before the driver is called, and removed last: whatever the driver has staged can be unstaged
    after a restart, from this file alone.
 3. A volume whose mount is visible elsewhere too, for a pod for example, is not unstaged.
 4. After a final error nothing is staged, and what was prepared is removed. If something is mounted all the same, and after an
    error that leaves open what the driver has done, all is kept, and the device is uncertain.
Source: Container Storage Interface 1.9, and the behavior of the reference kubelet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.base.model.attachments import unique_csi_name
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.edges.csi.node import Capability, CsiNode
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.beneath import list_directories
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.net.grpc.status import RpcError
from pykubelet.provide.volumes.csi.calls import call_failed, is_final, registered_driver, stage_request
from pykubelet.provide.volumes.csi.data import (
    BLOCK_DATA,
    BLOCK_MAP,
    DATA,
    GLOBAL_MOUNT,
    NO_BLOCK_CLIENT,
    NO_DEVICE_CLIENT,
    PUBLISH,
    STAGING,
    CsiDevicePlan,
    DevicePaths,
    VolumeData,
    driver_missing,
    read_data,
)
from pykubelet.provide.volumes.csi.files import (
    MAX_DATA,
    call_and_sync,
    load_data,
    remove_around,
    remove_empty,
    sync_data,
    write_data,
)
from pykubelet.provide.volumes.directories import VolumeDirs
from pykubelet.provide.volumes.disks.block_map import remove_map
from pykubelet.provide.volumes.disks.device_mount import refuse_references
from pykubelet.provide.volumes.kind import (
    MOUNT_DEVICE,
    CallContext,
    FoundDevice,
    TransientError,
    UncertainError,
    VolumesError,
)

log = Log("provide.volumes")
KIND_NAME = "csi"


async def stage(plan: CsiDevicePlan, context: CallContext) -> None:
    """Have the driver stage the volume. Repeating it does no harm."""
    name, staged = plan.data.driver, _Staged.of(plan.directory)
    no_client = NO_BLOCK_CLIENT if plan.access.is_block else NO_DEVICE_CLIENT
    driver = registered_driver(context.plugins, name, driver_missing(name, no_client), MOUNT_DEVICE)
    try:
        with CsiNode(driver.name, driver.endpoint, is_migrated=plan.access.is_migrated) as node:
            capabilities = await node.capabilities()
            is_staged = Capability.STAGE_UNSTAGE_VOLUME in capabilities
            if is_staged and plan.problem:
                raise TransientError(plan.problem, MOUNT_DEVICE)
            if is_staged or plan.access.is_block:
                await context.blocking(lambda: _prepare(plan, staged, with_target=is_staged))
            if not is_staged:
                if plan.access.is_block:
                    await context.blocking(lambda: sync_data(staged.directory))
                return
            try:
                await call_and_sync(node.stage(stage_request(plan, capabilities)), staged.directory, context)
            except RpcError as error:
                if is_final(error) and not await context.blocking(lambda: _remove(staged)):
                    raise UncertainError(str(error), MOUNT_DEVICE) from error
                raise
    except RpcError as error:
        raise call_failed(error, MOUNT_DEVICE) from error


async def unstage(found: FoundDevice, context: CallContext) -> None:
    """Have the driver unstage the volume, and remove its directories. A volume that is not there is no error."""
    staged = _Staged.of(found.directory)
    data = await context.blocking(lambda: _load(staged))
    if data is None:
        return
    if staged.name:
        await context.blocking(lambda: remove_map(found.directory))
    else:
        await context.blocking(lambda: refuse_references(staged.target, data.handle))
    problem = driver_missing(data.driver, "")
    driver = registered_driver(context.plugins, data.driver, problem, MOUNT_DEVICE)
    try:
        with CsiNode(driver.name, driver.endpoint) as node:
            if Capability.STAGE_UNSTAGE_VOLUME in await node.capabilities():
                await node.unstage(data.handle, staged.target)
    except RpcError as error:
        raise VolumesError(str(error), MOUNT_DEVICE) from error
    if not await context.blocking(lambda: _remove(staged)):
        text = f"the CSI driver {data.driver} has unstaged the volume, but {staged.target} is in use"
        raise VolumesError(text, MOUNT_DEVICE)


def find_devices(paths: Paths) -> Iterable[FoundDevice]:
    """The devices that may be staged, by their `vol_data.json`. A directory without one is found too: it is removed when it is unstaged."""
    where = DevicePaths(paths.plugins)
    for driver in list_directories(where.top):
        if where.top / driver.name == where.block:
            continue
        for volume in list_directories(where.top / driver.name):
            directory = where.top / driver.name / volume.name
            data = _data_in(directory)
            name = (data.unique_name if data is not None else "") or unique_csi_name(driver.name, f"?{volume.name}")
            context = data.context if data is not None else ""
            yield FoundDevice(name, KIND_NAME, directory / GLOBAL_MOUNT, context)
    yield from _find_block_devices(where)


def _find_block_devices(where: DevicePaths) -> Iterator[FoundDevice]:
    for volume in list_directories(where.block):
        data = where.block_data(volume.name)
        if volume.name not in (STAGING, PUBLISH) or beneath.stat_file(data) is not None:
            name = _name_in(data) or unique_csi_name("", volume.name)
            yield FoundDevice(name, KIND_NAME, where.block_map(volume.name))


def device_of(_paths: Paths, dirs: VolumeDirs) -> str:
    """The unique name of the device of a pod's volume; "" for a volume of the pod's own, and for one that is not known."""
    return _name_in(DevicePaths(dirs.plugins).block_data(dirs.name) if dirs.is_block else dirs.path)


def _name_in(directory: Beneath) -> str:
    """The unique name that `vol_data.json` states; "" if it is missing or damaged."""
    data = _data_in(directory)
    return data.unique_name if data is not None else ""


def _data_in(directory: Beneath) -> VolumeData | None:
    """What `vol_data.json` states; None if it is missing or damaged."""
    try:
        return read_data(beneath.read_text(directory / DATA, MAX_DATA))
    except HostError as error:
        if not error.is_not_found:
            log.warning("the data of a CSI volume cannot be read", path=directory, error=error)
        return None


# Blocking work


class _Staged(Value):
    """A staged device. `directory`: has its `vol_data.json`. `target`: what the driver stages. `name`: of a block volume."""

    directory: Beneath
    target: Beneath
    name: str = ""
    paths: DevicePaths = DevicePaths("")

    @classmethod
    def of(cls, directory: Beneath) -> _Staged:
        """The device by its global directory: where it is mounted, or the map of a block volume."""
        above = directory.parent
        if directory.name != BLOCK_MAP:
            return cls(above, directory)
        paths = DevicePaths(directory.top)
        return cls(above / BLOCK_DATA, paths.block_staging(above.name), above.name, paths)


def _prepare(plan: CsiDevicePlan, staged: _Staged, *, with_target: bool) -> None:
    """Make `vol_data.json`, then the directory that the driver stages the volume at."""
    data = plan.data
    write_data(staged.directory, data.block_text() if plan.access.is_block else data.device_text())
    if with_target:
        beneath.make_dirs(staged.target, 0o750)


def _load(staged: _Staged) -> VolumeData | None:
    """What is known about the device; None if nothing is left of it. The empty directory of a block volume is removed then."""
    data = load_data(staged.directory, staged.target)
    if data is None and staged.name and remove_empty(staged.paths.block_map(staged.name)):
        remove_empty(staged.directory.parent)
    return data


def _remove(staged: _Staged) -> bool:
    """Remove what the agent has made. Returns False, and keeps `vol_data.json`, if something is mounted or stored there."""
    if not staged.name:
        return remove_around(staged.directory, staged.target)
    paths, name = staged.paths, staged.name
    if mounts.is_mount_point(staged.target):
        return False
    others = (paths.block_published(name), paths.block_map(name))
    if not all(remove_empty(path) for path in others) or not remove_around(staged.directory, staged.target):
        return False
    beneath.remove_dir(staged.directory.parent)
    return True
