"""fc volumes: a disk that the node's Fibre Channel adapters reach.

The disk is mounted once for the node, an empty one is formatted before; pods get binds. A volume of mode Block is mapped for
the pod as it is.
Source: the Kubernetes documentation "Volumes", fc.
"""

from __future__ import annotations

from pykubelet.provide.volumes.attached import await_attachment
from pykubelet.provide.volumes.disks.disk_plan import DiskPlan, is_read_only, mount_options, plan_bind, trees_of
from pykubelet.provide.volumes.disks.fc_disk import device_of, find_devices, set_up, stage, tear_down, unstage
from pykubelet.provide.volumes.disks.fc_plan import NAME, PLUGIN, FcDevice, disk_of_source, disks
from pykubelet.provide.volumes.kind import PlanInputs, UndecidedPlan, VolumeKind
from pykubelet.provide.volumes.selinux import mount_context


def plan(inputs: PlanInputs) -> DiskPlan | UndecidedPlan:
    """The disk and its bind; undecided until it is attached. VolumesError."""
    source = inputs.source.fc
    assert source is not None
    read_only = is_read_only(inputs, source.readOnly)
    disk = disk_of_source(source)
    device = FcDevice(
        name=disk.unique_name,
        kind=NAME,
        directory=trees_of(disks(inputs.paths.plugins))[inputs.is_block] / disk.directory_name,
        is_attachable=inputs.content.available,
        fs_type=source.fsType,
        options=mount_options(inputs, read_only),
        is_block=inputs.is_block,
        context=mount_context(inputs),
        disk=disk,
    )
    return await_attachment(inputs, device, is_nothing=True) or plan_bind(inputs, device, read_only, has_stats=False)


KIND = VolumeKind(
    name=NAME,
    plugin=PLUGIN,
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
)
