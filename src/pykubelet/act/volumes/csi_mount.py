"""Publishes and unpublishes CSI volumes: calls to the driver, and the files and directories around them.

Rules:
 1. `vol_data.json` is written before the driver is called: whatever the driver has mounted can be unpublished after a restart.
    That of a block volume is written when the volume is staged.
 2. An error that leaves open what the driver has done makes the volume uncertain. After any other error nothing is mounted,
    and what was prepared is removed, unless the volume was mounted before.
 3. Directories are only removed when they are empty and nothing is mounted at them.
Source: Container Storage Interface 1.9, and the behavior of the reference kubelet.
"""

from __future__ import annotations

import posixpath

from pykubelet.act.volumes.csi_calls import call_failed, is_final, publish_request, registered_driver
from pykubelet.act.volumes.csi_data import MOUNT, CsiPlan, DevicePaths, VolumeData, driver_missing
from pykubelet.act.volumes.csi_files import load_data, remove_around, remove_empty, write_data
from pykubelet.act.volumes.directories import VolumeDirs
from pykubelet.act.volumes.kind import SET_UP, CallContext, UncertainError, VolumesError
from pykubelet.base.kit.values import Value
from pykubelet.edges.csi.node import Capability, CsiNode
from pykubelet.edges.host.fs import files, mounts, trees
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.plugins.rpc import PluginCallError

#: Seconds for changing the group of all files of a volume.
GROUP_S = 600.0


async def mount(plan: CsiPlan, context: CallContext) -> None:
    """Have the driver publish the volume, then apply the group. Repeating it does no harm."""
    driver = registered_driver(context.plugins, plan.data.driver, driver_missing(plan.data.driver), SET_UP)
    try:
        with CsiNode(driver.name, driver.endpoint) as node:
            capabilities = await node.capabilities()
            was_mounted = await context.blocking(lambda: _prepare(plan))
            try:
                await node.publish(publish_request(plan, capabilities))
            except PluginCallError as error:
                if is_final(error) and not was_mounted:
                    await context.blocking(lambda: _remove(_Published.of(plan)))
                raise
    except PluginCallError as error:
        raise call_failed(error, SET_UP) from error
    group = plan.access.fs_group
    if group is None or not plan.is_group_applied or Capability.VOLUME_MOUNT_GROUP in capabilities:
        return
    try:
        await context.blocking(lambda: _apply_group(plan, group), GROUP_S)
    except (HostError, VolumesError) as error:
        raise UncertainError(f"applyFSGroup failed for vol {plan.data.handle}: {error}") from error


async def unmount(dirs: VolumeDirs, context: CallContext) -> None:
    """Have the driver unpublish the volume, and remove its directories. A volume that is not there is no error."""
    published = published_at(dirs)
    data = await context.blocking(lambda: _read(published))
    if data is None:
        return
    driver = registered_driver(context.plugins, data.driver, driver_missing(data.driver), SET_UP)
    try:
        with CsiNode(driver.name, driver.endpoint) as node:
            await node.unpublish(data.handle, published.target)
    except PluginCallError as error:
        raise VolumesError(str(error)) from error
    if not await context.blocking(lambda: _remove(published)):
        raise VolumesError(f"the CSI driver {data.driver} has unpublished the volume, but {published.target} is in use")


class _Published(Value):
    """What the driver publishes for a pod: `target`. `directory`: has its `vol_data.json`."""

    directory: str
    target: str
    is_block: bool

    @classmethod
    def of(cls, plan: CsiPlan) -> _Published:
        """The place of a plan."""
        if not plan.access.is_block:
            return cls(plan.directory, plan.target, False)
        return cls(posixpath.dirname(plan.target), plan.target, True)


def published_at(dirs: VolumeDirs) -> _Published:
    """What is published for a pod's volume below `volumes` or `volumeDevices`."""
    above, _, name = dirs.path.rpartition("/")
    pod, _, folder = posixpath.dirname(above).rpartition("/")
    if folder != "volumeDevices":
        return _Published(dirs.path, f"{dirs.path}/{MOUNT}", False)
    pods, _, uid = pod.rpartition("/")
    paths = DevicePaths(f"{posixpath.dirname(pods)}/plugins")
    return _Published(paths.block_data(name), paths.block_published(name, uid), True)


# Blocking work


def _prepare(plan: CsiPlan) -> bool:
    """Make the volume's directory and `vol_data.json`. Returns whether the volume is mounted already."""
    if plan.access.is_block:
        files.make_dirs(posixpath.dirname(plan.target), 0o750)
        return files.stat_file(plan.target, follow=False) is not None
    write_data(plan.directory, plan.data.text())
    return mounts.is_mount_point(plan.target)


def _read(published: _Published) -> VolumeData | None:
    """What is known about the volume; None if there is nothing to unpublish. VolumesError if that is not known."""
    if published.is_block and files.stat_file(published.target, follow=False) is None:
        return None
    return load_data(published.directory, published.target)


def _remove(published: _Published) -> bool:
    """Remove what the agent has made. Returns False, and keeps all, if something is mounted or stored there."""
    if not published.is_block:
        return remove_around(published.directory, published.target)
    if mounts.is_mount_point(published.target):
        return False
    found = files.stat_file(published.target, follow=False)
    return remove_empty(published.target) if found is not None and found.is_dir else _remove_node(published.target)


def _remove_node(target: str) -> bool:
    files.remove_file(target)
    return True


def _apply_group(plan: CsiPlan, group: int) -> None:
    if not (plan.only_on_mismatch and trees.group_is_applied(plan.path, group)):
        trees.apply_group(plan.path, group)
