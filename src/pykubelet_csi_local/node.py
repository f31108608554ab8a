"""The driver's Node service: stages, publishes and measures volumes on this machine.

An ephemeral volume is created when it is published and deleted when it is unpublished. Source: Container Storage Interface 1.9.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.net.grpc.services import Method
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_csi_local.backing import KUBERNETES, LocalVolume
from pykubelet_csi_local.ephemeral import EphemeralLimits, read_ephemeral
from pykubelet_csi_local.rpc import method, path_of, required
from pykubelet_csi_local.volumes import LocalVolumes

EPHEMERAL = f"{KUBERNETES}ephemeral"
_RPC = pb.NodeServiceCapability.RPC
CAPABILITIES = (_RPC.STAGE_UNSTAGE_VOLUME, _RPC.GET_VOLUME_STATS, _RPC.EXPAND_VOLUME)


class NodeIdentity(Value):
    """What the driver reports about this machine. `max_volumes`: 0 for no limit."""

    node_id: str
    max_volumes: int
    topology: Mapping[str, str]


class NodeService:
    """The calls of the Node service."""

    def __init__(self, volumes: LocalVolumes, identity: NodeIdentity, limits: EphemeralLimits) -> None:
        self._volumes = volumes
        self._identity = identity
        self._limits = limits

    def methods(self) -> dict[str, Method]:
        """The methods by path."""
        calls = {
            "NodeStageVolume": method(pb.NodeStageVolumeRequest, self.stage),
            "NodeUnstageVolume": method(pb.NodeUnstageVolumeRequest, self.unstage),
            "NodePublishVolume": method(pb.NodePublishVolumeRequest, self.publish),
            "NodeUnpublishVolume": method(pb.NodeUnpublishVolumeRequest, self.unpublish),
            "NodeGetVolumeStats": method(pb.NodeGetVolumeStatsRequest, self.stats),
            "NodeExpandVolume": method(pb.NodeExpandVolumeRequest, self.expand),
            "NodeGetCapabilities": method(pb.NodeGetCapabilitiesRequest, self.capabilities),
            "NodeGetInfo": method(pb.NodeGetInfoRequest, self.info),
        }
        return {f"/csi.v1.Node/{name}": call for name, call in calls.items()}

    async def info(self, _: pb.NodeGetInfoRequest) -> pb.NodeGetInfoResponse:
        """The machine's id, limit and topology."""
        own = self._identity
        topology = pb.Topology(segments=dict(own.topology))
        return pb.NodeGetInfoResponse(
            node_id=own.node_id, max_volumes_per_node=own.max_volumes, accessible_topology=topology
        )

    async def capabilities(self, _: pb.NodeGetCapabilitiesRequest) -> pb.NodeGetCapabilitiesResponse:
        """The optional calls that are served."""
        found = [pb.NodeServiceCapability(rpc=_RPC(type=capability)) for capability in CAPABILITIES]
        return pb.NodeGetCapabilitiesResponse(capabilities=found)

    async def stage(self, request: pb.NodeStageVolumeRequest) -> pb.NodeStageVolumeResponse:
        """Mount the volume once for the whole node; attach the device of a block volume."""
        volume_id = required(request.volume_id, "volume_id")
        target = path_of(request.staging_target_path, "staging_target_path")
        options = _mount_options(request.volume_capability)
        async with self._volumes.alone(volume_id):
            volume = await self._volumes.get(volume_id)
            check_access(volume, request.volume_capability)
            if volume.is_block:
                await self._volumes.attach(volume)
            else:
                await self._volumes.mount(volume, target, options)
        return pb.NodeStageVolumeResponse()

    async def unstage(self, request: pb.NodeUnstageVolumeRequest) -> pb.NodeUnstageVolumeResponse:
        """Unmount the staged volume, or detach its device. One that is not staged is no error."""
        volume_id = required(request.volume_id, "volume_id")
        target = path_of(request.staging_target_path, "staging_target_path")
        async with self._volumes.alone(volume_id):
            await self._volumes.unmount(volume_id, target)
            volume = await self._found(volume_id)
            if volume is not None and volume.is_block:
                await self._volumes.detach(volume_id)
        return pb.NodeUnstageVolumeResponse()

    async def publish(self, request: pb.NodePublishVolumeRequest) -> pb.NodePublishVolumeResponse:
        """Bind the staged volume for one pod, or create and mount the pod's ephemeral volume."""
        volume_id = required(request.volume_id, "volume_id")
        target = path_of(request.target_path, "target_path")
        options = _mount_options(request.volume_capability)
        async with self._volumes.alone(volume_id):
            if request.volume_context.get(EPHEMERAL) == "true":
                if request.volume_capability.WhichOneof("access_type") == "block":
                    raise RpcError(Code.INVALID_ARGUMENT, "ephemeral volumes are mounted, they are no block volumes")
                found = await self._found(volume_id)
                wanted = read_ephemeral(volume_id, request.volume_context, self._limits, found)
                volume = await self._volumes.create(wanted)
                await self._volumes.mount(volume, target, options)
                if request.readonly:
                    await self._volumes.make_read_only(volume_id, target)
                return pb.NodePublishVolumeResponse()
            volume = await self._volumes.get(volume_id)
            check_access(volume, request.volume_capability)
            if volume.is_block:
                await self._volumes.bind_device(volume, target, request.readonly)
                return pb.NodePublishVolumeResponse()
            if not request.staging_target_path:
                raise RpcError(Code.FAILED_PRECONDITION, "staging_target_path is missing in the request")
            staged = path_of(request.staging_target_path, "staging_target_path")
            if not await self._volumes.is_mounted(volume_id, staged):
                raise RpcError(Code.FAILED_PRECONDITION, f"volume {volume_id} is not staged at {staged}")
            await self._volumes.bind(volume_id, staged, target, request.readonly)
        return pb.NodePublishVolumeResponse()

    async def unpublish(self, request: pb.NodeUnpublishVolumeRequest) -> pb.NodeUnpublishVolumeResponse:
        """Unmount the volume from one pod and delete it if it is ephemeral. One that is not published is no error."""
        volume_id = required(request.volume_id, "volume_id")
        target = path_of(request.target_path, "target_path")
        async with self._volumes.alone(volume_id):
            await self._volumes.unmount(volume_id, target)
            await self._volumes.remove_target(volume_id, target)
            volume = await self._found(volume_id)
            if volume is None or volume.is_ephemeral:  # what an interrupted deletion has left goes now
                await self._volumes.delete(volume_id)
        return pb.NodeUnpublishVolumeResponse()

    async def _found(self, volume_id: str) -> LocalVolume | None:
        """The volume; None if it does not exist."""
        try:
            return await self._volumes.get(volume_id)
        except RpcError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            return None

    async def stats(self, request: pb.NodeGetVolumeStatsRequest) -> pb.NodeGetVolumeStatsResponse:
        """How full the volume's file system is."""
        volume_id = required(request.volume_id, "volume_id")
        volume = await self._volumes.get(volume_id)
        path, usage = path_of(request.volume_path, "volume_path"), pb.VolumeUsage
        if volume.is_block:
            size = await self._volumes.device_bytes(volume_id, path)
            return pb.NodeGetVolumeStatsResponse(usage=[usage(unit=usage.BYTES, total=size)])
        found = await self._volumes.usage(volume_id, path)
        return pb.NodeGetVolumeStatsResponse(
            usage=[
                usage(
                    unit=usage.BYTES,
                    total=found.capacity_bytes,
                    available=found.available_bytes,
                    used=found.used_bytes,
                ),
                usage(unit=usage.INODES, total=found.inodes, available=found.inodes_free, used=found.inodes_used),
            ]
        )

    async def expand(self, request: pb.NodeExpandVolumeRequest) -> pb.NodeExpandVolumeResponse:
        """Grow the device of a block volume, or the file system of a mounted one."""
        volume_id = required(request.volume_id, "volume_id")
        path, limit = path_of(request.volume_path, "volume_path"), request.capacity_range.limit_bytes
        if 0 < limit < request.capacity_range.required_bytes:
            raise RpcError(Code.OUT_OF_RANGE, "capacity_range: limit_bytes is below required_bytes")
        async with self._volumes.alone(volume_id):
            volume = await self._volumes.set_capacity(volume_id, request.capacity_range.required_bytes)
            if not volume.is_block and not await self._volumes.is_mounted(volume_id, path):
                raise RpcError(Code.NOT_FOUND, f"volume {volume_id} is not mounted at {path}")
            await self._volumes.grow(volume)
        return pb.NodeExpandVolumeResponse(capacity_bytes=volume.capacity_bytes)


def _mount_options(capability: pb.VolumeCapability) -> tuple[str, ...]:
    """The mount options; none for block volumes. Raises RpcError for access that this driver does not offer."""
    if capability.WhichOneof("access_type") is None:
        raise RpcError(Code.INVALID_ARGUMENT, "volume_capability is missing in the request")
    if capability.mount.fs_type not in ("", "ext4"):
        raise RpcError(Code.INVALID_ARGUMENT, f"file system {capability.mount.fs_type!r} is not offered: use ext4")
    return tuple(capability.mount.mount_flags)


def check_access(volume: LocalVolume, capability: pb.VolumeCapability) -> None:
    """Raise RpcError if a block volume is to be mounted, or another one to be a device."""
    if volume.is_block != (capability.WhichOneof("access_type") == "block"):
        text = f"volume {volume.id} was created {'as a block volume' if volume.is_block else 'to be mounted'}"
        raise RpcError(Code.INVALID_ARGUMENT, text)
