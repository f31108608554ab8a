"""Publishes and unpublishes CSI block volumes: calls to the driver, and the map of the device for the pod.

Rules:
 1. The pod's link is made before the driver is called, and removed last: a restarted agent finds the volume by it. The file
    `vol_data.json` is written when the volume is staged.
 2. An error that leaves open what the driver has done makes the volume uncertain. After any other error nothing is published,
    and what was prepared is removed, unless the device was mapped before.
Source: Container Storage Interface 1.9; KEP-565 (CSI block volumes); layout and order are those of the reference kubelet.
"""

from __future__ import annotations

from pykubelet.base.model.paths import Beneath
from pykubelet.edges.csi.node import CsiNode
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.net.grpc.status import RpcError
from pykubelet.provide.volumes.csi.calls import call_failed, is_final, publish_request, registered_driver
from pykubelet.provide.volumes.csi.data import DATA, NO_MAP_CLIENT, CsiPlan, DevicePaths, VolumeData, driver_missing
from pykubelet.provide.volumes.csi.files import has_data, load_data, remove_empty
from pykubelet.provide.volumes.directories import VolumeDirs
from pykubelet.provide.volumes.disks.block_map import map_device, remove_link, unmap_device
from pykubelet.provide.volumes.disks.block_paths import BlockMap, map_of
from pykubelet.provide.volumes.kind import SET_UP, CallContext, VolumesError


async def mount_block(plan: CsiPlan, map: BlockMap, context: CallContext) -> None:
    """Have the driver publish the device, then map it for the pod. Repeating it does no harm."""
    name = plan.data.driver
    driver = registered_driver(context.plugins, name, driver_missing(name, NO_MAP_CLIENT), SET_UP)
    try:
        with CsiNode(driver.name, driver.endpoint, is_migrated=plan.access.is_migrated) as node:
            capabilities = await node.capabilities()
            was_mapped = await context.blocking(lambda: _prepare(plan.target, map))
            try:
                await node.publish(publish_request(plan, capabilities))
            except RpcError as error:
                if is_final(error) and not was_mapped:
                    await context.blocking(lambda: _remove(plan.target, map))
                raise
    except RpcError as error:
        raise call_failed(error, SET_UP) from error
    await context.blocking(lambda: map_device(plan.target, map))


async def unmount_block(dirs: VolumeDirs, context: CallContext) -> None:
    """Undo the map, and have the driver unpublish the device. A volume that is not there is no error."""
    paths = DevicePaths(dirs.plugins)
    map, target = map_of(paths.block_map(dirs.name), dirs), paths.block_published(dirs.name, dirs.uid)
    data = await context.blocking(lambda: _read(paths.block_data(dirs.name), target, map))
    if data is not None:
        driver = registered_driver(context.plugins, data.driver, driver_missing(data.driver), SET_UP)
        await context.blocking(lambda: unmap_device(map))
        try:
            with CsiNode(driver.name, driver.endpoint) as node:
                await node.unpublish(data.handle, target)
        except RpcError as error:
            raise VolumesError(str(error)) from error
    if not await context.blocking(lambda: _remove(target, map)):
        raise VolumesError(f"the device {target} was unpublished by its CSI driver, but is in use")


# Blocking work


def _prepare(target: Beneath, map: BlockMap) -> bool:
    """Make the pod's link, and the directory that the driver publishes the device in. Returns whether the device is mapped."""
    if mounts.is_mount_point(map.file):
        return True
    beneath.make_dirs(map.link.parent, 0o750)
    beneath.replace_symlink(target, map.link)
    beneath.make_dirs(target.parent, 0o750)
    return False


def _read(directory: Beneath, target: Beneath, map: BlockMap) -> VolumeData | None:
    """What is known about the device; None if the driver has published none. VolumesError if it is not known."""
    is_there = beneath.stat_file(target) is not None
    has_link = beneath.stat_file(map.link) is not None
    if not is_there and not (has_link and has_data(directory)):
        return None
    if not has_data(directory):
        raise VolumesError(f"{directory}/{DATA} is missing, so the CSI driver of {target} is unknown")
    return load_data(directory, target)


def _remove(target: Beneath, map: BlockMap) -> bool:
    """Remove the map, what was published, and the pod's link. Returns False if something is mounted or stored there."""
    unmap_device(map)
    if mounts.is_mount_point(target):
        return False
    found = beneath.stat_file(target)
    if found is not None and found.is_dir:
        if not remove_empty(target):
            return False
    else:
        beneath.remove_file(target)
    remove_link(map)
    return True
