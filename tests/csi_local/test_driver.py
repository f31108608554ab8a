"""`pykubelet csi-local` as a process, called over its sockets: the contract of the CSI specification, and real mounts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
from support.csi import CsiProcess, csi_driver, unmount_all
from testbed import host

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.documents import load_document
from pykubelet.base.api.storage import CSIPersistentVolumeSource, PersistentVolume
from pykubelet.base.model.plugins import CsiNodeInfo
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import CsiNode
from pykubelet.edges.host.devices.loops import find_loops
from pykubelet.edges.host.fs.mounts import is_mount_point, mounts_below, read_fs_usage
from pykubelet.edges.host.services.process import run_program
from pykubelet.edges.plugins.registration import PluginRegistration
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_csi_local.driver import main

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
MOUNT = pb.VolumeCapability(
    mount=pb.VolumeCapability.MountVolume(), access_mode=pb.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")
)
BLOCK = pb.VolumeCapability(
    block=pb.VolumeCapability.BlockVolume(), access_mode=pb.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")
)
MIB = 1 << 20


@pytest.fixture
def top() -> Iterator[Path]:
    with TemporaryDirectory(prefix="csi-") as made:  # a socket's path is at most 107 bytes long
        yield Path(made)
        unmount_all(Path(made))


@pytest.fixture
async def driver(top: Path) -> AsyncIterator[CsiProcess]:
    async with csi_driver(top / "root", top / "data", limit=7) as running:
        yield running


@pytest.fixture
async def node(driver: CsiProcess) -> AsyncIterator[CsiNode]:
    with CsiNode(driver.name, str(driver.endpoint)) as client:
        yield client


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


def wait_detached(image: Path) -> None:
    """The mount is gone here, but a mount namespace that some other program has just made may still hold it for a moment."""
    assert host.wait_until(lambda: not find_loops(str(image)), 30, 0.05)


def write_through(device: Path, data: bytes) -> None:
    with device.open("r+b", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())


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


async def test_people_create_expand_and_delete_volumes(
    top: Path, driver: CsiProcess, node: CsiNode, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*argv: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, [*argv, "--root-dir", str(top / "root")])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    for name, options in (("data", ("--backing", "image")), ("disk", ("--block",))):
        code, manifest = await run("create", name, "--size", "8Mi", *options)
        volume = from_object(PersistentVolume, load_document(manifest.encode()))
        assert (code, volume.metadata.name, volume.spec.capacity) == (0, name, {"storage": "8Mi"})
        assert volume.spec.csi == CSIPersistentVolumeSource(driver=driver.name, volumeHandle=name)
        assert (volume.spec.volumeMode == "Block") == (name == "disk")
    assert [line.split() for line in (await run("list"))[1].splitlines()] == [
        ["NAME", "SIZE", "BACKING"],
        ["data", "8Mi", "image"],
        ["disk", "8Mi", "image"],
    ]
    assert await run("expand", "data", "--size", "16Mi") == (
        0,
        "data has 16Mi; its file system grows when it is mounted next\n",
    )
    await node.stage(staging(top, "data"))
    code, text = await run("delete", "data")
    assert code == 1 and "the volume is still in use at" in text
    await node.unstage("data", str(top / "staged"))
    assert await run("delete", "data") == (0, "data deleted\n")
    assert driver.volumes() == ["disk"]
    code, text = await run("create", "No Name")
    assert code == 1 and "lower-case" in text
    await driver.kill()
    code, text = await run("list")
    assert code == 1 and "Does the driver run?" in text


@pytest.mark.parametrize("moment", ["crash", "crash after"])
@pytest.mark.parametrize("call", ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"])
async def test_calls_are_repeated_after_the_driver_was_killed(top: Path, call: str, moment: str) -> None:
    staged, target = top / "staged", top / "target"
    volume_id = "pvc-1"

    async def go_through(node: CsiNode) -> None:
        await node.stage(staging(top, volume_id))
        await node.publish(publication(top, volume_id, staging_target_path=str(staged)))
        (target / "file").write_text("kept")
        await node.unpublish(volume_id, str(target))
        await node.unstage(volume_id, str(staged))

    async with csi_driver(top / "root", top / "data", behavior={call: moment}) as driver:
        await create(driver, volume_id)
        with CsiNode(driver.name, str(driver.endpoint)) as node, pytest.raises(RpcError):
            await go_through(node)
    async with csi_driver(top / "root", top / "data") as driver:
        with CsiNode(driver.name, str(driver.endpoint)) as node:
            await go_through(node)
        assert mounts_below(str(top)) == ()
        assert (top / "data/volumes" / volume_id / "data/file").read_text() == "kept"


async def test_one_volume_has_one_operation_at_a_time(top: Path, driver: CsiProcess, node: CsiNode) -> None:
    context = {"csi.storage.k8s.io/ephemeral": "true", "backing": "image", "size": "64Mi"}
    calls = [node.publish(publication(top, "csi-abc", volume_context=context)) for _ in range(4)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    codes = [result.code for result in results if isinstance(result, RpcError)]
    assert codes and set(codes) == {Code.ABORTED}
    assert is_mount_point(str(top / "target"))
    await node.unpublish("csi-abc", str(top / "target"))
    assert mounts_below(str(top)) == ()


@asynccontextmanager
async def command(top: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pykubelet.app.cli", "csi-local"),
        *("--root-dir", str(top / "root"), "--data-dir", str(top / "data")),
        *options,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_command_serves_until_it_is_stopped_and_removes_its_sockets(top: Path) -> None:
    async with command(top) as process:
        assert process.stderr is not None
        async with asyncio.timeout(30):
            lines = ""
            while lines.count("serving") < 2:
                lines += (await process.stderr.readline()).decode()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert [path for path in (top / "root").rglob("*") if not path.is_dir()] == []


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--driver-name", "a/b"), 1, "Error: --driver-name 'a/b'"),
        (("--max-ephemeral-size", "-1"), 1, "Error: --max-ephemeral-size: must be 0 or between"),
        (("--max-ephemeral-size", "17Ti"), 1, "Error: --max-ephemeral-size: must be 0 or between"),
        (("--max-ephemeral-size", "1k"), 1, "Error: --max-ephemeral-size: must be 0 or between"),
        (("--max-ephemeral-size", "1Mi"), 1, "Error: --default-ephemeral-size: must be between"),
        (("--default-ephemeral-size", "0"), 1, "Error: --default-ephemeral-size: must be between"),
        (("--default-ephemeral-size", "x"), 2, "argument --default-ephemeral-size: "),
    ],
)
async def test_the_command_refuses_options_that_cannot_work(
    top: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    async with command(top, *options) as process:
        _, error = await process.communicate()
    assert process.returncode == code
    assert message in error.decode()
