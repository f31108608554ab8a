"""Requests to CSI drivers: (plan, the driver's capabilities) -> message. Pure. And how errors of calls are classified.

Source: Container Storage Interface 1.9; the classes of errors are those of the reference kubelet.
"""

from __future__ import annotations

from pykubelet.base.kit.values import replace
from pykubelet.base.model.plugins import Plugin, Plugins
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import Capability
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.provide.volumes.csi.data import CsiAccess, CsiDevicePlan, CsiPlan
from pykubelet.provide.volumes.kind import TransientError, UncertainError, VolumesError

#: After these, the driver may have mounted the volume.
UNCERTAIN = (Code.CANCELED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED)
_MODE = pb.VolumeCapability.AccessMode
_MODES = {
    "ReadWriteOnce": _MODE.SINGLE_NODE_WRITER,
    "ReadWriteOncePod": _MODE.SINGLE_NODE_WRITER,
    "ReadOnlyMany": _MODE.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": _MODE.MULTI_NODE_MULTI_WRITER,
}
#: Of drivers with the capability SINGLE_NODE_MULTI_WRITER.
_FINER_MODES = {
    **_MODES,
    "ReadWriteOnce": _MODE.SINGLE_NODE_MULTI_WRITER,
    "ReadWriteOncePod": _MODE.SINGLE_NODE_SINGLE_WRITER,
}


def registered_driver(plugins: Plugins, name: str, problem: str, step: str) -> Plugin:
    """The registered driver. TransientError with `problem` if there is none."""
    found = plugins.csi_driver(name)
    if found is None:
        raise TransientError(problem, step)
    return found


def is_final(error: RpcError) -> bool:
    """Whether the driver has certainly mounted nothing."""
    return error.code not in UNCERTAIN


def call_failed(error: RpcError, step: str) -> VolumesError:
    """The error of a call that mounts something."""
    return (VolumesError if is_final(error) else UncertainError)(str(error), step)


def stage_request(plan: CsiDevicePlan, capabilities: frozenset[int]) -> pb.NodeStageVolumeRequest:
    """The call to stage a volume."""
    return pb.NodeStageVolumeRequest(
        volume_id=plan.data.handle,
        publish_context=dict(plan.access.publish_context),
        staging_target_path=plan.staging,
        volume_capability=_capability(plan.access, capabilities),
        secrets=dict(plan.hidden.secrets),
        volume_context=dict(plan.access.context),
    )


def publish_request(plan: CsiPlan, capabilities: frozenset[int]) -> pb.NodePublishVolumeRequest:
    """The call to publish a volume for a pod."""
    is_staged = plan.access.is_block or Capability.STAGE_UNSTAGE_VOLUME in capabilities
    return pb.NodePublishVolumeRequest(
        volume_id=plan.data.handle,
        publish_context=dict(plan.access.publish_context),
        staging_target_path=plan.staged.staging if plan.staged is not None and is_staged else "",
        target_path=plan.target,
        volume_capability=_capability(plan.access, capabilities),
        readonly=plan.mounted.read_only,
        secrets=dict(plan.hidden.secrets),
        volume_context={**plan.access.context, **plan.hidden.context},
    )


def expand_request(plan: CsiPlan, size: int, capabilities: frozenset[int]) -> pb.NodeExpandVolumeRequest:
    """The call to grow a published volume to at least `size` bytes."""
    return pb.NodeExpandVolumeRequest(
        volume_id=plan.data.handle,
        volume_path=plan.target,
        capacity_range=pb.CapacityRange(required_bytes=size),
        staging_target_path=plan.staged.staging if plan.staged is not None else "",
        volume_capability=_capability(replace(plan.access, fs_group=None), capabilities),
        secrets=dict(plan.expand_hidden.secrets),
    )


def _capability(access: CsiAccess, capabilities: frozenset[int]) -> pb.VolumeCapability:
    modes = _FINER_MODES if Capability.SINGLE_NODE_MULTI_WRITER in capabilities else _MODES
    mode = _MODE(mode=modes.get(access.access_mode, _MODE.UNKNOWN))
    if access.is_block:
        return pb.VolumeCapability(block=pb.VolumeCapability.BlockVolume(), access_mode=mode)
    by_driver = access.fs_group is not None and Capability.VOLUME_MOUNT_GROUP in capabilities
    mount = pb.VolumeCapability.MountVolume(
        fs_type=access.fs_type,
        mount_flags=access.mount_flags,
        volume_mount_group=str(access.fs_group) if by_driver else "",
    )
    return pb.VolumeCapability(mount=mount, access_mode=mode)
