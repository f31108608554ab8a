"""A pod's own volumes have a size, which is enforced, and leave a part of the disk free."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.quotas import MemoryQuotas

from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.host.fs.mounts import mounts_below, read_fs_usage
from pykubelet.edges.host.fs.project_files import ProjectFiles
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_csi_local.backing import Backing, LocalVolume
from pykubelet_csi_local.ephemeral import EphemeralLimits, missing_bytes, read_ephemeral
from pykubelet_csi_local.node import EPHEMERAL, NodeIdentity, NodeService
from pykubelet_csi_local.volumes import LocalVolumes

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
MIB, GIB = 1 << 20, 1 << 30
LIMITS = EphemeralLimits(4 * GIB, GIB)
MOUNT = pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume())


def made(backing: Backing = Backing.IMAGE, size: int = GIB) -> LocalVolume:
    return LocalVolume("csi-1", backing, size, is_ephemeral=True)


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        ({}, made()),
        ({"size": "2Gi"}, made(size=2 * GIB)),
        ({"size": "4Gi"}, made(size=4 * GIB)),
        ({"backing": "directory"}, made(Backing.DIRECTORY)),
        ({"backing": "image", "csi.storage.k8s.io/pod.name": "web"}, made()),
    ],
)
def test_a_volume_has_a_size(attributes: dict[str, str], wanted: LocalVolume) -> None:
    assert read_ephemeral("csi-1", attributes, LIMITS, None) == wanted


@pytest.mark.parametrize(
    ("attributes", "code", "words"),
    [
        ({"size": "4097Mi"}, Code.OUT_OF_RANGE, "size: ephemeral volumes have at most 4294967296 bytes"),
        ({"size": "15Ti", "backing": "directory"}, Code.OUT_OF_RANGE, "--max-ephemeral-size"),
        ({"size": "0"}, Code.INVALID_ARGUMENT, "size: must be greater than zero"),
        ({"size": "-1"}, Code.INVALID_ARGUMENT, "size: must be greater than zero"),
        ({"size": "much"}, Code.INVALID_ARGUMENT, "volume attribute size: "),
        ({"backing": "tape"}, Code.INVALID_ARGUMENT, "parameter backing is 'tape'"),
        ({"siez": "1Gi"}, Code.INVALID_ARGUMENT, "parameter 'siez' is not known"),
    ],
)
def test_what_a_pod_may_not_have(attributes: dict[str, str], code: Code, words: str) -> None:
    with pytest.raises(RpcError) as refused:
        read_ephemeral("csi-1", attributes, LIMITS, None)
    assert refused.value.code is code
    assert words in refused.value.message


def test_there_may_be_none() -> None:
    with pytest.raises(RpcError, match="switched off by --max-ephemeral-size"):
        read_ephemeral("csi-1", {}, EphemeralLimits(0, GIB), None)


@pytest.mark.parametrize("found", [made(Backing.DIRECTORY, 0), made(size=8 * GIB)])
@pytest.mark.parametrize("limits", [LIMITS, EphemeralLimits(0, GIB)])
def test_a_volume_that_exists_stays_as_it_is_when_limits_change(found: LocalVolume, limits: EphemeralLimits) -> None:
    assert read_ephemeral("csi-1", {}, limits, found) == found
    same = {"backing": str(found.backing), **({"size": str(found.capacity_bytes)} if found.capacity_bytes else {})}
    assert read_ephemeral("csi-1", same, limits, found) == found


@given(st.lists(st.integers(1, 60), max_size=20))
def test_all_volumes_together_leave_a_part_of_the_disk_free(sizes: list[int]) -> None:
    capacity, promised = 1000, 0
    for size in sizes:
        if missing_bytes(size, capacity, capacity, promised) <= 0:
            promised += size
    assert promised <= 850
    assert promised > 790 or promised == sum(sizes)


@pytest.fixture
def disk(top: Path) -> Path:
    """A disk of 100 MiB."""
    (top / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(top / "disk")], check=True)
    return top / "disk"


def service(folder: Path, quotas: VolumeQuotas | None = None, limits: EphemeralLimits = LIMITS) -> NodeService:
    return NodeService(LocalVolumes(f"{folder}/volumes", quotas), NodeIdentity("node-1", 0, {}), limits)


async def publish(node: NodeService, top: Path, volume_id: str, **attributes: str) -> Path:
    target = top / "pods" / volume_id
    context = {EPHEMERAL: "true", **attributes}
    request = pb.NodePublishVolumeRequest(
        volume_id=volume_id, target_path=str(target), volume_capability=MOUNT, volume_context=context
    )
    await node.publish(request)
    return target


async def unpublish(node: NodeService, top: Path, volume_id: str) -> None:
    request = pb.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=str(top / "pods" / volume_id))
    await node.unpublish(request)


async def refusal(node: NodeService, top: Path, volume_id: str, **attributes: str) -> RpcError:
    with pytest.raises(RpcError) as refused:
        await publish(node, top, volume_id, **attributes)
    return refused.value


@needs_root
async def test_the_disk_has_a_place_for_every_byte_that_pods_may_write(top: Path, disk: Path) -> None:
    node = service(disk)
    target = await publish(node, top, "csi-1", size="40Mi")
    refused = await refusal(node, top, "csi-2", size="50Mi")
    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert "bytes are missing for an ephemeral volume of 52428800 bytes" in refused.message
    assert os.listdir(disk / "volumes") == ["csi-1"]
    await publish(node, top, "csi-3", size="30Mi")
    with pytest.raises(OSError, match="No space"), (target / "large").open("wb") as file:
        for _ in range(100):
            file.write(os.urandom(MIB))
            file.flush()
            os.fsync(file.fileno())
    assert (await refusal(node, top, "csi-2", size="20Mi")).code is Code.RESOURCE_EXHAUSTED
    assert read_fs_usage(str(disk)).available_bytes >= 45 * MIB, "what is promised, and 15%"
    await unpublish(node, top, "csi-1")
    await publish(node, top, "csi-2", size="50Mi")
    for name in ("csi-2", "csi-3"):
        await unpublish(node, top, name)
    assert mounts_below(str(top / "pods")) == ()
    assert os.listdir(disk / "volumes") == []


@needs_root
async def test_volumes_that_are_created_at_the_same_time_share_the_disk(top: Path, disk: Path) -> None:
    node = service(disk)
    results = await asyncio.gather(
        *(publish(node, top, f"csi-{number}", size="20Mi") for number in range(6)), return_exceptions=True
    )
    assert sum(isinstance(result, Path) for result in results) == 4
    assert {result.code for result in results if isinstance(result, RpcError)} == {Code.RESOURCE_EXHAUSTED}
    for number in range(6):
        await unpublish(node, top, f"csi-{number}")
    assert os.listdir(disk / "volumes") == []


@needs_root
async def test_a_directory_needs_a_quota(top: Path) -> None:
    files = ProjectFiles(f"{top}/projects", f"{top}/projid")
    calls = MemoryQuotas()
    node = service(top, VolumeQuotas(is_on=True, files=files, calls=calls))
    target = await publish(node, top, "csi-1", backing="directory", size="8Mi")
    (target / "file").write_text("x")
    assert set(calls.limits.values()) == {8 * MIB}
    await unpublish(node, top, "csi-1")
    calls.largest = 0
    refused = await refusal(node, top, "csi-2", backing="directory", size="8Mi")
    assert refused.code is Code.FAILED_PRECONDITION
    assert refused.message.endswith("needs a file system with project quotas: use image")
    assert os.listdir(top / "volumes") == []


@needs_root
async def test_a_volume_of_an_earlier_version_stays_usable(top: Path) -> None:
    (top / "volumes/csi-1/data").mkdir(parents=True)
    (top / "volumes/csi-1/data/file").write_text("kept")
    notes = {"backing": "directory", "capacityBytes": 0, "ephemeral": True, "block": False}
    (top / "volumes/csi-1/volume.json").write_text(json.dumps(notes))
    node = service(top)
    target = await publish(node, top, "csi-1")
    assert (target / "file").read_text() == "kept"
    await unpublish(node, top, "csi-1")
    assert os.listdir(top / "volumes") == []
