"""`pykubelet csi-local` as a process, called over its sockets: the contract of the CSI specification, and real mounts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from csi_local.stand import BLOCK, MIB, MOUNT, control, create, publication, staging, wait_detached
from support.csi import CsiProcess, csi_driver

from pykubelet.base.model.plugins import CsiNodeInfo
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import CsiNode
from pykubelet.edges.host.fs.mounts import is_mount_point, mounts_below, read_fs_usage
from pykubelet.edges.host.services.process import run_program
from pykubelet.edges.plugins.registration import PluginRegistration
from pykubelet.net.grpc.status import Code, RpcError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


async def test_it_identifies_itself_on_both_sockets(driver: CsiProcess, node: CsiNode) -> None:
    with PluginRegistration(str(driver.socket)) as registration:
        info = await registration.get_info()
        await registration.notify("")
    assert (info.type, info.name, info.endpoint) == ("CSIPlugin", driver.name, str(driver.endpoint))
    assert list(info.supported_versions) == ["1.0.0"]
    assert (await control(driver, "GetPluginInfo", "Identity")).name == driver.name
    assert (await control(driver, "Probe", "Identity")).ready.value
    where = await node.info()
    assert where == CsiNodeInfo("node-1", 7, {f"topology.{driver.name}/node": "node-1"})
    assert await node.capabilities() == {1, 2, 3}


@pytest.mark.parametrize("backing", ["directory", "image"])
async def test_a_volume_from_creation_to_deletion(top: Path, driver: CsiProcess, node: CsiNode, backing: str) -> None:
    made = [await create(driver, size=16 * MIB, backing=backing) for _ in range(2)]
    assert made[0] == made[1], "a repeated call finds the volume"
    volume_id, staged, target = made[0].volume_id, top / "staged", top / "target"
    for _ in range(2):
        await node.stage(staging(top, volume_id))
    for _ in range(2):
        await node.publish(publication(top, volume_id, staging_target_path=str(staged)))
    (target / "file").write_text("kept")
    await node.publish(publication(top, volume_id, "other", staging_target_path=str(staged), readonly=True))
    with pytest.raises(OSError, match="Read-only"):
        (top / "other" / "new").write_text("x")
    usage = {amount.unit: amount for amount in (await node.stats(volume_id, str(target))).usage}
    assert usage[pb.VolumeUsage.BYTES].total == read_fs_usage(str(target)).capacity_bytes
    assert usage[pb.VolumeUsage.INODES].used > 0
    if backing == "image":
        assert usage[pb.VolumeUsage.BYTES].total < 16 * MIB
        with pytest.raises(OSError, match="No space"):
            (target / "large").write_bytes(b"x" * 20 * MIB)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await control(driver, "DeleteVolume", volume_id=volume_id)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert (target / "file").read_text() == "kept"
    for _ in range(2):
        await node.unpublish(volume_id, str(target))
        await node.unpublish(volume_id, str(top / "other"))
        await node.unstage(volume_id, str(staged))
    assert not target.exists()
    assert mounts_below(str(top)) == ()
    wait_detached(top / "data/volumes" / volume_id / "image")
    await node.stage(staging(top, volume_id))
    assert (staged / "file").read_text() == "kept", "the data outlive every mount"
    await node.unstage(volume_id, str(staged))
    for _ in range(2):
        await control(driver, "DeleteVolume", volume_id=volume_id)
    assert driver.volumes() == []


async def test_an_ephemeral_volume_lives_as_long_as_it_is_published(
    top: Path, driver: CsiProcess, node: CsiNode
) -> None:
    context = {"csi.storage.k8s.io/ephemeral": "true", "size": "8Mi"}
    for _ in range(2):
        await node.publish(publication(top, "csi-abc", volume_context=context))
    (top / "target" / "file").write_text("x")
    assert driver.volumes() == ["csi-abc"]
    for _ in range(2):
        await node.unpublish("csi-abc", str(top / "target"))
    assert driver.volumes() == []
    assert mounts_below(str(top)) == ()


async def test_what_an_interrupted_deletion_has_left_is_removed(top: Path, driver: CsiProcess, node: CsiNode) -> None:
    left = top / "data/volumes/csi-abc/data"
    left.mkdir(parents=True)
    await node.unpublish("csi-abc", str(top / "target"))
    assert driver.volumes() == []


async def test_volumes_are_listed_by_pages(top: Path, driver: CsiProcess, node: CsiNode) -> None:
    for name in ("a", "b", "c"):
        await create(driver, name)
    context = {"csi.storage.k8s.io/ephemeral": "true", "size": "1Mi"}
    await node.publish(publication(top, "csi-abc", volume_context=context))
    first = await control(driver, "ListVolumes", max_entries=2)
    rest = await control(driver, "ListVolumes", max_entries=2, starting_token=first.next_token)
    assert [entry.volume.volume_id for entry in (*first.entries, *rest.entries)] == ["a", "b", "c"]
    assert rest.next_token == ""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await control(driver, "ListVolumes", starting_token="x")
    assert refused.value.code() is grpc.StatusCode.ABORTED


@pytest.mark.parametrize(
    "notes",
    [b"{", b"[]", b'{"backing": "\\ud800", "capacityBytes": 0, "ephemeral": false}', b'"\xff"', b"[" * 9000,
     b'{"backing": "directory", "capacityBytes": 1e400, "ephemeral": false}'],
)  # fmt: skip
async def test_damaged_notes_are_reported_and_hurt_no_other_volume(
    top: Path, driver: CsiProcess, node: CsiNode, notes: bytes
) -> None:
    await create(driver, "bad")
    await create(driver, "good")
    (top / "data/volumes/bad/volume.json").write_bytes(notes)
    with pytest.raises(RpcError) as refused:
        await node.stage(staging(top, "bad"))
    assert refused.value.code is Code.INTERNAL
    await node.stage(staging(top, "good"))
    listed = await control(driver, "ListVolumes")
    assert [entry.volume.volume_id for entry in listed.entries] == ["good"]


async def test_a_directory_is_limited_where_the_file_system_can_do_that(top: Path) -> None:
    """A real ext4 with project quotas; `write` obeys them as soon as it is no privileged user's."""
    image, mounted = top / "disk.img", top / "disk"
    mounted.mkdir()
    image.touch()
    os.truncate(image, 64 * MIB)
    options = ("-O", "quota,project", "-E", "quotatype=prjquota")
    assert (await run_program(("mkfs.ext4", "-q", "-F", *options, str(image)))).code == 0
    if (await run_program(("mount", "-o", "loop,prjquota", str(image), str(mounted)))).code != 0:
        pytest.skip("no project quotas in this kernel")
    async with csi_driver(top / "root", mounted / "data") as driver:
        await create(driver, size=4 * MIB)
        with CsiNode(driver.name, str(driver.endpoint)) as node:
            await node.stage(staging(top, "pvc-1"))
            usage = (await node.stats("pvc-1", str(top / "staged"))).usage
            await node.unstage("pvc-1", str(top / "staged"))
        await control(driver, "DeleteVolume", volume_id="pvc-1")
    assert usage[0].total == 4 * MIB


async def test_requests_that_it_refuses(top: Path, driver: CsiProcess, node: CsiNode) -> None:
    volume = await create(driver, size=8 * MIB)

    async def refusal(call: Any) -> Code:
        with pytest.raises(RpcError) as refused:
            await call
        return refused.value.code

    assert await refusal(node.stage(staging(top, "unknown"))) is Code.NOT_FOUND
    assert await refusal(node.stage(staging(top, "../data"))) is Code.NOT_FOUND
    assert await refusal(node.stage(pb.NodeStageVolumeRequest(volume_id="x"))) is Code.INVALID_ARGUMENT
    staged_as_block = pb.NodeStageVolumeRequest(
        volume_id=volume.volume_id, staging_target_path=str(top / "staged"), volume_capability=BLOCK
    )
    assert await refusal(node.stage(staged_as_block)) is Code.INVALID_ARGUMENT
    assert await refusal(node.publish(publication(top, volume.volume_id))) is Code.FAILED_PRECONDITION
    unstaged = publication(top, volume.volume_id, staging_target_path=str(top / "nowhere"))
    assert await refusal(node.publish(unstaged)) is Code.FAILED_PRECONDITION
    assert await refusal(node.stats(volume.volume_id, str(top))) is Code.NOT_FOUND
    for problem, fields in (
        (grpc.StatusCode.INVALID_ARGUMENT, {"volume_capabilities": [MOUNT]}),
        (grpc.StatusCode.INVALID_ARGUMENT, {"name": "a", "volume_capabilities": [MOUNT, BLOCK]}),
        (grpc.StatusCode.INVALID_ARGUMENT, {"name": "a" * 129, "volume_capabilities": [MOUNT]}),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            {"name": "a", "volume_capabilities": [BLOCK], "parameters": {"backing": "directory"}},
        ),
        (
            grpc.StatusCode.OUT_OF_RANGE,
            {
                "name": "a",
                "volume_capabilities": [MOUNT],
                "parameters": {"backing": "image"},
                "capacity_range": pb.CapacityRange(required_bytes=1 << 60),
            },
        ),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            {"name": "a", "volume_capabilities": [MOUNT], "parameters": {"backing": "tape"}},
        ),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            {"name": "a", "volume_capabilities": [MOUNT], "parameters": {"bakcing": "image"}},
        ),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            {"name": "a", "volume_capabilities": [MOUNT], "volume_content_source": pb.VolumeContentSource()},
        ),
        (grpc.StatusCode.INVALID_ARGUMENT, {"name": "a", "volume_capabilities": [pb.VolumeCapability()]}),
        (
            grpc.StatusCode.OUT_OF_RANGE,
            {
                "name": "a",
                "volume_capabilities": [MOUNT],
                "capacity_range": pb.CapacityRange(required_bytes=9 * MIB, limit_bytes=MIB),
            },
        ),
        (
            grpc.StatusCode.ALREADY_EXISTS,
            {
                "name": "pvc-1",
                "volume_capabilities": [MOUNT],
                "capacity_range": pb.CapacityRange(required_bytes=9 * MIB),
            },
        ),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await control(driver, "CreateVolume", **fields)
        assert refused.value.code() is problem


async def test_many_volumes_are_published_and_unpublished_at_a_time(top: Path, driver: CsiProcess) -> None:
    async def use(name: str) -> bool:
        context = {"csi.storage.k8s.io/ephemeral": "true", "size": "1Mi"}
        with CsiNode(driver.name, str(driver.endpoint)) as client:
            await client.publish(publication(top, name, target=name, volume_context=context))
        with CsiNode(driver.name, str(driver.endpoint)) as client:
            await client.unpublish(name, str(top / name))
        return (top / name).exists()

    assert await asyncio.gather(*(use(f"csi-{number}") for number in range(40))) == [False] * 40
    assert not (await control(driver, "ListVolumes")).entries


async def test_what_is_published_otherwise_is_reported(top: Path, driver: CsiProcess, node: CsiNode) -> None:
    volume_id, staged = (await create(driver, size=8 * MIB)).volume_id, str(top / "staged")
    await node.stage(staging(top, volume_id))
    await node.publish(publication(top, volume_id, staging_target_path=staged, readonly=True))
    with pytest.raises(RpcError, match="is published read-only") as refused:
        await node.publish(publication(top, volume_id, staging_target_path=staged))
    assert refused.value.code is Code.ALREADY_EXISTS


async def test_expansions_that_it_refuses_change_nothing(top: Path, driver: CsiProcess) -> None:
    await create(driver, size=8 * MIB)
    refusals: tuple[tuple[grpc.StatusCode, dict[str, Any]], ...] = (
        (grpc.StatusCode.INVALID_ARGUMENT, {}),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            {"capacity_range": pb.CapacityRange(required_bytes=9 * MIB), "volume_capability": BLOCK},
        ),
        (
            grpc.StatusCode.OUT_OF_RANGE,
            {"capacity_range": pb.CapacityRange(required_bytes=9 * MIB, limit_bytes=MIB)},
        ),
        (grpc.StatusCode.OUT_OF_RANGE, {"capacity_range": pb.CapacityRange(limit_bytes=MIB)}),
        (grpc.StatusCode.NOT_FOUND, {"volume_id": "x", "capacity_range": pb.CapacityRange(required_bytes=MIB)}),
    )
    for problem, fields in refusals:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await control(driver, "ControllerExpandVolume", **({"volume_id": "pvc-1"} | fields))
        assert refused.value.code() is problem
    (entry,) = (await control(driver, "ListVolumes")).entries
    assert entry.volume.capacity_bytes == 8 * MIB


async def test_one_volume_has_one_operation_at_a_time(top: Path, driver: CsiProcess, node: CsiNode) -> None:
    context = {"csi.storage.k8s.io/ephemeral": "true", "backing": "image", "size": "64Mi"}
    calls = [node.publish(publication(top, "csi-abc", volume_context=context)) for _ in range(4)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    codes = [result.code for result in results if isinstance(result, RpcError)]
    assert codes and set(codes) == {Code.ABORTED}
    assert is_mount_point(str(top / "target"))
    await node.unpublish("csi-abc", str(top / "target"))
    assert mounts_below(str(top)) == ()
