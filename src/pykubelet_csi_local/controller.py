"""The driver's Identity and Controller services: what it offers, and the creation, growth and deletion of volumes.

Source: Container Storage Interface 1.9.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.wrappers_pb2 import BoolValue

from pykubelet.base.kit.values import replace
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.net.grpc.services import Method
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_csi_local.backing import BACKING, Backing, LocalVolume, read_persistent
from pykubelet_csi_local.node import check_access
from pykubelet_csi_local.rpc import method, required
from pykubelet_csi_local.volumes import LocalVolumes

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_RPC = pb.ControllerServiceCapability.RPC
_MODE = pb.VolumeCapability.AccessMode
CAPABILITIES = (_RPC.CREATE_DELETE_VOLUME, _RPC.LIST_VOLUMES, _RPC.GET_CAPACITY, _RPC.EXPAND_VOLUME)
#: Bytes of a volume's name, and volumes on a page of the list.
MAX_NAME, MAX_LISTED = 128, 1000
#: Access modes of a volume that one machine has alone.
MODES = (_MODE.SINGLE_NODE_WRITER, _MODE.SINGLE_NODE_READER_ONLY, _MODE.UNKNOWN)


class ControllerService:
    """The calls of the Identity and Controller services."""

    def __init__(self, volumes: LocalVolumes, driver: str, version: str, topology: Mapping[str, str]) -> None:
        self._volumes = volumes
        self._driver = driver
        self._version = version
        self._topology = topology

    def methods(self) -> dict[str, Method]:
        """The methods by path."""
        identity = {
            "GetPluginInfo": method(pb.GetPluginInfoRequest, self.plugin_info),
            "GetPluginCapabilities": method(pb.GetPluginCapabilitiesRequest, self.plugin_capabilities),
            "Probe": method(pb.ProbeRequest, self.probe),
        }
        controller = {
            "CreateVolume": method(pb.CreateVolumeRequest, self.create),
            "DeleteVolume": method(pb.DeleteVolumeRequest, self.delete),
            "ValidateVolumeCapabilities": method(pb.ValidateVolumeCapabilitiesRequest, self.validate),
            "ListVolumes": method(pb.ListVolumesRequest, self.list),
            "GetCapacity": method(pb.GetCapacityRequest, self.capacity),
            "ControllerGetCapabilities": method(pb.ControllerGetCapabilitiesRequest, self.capabilities),
            "ControllerExpandVolume": method(pb.ControllerExpandVolumeRequest, self.expand),
        }
        return {f"/csi.v1.Identity/{name}": call for name, call in identity.items()} | {
            f"/csi.v1.Controller/{name}": call for name, call in controller.items()
        }

    async def plugin_info(self, _: pb.GetPluginInfoRequest) -> pb.GetPluginInfoResponse:
        """The driver's name and version."""
        return pb.GetPluginInfoResponse(name=self._driver, vendor_version=self._version)

    async def plugin_capabilities(self, _: pb.GetPluginCapabilitiesRequest) -> pb.GetPluginCapabilitiesResponse:
        """The driver has a controller, its volumes are on one machine, and they grow while they are in use."""
        capability = pb.PluginCapability
        services = (capability.Service.CONTROLLER_SERVICE, capability.Service.VOLUME_ACCESSIBILITY_CONSTRAINTS)
        found = [capability(service=capability.Service(type=service)) for service in services]
        found.append(capability(volume_expansion=capability.VolumeExpansion(type=capability.VolumeExpansion.ONLINE)))
        return pb.GetPluginCapabilitiesResponse(capabilities=found)

    async def probe(self, _: pb.ProbeRequest) -> pb.ProbeResponse:
        """The driver is ready as soon as it answers."""
        return pb.ProbeResponse(ready=BoolValue(value=True))

    async def capabilities(self, _: pb.ControllerGetCapabilitiesRequest) -> pb.ControllerGetCapabilitiesResponse:
        """The optional calls that are served."""
        found = [pb.ControllerServiceCapability(rpc=_RPC(type=capability)) for capability in CAPABILITIES]
        return pb.ControllerGetCapabilitiesResponse(capabilities=found)

    async def create(self, request: pb.CreateVolumeRequest) -> pb.CreateVolumeResponse:
        """Create a volume; its name decides its id, so that a repeated call finds it."""
        name = required(request.name, "name")
        if len(name.encode()) > MAX_NAME:
            raise RpcError(Code.INVALID_ARGUMENT, f"name is longer than {MAX_NAME} bytes")
        if not request.volume_capabilities:
            raise RpcError(Code.INVALID_ARGUMENT, "volume_capabilities is missing in the request")
        if problem := _refusal(request.volume_capabilities):
            raise RpcError(Code.INVALID_ARGUMENT, problem)
        if request.HasField("volume_content_source"):
            raise RpcError(Code.INVALID_ARGUMENT, "volume_content_source: volumes are made empty")
        if request.mutable_parameters:
            raise RpcError(Code.INVALID_ARGUMENT, "mutable_parameters: volumes have none")
        _check_range(request.capacity_range)
        size, limit = request.capacity_range.required_bytes, request.capacity_range.limit_bytes
        if not self._reaches(request.accessibility_requirements.requisite):
            raise RpcError(Code.RESOURCE_EXHAUSTED, "the volume is wanted where this driver does not run")
        is_block = any(capability.WhichOneof("access_type") == "block" for capability in request.volume_capabilities)
        wanted = read_persistent(volume_id_of(name), request.parameters, size, is_block=is_block)
        if 0 < limit < wanted.capacity_bytes:
            wanted = replace(wanted, capacity_bytes=limit)
        async with self._volumes.alone(wanted.id):
            made = await self._volumes.create(wanted)
        if 0 < limit < made.capacity_bytes:
            raise RpcError(Code.ALREADY_EXISTS, f"volume {wanted.id} exists with another size or backing")
        return pb.CreateVolumeResponse(volume=self._shown(made))

    def _shown(self, volume: LocalVolume) -> pb.Volume:
        return pb.Volume(
            volume_id=volume.id,
            capacity_bytes=volume.capacity_bytes,
            volume_context={BACKING: str(volume.backing)},
            accessible_topology=[pb.Topology(segments=dict(self._topology))],
        )

    async def list(self, request: pb.ListVolumesRequest) -> pb.ListVolumesResponse:
        """The persistent volumes by id; the token of the next page is the id of the last volume."""
        if request.max_entries < 0:
            raise RpcError(Code.INVALID_ARGUMENT, "max_entries must not be negative")
        volumes = [volume for volume in await self._volumes.list() if not volume.is_ephemeral]
        token = request.starting_token
        if token and all(volume.id != token for volume in volumes):
            raise RpcError(
                Code.ABORTED, "starting_token is none of this driver, or its volume is gone: list from the beginning"
            )
        volumes = [volume for volume in volumes if volume.id > token]
        page = volumes[: min(request.max_entries or MAX_LISTED, MAX_LISTED)]
        answer = pb.ListVolumesResponse(next_token=page[-1].id if len(page) < len(volumes) else "")
        for volume in page:
            answer.entries.append(pb.ListVolumesResponse.Entry(volume=self._shown(volume)))
        return answer

    async def delete(self, request: pb.DeleteVolumeRequest) -> pb.DeleteVolumeResponse:
        """Delete a volume. A missing one is no error."""
        volume_id = required(request.volume_id, "volume_id")
        async with self._volumes.alone(volume_id):
            try:
                await self._volumes.delete(volume_id)
            except RpcError as error:
                if error.code is not Code.NOT_FOUND:
                    raise
        return pb.DeleteVolumeResponse()

    async def validate(self, request: pb.ValidateVolumeCapabilitiesRequest) -> pb.ValidateVolumeCapabilitiesResponse:
        """Whether a volume can be used as described."""
        volume_id = required(request.volume_id, "volume_id")
        if not request.volume_capabilities:
            raise RpcError(Code.INVALID_ARGUMENT, "volume_capabilities is missing in the request")
        volume = await self._volumes.get(volume_id)
        answer = pb.ValidateVolumeCapabilitiesResponse
        if problem := _refusal(request.volume_capabilities):
            return answer(message=problem)
        if any(
            (capability.WhichOneof("access_type") == "block") != volume.is_block
            for capability in request.volume_capabilities
        ):
            return answer(message="the volume was created for the other type of access")
        if any(
            fields.get(BACKING, volume.backing) != volume.backing
            for fields in (request.volume_context, request.parameters)
        ):
            return answer(message=f"{BACKING}: the volume has the backing {volume.backing}")
        return answer(
            confirmed=answer.Confirmed(
                volume_context=dict(request.volume_context),
                volume_capabilities=list(request.volume_capabilities),
                parameters=dict(request.parameters),
            )
        )

    async def capacity(self, request: pb.GetCapacityRequest) -> pb.GetCapacityResponse:
        """The bytes that are free for new volumes."""
        if not self._reaches([request.accessible_topology]) or _refusal(request.volume_capabilities):
            return pb.GetCapacityResponse(available_capacity=0)
        return pb.GetCapacityResponse(available_capacity=await self._volumes.available_bytes())

    async def expand(self, request: pb.ControllerExpandVolumeRequest) -> pb.ControllerExpandVolumeResponse:
        """Give a volume a larger capacity. The node grows the file system of an image."""
        volume_id = required(request.volume_id, "volume_id")
        if not request.HasField("capacity_range"):
            raise RpcError(Code.INVALID_ARGUMENT, "capacity_range is missing in the request")
        _check_range(request.capacity_range)
        async with self._volumes.alone(volume_id):
            volume = await self._volumes.get(volume_id)
            if request.HasField("volume_capability"):
                check_access(volume, request.volume_capability)
            if 0 < request.capacity_range.limit_bytes < volume.capacity_bytes:
                raise RpcError(Code.OUT_OF_RANGE, "capacity_range: the volume is larger than limit_bytes")
            volume = await self._volumes.set_capacity(volume_id, request.capacity_range.required_bytes)
        is_image = volume.backing is Backing.IMAGE
        return pb.ControllerExpandVolumeResponse(capacity_bytes=volume.capacity_bytes, node_expansion_required=is_image)

    def _reaches(self, topologies: Iterable[pb.Topology]) -> bool:
        """Whether one of the topologies is this machine's; without any, everything is."""
        wanted = [dict(topology.segments) for topology in topologies]
        wanted = [segments for segments in wanted if segments]
        return not wanted or any(
            all(self._topology.get(key) == value for key, value in segments.items()) for segments in wanted
        )


def volume_id_of(name: str) -> str:
    """The id of the volume with this name."""
    return name if _NAME.fullmatch(name) else f"v-{hashlib.sha256(name.encode()).hexdigest()}"


def _check_range(wanted: pb.CapacityRange) -> None:
    if wanted.required_bytes < 0 or wanted.limit_bytes < 0:
        raise RpcError(Code.INVALID_ARGUMENT, "capacity_range: sizes must not be negative")
    if 0 < wanted.limit_bytes < wanted.required_bytes:
        raise RpcError(Code.OUT_OF_RANGE, "capacity_range: limit_bytes is below required_bytes")


def _refusal(capabilities: Sequence[pb.VolumeCapability]) -> str:
    """Why volumes cannot be used as described; empty if they can."""
    if len({capability.WhichOneof("access_type") for capability in capabilities}) > 1:
        return "a volume is either mounted or a block volume"
    for capability in capabilities:
        if capability.WhichOneof("access_type") is None:
            return "volume_capabilities: each must be either mount or block"
        if capability.mount.fs_type not in ("", "ext4"):
            return f"file system {capability.mount.fs_type!r} is not offered: use ext4"
        if capability.access_mode.mode not in MODES:
            return (
                f"access mode {_MODE.Mode.Name(capability.access_mode.mode)} is not offered: volumes are on one machine"
            )
    return ""
