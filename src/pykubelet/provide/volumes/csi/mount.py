"""Publishes and unpublishes CSI volumes: calls to the driver, and the files and directories around them.

Rules:
 1. `vol_data.json` is written before the driver is called: whatever the driver has mounted can be unpublished after a restart.
 2. An error that leaves open what the driver has done makes the volume uncertain. After any other error nothing is mounted,
    and what was prepared is removed, unless the driver may have published the volume before.
 3. Directories are only removed when they are empty and nothing is mounted at them.
Source: Container Storage Interface 1.9, and the behavior of the reference kubelet.
"""

from __future__ import annotations

from pykubelet.edges.csi.node import Capability, CsiNode
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.net.grpc.status import RpcError
from pykubelet.provide.volumes.csi.block import mount_block, unmount_block
from pykubelet.provide.volumes.csi.calls import call_failed, is_final, publish_request, registered_driver
from pykubelet.provide.volumes.csi.data import MOUNT, CsiPlan, driver_missing
from pykubelet.provide.volumes.csi.files import call_and_sync, load_data, remove_around, write_data
from pykubelet.provide.volumes.directories import VolumeDirs
from pykubelet.provide.volumes.kind import SET_UP, CallContext, UncertainError, VolumesError
from pykubelet.provide.volumes.ownership import GroupChange, change_group

#: Seconds without progress after which a change of the group of all files is given up.
GROUP_S = 600.0


async def mount(plan: CsiPlan, context: CallContext) -> None:
    """Have the driver publish the volume, then apply the group, or map the device. Repeating it does no harm."""
    if plan.map is not None:
        await mount_block(plan, plan.map, context)
        return
    driver = registered_driver(context.plugins, plan.data.driver, driver_missing(plan.data.driver), SET_UP)
    try:
        with CsiNode(driver.name, driver.endpoint, is_migrated=plan.access.is_migrated) as node:
            capabilities = await node.capabilities()
            was_there = await context.blocking(lambda: _prepare(plan))
            try:
                await call_and_sync(node.publish(publish_request(plan, capabilities)), plan.directory, context)
            except RpcError as error:
                if is_final(error) and not was_there:
                    await context.blocking(lambda: remove_around(plan.directory, plan.target))
                raise
    except RpcError as error:
        raise call_failed(error, SET_UP) from error
    group = plan.access.fs_group
    if group is None or not plan.is_group_applied or Capability.VOLUME_MOUNT_GROUP in capabilities:
        return
    try:
        await context.blocking(lambda: change_group(_group_change(plan, group), context), GROUP_S)
    except (HostError, VolumesError) as error:
        raise UncertainError(f"applyFSGroup failed for vol {plan.data.handle}: {error}") from error


async def unmount(dirs: VolumeDirs, context: CallContext) -> None:
    """Have the driver unpublish the volume, and remove its directories. A volume that is not there is no error."""
    if dirs.is_block:
        await unmount_block(dirs, context)
        return
    target = dirs.path / MOUNT
    data = await context.blocking(lambda: load_data(dirs.path, target))
    if data is None:
        return
    driver = registered_driver(context.plugins, data.driver, driver_missing(data.driver), SET_UP)
    try:
        with CsiNode(driver.name, driver.endpoint) as node:
            await node.unpublish(data.handle, target)
    except RpcError as error:
        raise VolumesError(str(error)) from error
    if not await context.blocking(lambda: remove_around(dirs.path, target)):
        raise VolumesError(f"the CSI driver {data.driver} has unpublished the volume, but {target} is in use")


# Blocking work


def _prepare(plan: CsiPlan) -> bool:
    """Make the volume's directory and `vol_data.json`. Returns whether the driver may have published the volume already.

    Some drivers fill the directory without a mount. Before the first call it is not there.
    """
    was_there = mounts.is_mount_point(plan.target) or beneath.stat_file(plan.target) is not None
    write_data(plan.directory, plan.data.text())
    return was_there


def _group_change(plan: CsiPlan, group: int) -> GroupChange:
    mounted = plan.mounted
    plugin = f"kubernetes.io/csi:{plan.driver}"
    return GroupChange(plan.target, group, plan.target, plugin, plan.only_on_mismatch, mounted.is_migrated)
