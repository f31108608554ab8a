"""Requests to the local CSI driver, and calls as its sidecars make them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
from support.csi import CsiProcess
from testbed import host

from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.host.devices.loops import find_loops

MOUNT = pb.VolumeCapability(
    mount=pb.VolumeCapability.MountVolume(), access_mode=pb.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")
)
BLOCK = pb.VolumeCapability(
    block=pb.VolumeCapability.BlockVolume(), access_mode=pb.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")
)
MIB = 1 << 20


async def control(driver: CsiProcess, call_: str, service: str = "Controller", **fields: Any) -> Any:
    """Call the driver as sidecars do, with grpcio: a call that a busy machine makes late is repeated."""
    async with grpc.aio.insecure_channel(f"unix:{driver.endpoint}") as channel:
        request, answer = getattr(pb, f"{call_}Request"), getattr(pb, f"{call_}Response")
        call = channel.unary_unary(f"/csi.v1.{service}/{call_}", request.SerializeToString, answer.FromString)
        tries = 0
        while True:
            try:
                return await call(request(**fields), timeout=20)
            except grpc.aio.AioRpcError as error:
                tries += 1
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or tries > 5:
                    raise


async def create(driver: CsiProcess, name: str = "pvc-1", size: int = 0, **parameters: str) -> pb.Volume:
    answer = await control(
        driver,
        "CreateVolume",
        name=name,
        capacity_range=pb.CapacityRange(required_bytes=size),
        volume_capabilities=[MOUNT],
        parameters=parameters,
    )
    volume: pb.Volume = answer.volume
    return volume


def staging(top: Path, volume_id: str, **fields: Any) -> pb.NodeStageVolumeRequest:
    return pb.NodeStageVolumeRequest(
        volume_id=volume_id, staging_target_path=str(top / "staged"), volume_capability=MOUNT, **fields
    )


def publication(top: Path, volume_id: str, target: str = "target", **fields: Any) -> pb.NodePublishVolumeRequest:
    return pb.NodePublishVolumeRequest(
        volume_id=volume_id, target_path=str(top / target), volume_capability=MOUNT, **fields
    )


def wait_detached(image: Path) -> None:
    """The mount is gone here, but a mount namespace that some other program has just made may still hold it for a moment."""
    assert host.wait_until(lambda: not find_loops(str(image)), 30, 0.05)


def write_through(device: Path, data: bytes) -> None:
    with device.open("r+b", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())
