"""Volumes of `pykubelet csi-local` in image files: mounted, and as block devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from csi_local.stand import BLOCK, MIB, MOUNT, control, create, staging, wait_detached, write_through
from support.csi import CsiProcess

from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import CsiNode
from pykubelet.edges.host.devices.loops import find_loops
from pykubelet.edges.host.fs.mounts import read_fs_usage
from pykubelet.edges.host.services.process import run_program
from pykubelet.net.grpc.status import Code, RpcError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


async def test_an_image_that_was_given_more_capacity_is_larger_at_the_next_mount(
    top: Path, driver: CsiProcess, node: CsiNode
) -> None:
    volume = await create(driver, size=8 * MIB, backing="image")
    await node.stage(staging(top, volume.volume_id))
    before = read_fs_usage(str(top / "staged")).capacity_bytes
    await node.unstage(volume.volume_id, str(top / "staged"))
    wanted = pb.CapacityRange(required_bytes=32 * MIB)
    answer = await control(driver, "ControllerExpandVolume", volume_id=volume.volume_id, capacity_range=wanted)
    assert (answer.capacity_bytes, answer.node_expansion_required) == (32 * MIB, True)
    await node.stage(staging(top, volume.volume_id))
    assert read_fs_usage(str(top / "staged")).capacity_bytes > 2 * before


async def test_a_growth_that_was_interrupted_goes_on_at_the_next_mount(
    top: Path, driver: CsiProcess, node: CsiNode
) -> None:
    volume = await create(driver, size=8 * MIB, backing="image")
    await node.stage(staging(top, volume.volume_id))
    before = read_fs_usage(str(top / "staged")).capacity_bytes
    await node.unstage(volume.volume_id, str(top / "staged"))
    wanted = pb.CapacityRange(required_bytes=32 * MIB)
    await control(driver, "ControllerExpandVolume", volume_id=volume.volume_id, capacity_range=wanted)
    image = top / "data/volumes" / volume.volume_id / "image"
    os.truncate(image, 32 * MIB)  # killed after this
    wait_detached(image)
    await node.stage(staging(top, volume.volume_id))
    assert read_fs_usage(str(top / "staged")).capacity_bytes > 2 * before


async def test_errors_of_a_file_system_are_corrected_at_the_next_mount(
    top: Path, driver: CsiProcess, node: CsiNode
) -> None:
    volume = await create(driver, size=8 * MIB, backing="image")
    image = top / "data/volumes" / volume.volume_id / "image"
    for request in ("set_super_value free_blocks_count 1", "dirty"):
        await run_program(("debugfs", "-w", "-R", request, str(image)))
    await node.stage(staging(top, volume.volume_id))
    (top / "staged" / "file").write_text("x")


async def test_an_image_is_never_mounted_twice(top: Path, driver: CsiProcess, node: CsiNode) -> None:
    volume = await create(driver, size=8 * MIB, backing="image")
    await node.stage(staging(top, volume.volume_id))
    elsewhere = pb.NodeStageVolumeRequest(
        volume_id=volume.volume_id, staging_target_path=str(top / "other"), volume_capability=MOUNT
    )
    with pytest.raises(RpcError, match="is already in use as /dev/loop") as refused:
        await node.stage(elsewhere)
    assert refused.value.code is Code.FAILED_PRECONDITION
    assert len(find_loops(str(top / "data/volumes" / volume.volume_id / "image"))) == 1


@pytest.mark.parametrize("size", [15 << 40, 1 << 40, 1 << 30])
async def test_a_new_image_takes_little_of_the_disk(top: Path, driver: CsiProcess, size: int) -> None:
    volume = await create(driver, size=size, backing="image")
    image = top / "data/volumes" / volume.volume_id / "image"
    assert image.stat().st_size == size
    assert image.stat().st_blocks * 512 < max(4 * MIB, size >> 15)


async def test_a_block_volume(top: Path, driver: CsiProcess, node: CsiNode) -> None:
    made = await control(
        driver,
        "CreateVolume",
        name="pvc-1",
        capacity_range=pb.CapacityRange(required_bytes=8 * MIB),
        volume_capabilities=[BLOCK],
    )
    volume_id, image = made.volume.volume_id, top / "data/volumes/pvc-1/image"
    staged = str(top / "staged")
    stage = pb.NodeStageVolumeRequest(volume_id=volume_id, staging_target_path=staged, volume_capability=BLOCK)
    for _ in range(2):
        await node.stage(stage)
    publish = pb.NodePublishVolumeRequest(
        volume_id=volume_id, staging_target_path=staged, target_path=str(top / "device"), volume_capability=BLOCK
    )
    for _ in range(2):
        await node.publish(publish)
    write_through(top / "device", b"k" * 4096)
    assert image.read_bytes()[:4096] == b"k" * 4096
    assert [usage.total for usage in (await node.stats(volume_id, str(top / "device"))).usage] == [8 * MIB]
    wanted = pb.CapacityRange(required_bytes=16 * MIB)
    await control(driver, "ControllerExpandVolume", volume_id=volume_id, capacity_range=wanted)
    await node.expand(
        pb.NodeExpandVolumeRequest(volume_id=volume_id, volume_path=str(top / "device"), capacity_range=wanted)
    )
    assert [usage.total for usage in (await node.stats(volume_id, str(top / "device"))).usage] == [16 * MIB]
    with pytest.raises(RpcError, match="was created as a block volume"):
        await node.stage(staging(top, volume_id))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await control(driver, "DeleteVolume", volume_id=volume_id)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    for _ in range(2):
        await node.unpublish(volume_id, str(top / "device"))
        await node.unstage(volume_id, str(top / "staged"))
    assert not (top / "device").exists()
    assert find_loops(str(image)) == []
    await control(driver, "DeleteVolume", volume_id=volume_id)
    assert driver.volumes() == []


async def test_a_block_volume_is_published_for_reading(top: Path, driver: CsiProcess, node: CsiNode) -> None:
    await control(
        driver,
        "CreateVolume",
        name="pvc-1",
        capacity_range=pb.CapacityRange(required_bytes=8 * MIB),
        volume_capabilities=[BLOCK],
    )
    where: dict[str, Any] = {
        "volume_id": "pvc-1",
        "staging_target_path": str(top / "staged"),
        "volume_capability": BLOCK,
    }
    target = str(top / "device")
    await node.stage(pb.NodeStageVolumeRequest(**where))
    for _ in range(2):
        await node.publish(pb.NodePublishVolumeRequest(**where, target_path=target, readonly=True))
    assert [usage.total for usage in (await node.stats("pvc-1", target)).usage] == [8 * MIB]
    with pytest.raises(RpcError, match="is published read-only") as refused:
        await node.publish(pb.NodePublishVolumeRequest(**where, target_path=target))
    assert refused.value.code is Code.ALREADY_EXISTS
    await node.publish(pb.NodePublishVolumeRequest(**where, target_path=str(top / "writable")))
    for path in (target, str(top / "writable")):
        await node.unpublish("pvc-1", path)
    await node.unstage("pvc-1", str(top / "staged"))
    wait_detached(top / "data/volumes/pvc-1/image")
