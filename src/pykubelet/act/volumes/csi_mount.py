"""Publishes and unpublishes CSI volumes: calls to the driver, and the files and directories around them.

Rules:
 1. `vol_data.json` is written before the driver is called: whatever the driver has mounted can be unpublished after a restart.
 2. An error that leaves open what the driver has done makes the volume uncertain. After any other error nothing is mounted,
    and what was prepared is removed, unless the volume was mounted before.
 3. Directories are only removed when they are empty and nothing is mounted at them.
Source: Container Storage Interface 1.9, and the behavior of the reference kubelet.
"""

from __future__ import annotations

from pykubelet.act.volumes.csi_data import DATA, MOUNT, CsiPlan, VolumeData, driver_missing, read_data
from pykubelet.act.volumes.directories import VolumeDirs
from pykubelet.act.volumes.kind import CallContext, UncertainError, VolumesError
from pykubelet.base.model.plugins import Plugin, Plugins
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import Capability, CsiNode
from pykubelet.edges.host.fs import files, mounts, trees
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.plugins.rpc import PluginCallError
from pykubelet.net.grpc.status import Code

MAX_DATA = 64 << 10
#: Seconds for changing the group of all files of a volume.
GROUP_S = 600.0
#: After these, the driver may have mounted the volume.
UNCERTAIN = (Code.CANCELED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED)
_MODE = pb.VolumeCapability.AccessMode


async def mount(plan: CsiPlan, context: CallContext) -> None:
    """Have the driver publish the volume, then apply the group. Repeating it does no harm."""
    driver = _driver(context.plugins, plan.data.driver)
    try:
        with CsiNode(driver.name, driver.endpoint) as node:
            capabilities = await node.capabilities()
            was_mounted = await context.blocking(lambda: _prepare(plan))
            try:
                await node.publish(_request(plan, capabilities))
            except PluginCallError as error:
                if error.code not in UNCERTAIN and not was_mounted:
                    await context.blocking(lambda: _remove_directories(plan.directory))
                raise
    except PluginCallError as error:
        raise (UncertainError if error.code in UNCERTAIN else VolumesError)(str(error)) from error
    group = plan.fs_group
    if group is None or not plan.is_group_applied or Capability.VOLUME_MOUNT_GROUP in capabilities:
        return
    try:
        await context.blocking(lambda: _apply_group(plan, group), GROUP_S)
    except (HostError, VolumesError) as error:
        raise UncertainError(f"applyFSGroup failed for vol {plan.data.handle}: {error}") from error


async def unmount(dirs: VolumeDirs, context: CallContext) -> None:
    """Have the driver unpublish the volume, and remove its directories. A volume that is not there is no error."""
    data = await context.blocking(lambda: _read(dirs.path))
    if data is None:
        return
    driver = _driver(context.plugins, data.driver)
    try:
        with CsiNode(driver.name, driver.endpoint) as node:
            await node.unpublish(data.handle, f"{dirs.path}/{MOUNT}")
    except PluginCallError as error:
        raise VolumesError(str(error)) from error
    if not await context.blocking(lambda: _remove_directories(dirs.path)):
        raise VolumesError(
            f"the CSI driver {data.driver} has unpublished the volume, but {dirs.path}/{MOUNT} is in use"
        )


def _driver(plugins: Plugins, name: str) -> Plugin:
    found = plugins.csi_driver(name)
    if found is None:
        raise VolumesError(driver_missing(name))
    return found


def _request(plan: CsiPlan, capabilities: frozenset[int]) -> pb.NodePublishVolumeRequest:
    group = str(plan.fs_group) if plan.fs_group is not None and Capability.VOLUME_MOUNT_GROUP in capabilities else ""
    several = Capability.SINGLE_NODE_MULTI_WRITER in capabilities
    mode = _MODE.SINGLE_NODE_MULTI_WRITER if several else _MODE.SINGLE_NODE_WRITER
    return pb.NodePublishVolumeRequest(
        volume_id=plan.data.handle,
        target_path=plan.path,
        volume_capability=pb.VolumeCapability(
            mount=pb.VolumeCapability.MountVolume(fs_type=plan.fs_type, volume_mount_group=group),
            access_mode=_MODE(mode=mode),
        ),
        readonly=plan.mounted.read_only,
        secrets=dict(plan.hidden.secrets),
        volume_context={**plan.context, **plan.hidden.context},
    )


# Blocking work


def _prepare(plan: CsiPlan) -> bool:
    """Make the volume's directory and `vol_data.json`. Returns whether the volume is mounted already."""
    files.make_dirs(plan.directory, 0o750)
    files.write_atomic(f"{plan.directory}/{DATA}", plan.data.text(), 0o644, durable=True)
    return mounts.is_mount_point(plan.path)


def _read(path: str) -> VolumeData | None:
    """What is known about the volume at `path`; None if there is nothing to unpublish. VolumesError if that is not known."""
    if files.stat_file(path, follow=False) is None:
        return None
    if files.stat_file(f"{path}/{DATA}", follow=False) is None:
        if _remove_directories(path):
            return None
        raise VolumesError(f"{path}/{DATA} is missing, so its CSI driver is unknown: unmount {path}/{MOUNT}")
    data = read_data(files.read_text(f"{path}/{DATA}", MAX_DATA))
    if data is None:
        raise VolumesError(f"{path}/{DATA} is damaged: unmount {path}/{MOUNT} and remove the file")
    return data


def _remove_directories(path: str) -> bool:
    """Remove the volume's directories and `vol_data.json`. Returns False, and keeps all, if something is mounted or stored there."""
    target = f"{path}/{MOUNT}"
    if mounts.is_mount_point(target):
        return False
    try:
        files.remove_dir(target)
    except HostError as error:
        if not error.is_busy and not error.is_not_found:
            raise
        if error.is_busy:
            return False
    files.remove_temporaries(path)
    if set(files.names_in(path)) - {DATA}:
        return False
    files.remove_file(f"{path}/{DATA}")
    files.remove_dir(path)
    return True


def _apply_group(plan: CsiPlan, group: int) -> None:
    if not (plan.only_on_mismatch and trees.group_is_applied(plan.path, group)):
        trees.apply_group(plan.path, group)
