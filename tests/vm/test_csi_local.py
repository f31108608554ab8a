"""Volumes of `pykubelet csi-local` that grow while a pod has them open, and directories with quotas: on a kernel that has both."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from provide.volumes.csi_samples import HANDLE, a_pod, begin
from provide.volumes.samples import roster
from provide.volumes.test_csi_expand import MI, Store, in_mi
from provide.volumes.test_loop import started, until
from support.block import file_system_size, written
from support.csi import csi_driver, csi_folder
from support.quotas import quota_disk

from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.host.devices.loops import find_loops
from pykubelet.edges.host.fs import mounts
from pykubelet_csi_local.ephemeral import EphemeralLimits
from pykubelet_csi_local.node import EPHEMERAL, NodeIdentity, NodeService
from pykubelet_csi_local.volumes import LocalVolumes

pytestmark = pytest.mark.vm


@pytest.fixture
def top() -> Iterator[Path]:
    with csi_folder() as made:
        yield made


def fits(path: Path, size_mi: int) -> bool:
    """Whether a process like those of containers, which quotas hold for, can write so much there. It is removed again."""
    words = ["setpriv", "--bounding-set=-sys_resource", "dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={size_mi}"]
    try:
        return subprocess.run([*words, "conv=fsync"], check=False, capture_output=True).returncode == 0
    finally:
        path.unlink(missing_ok=True)


def problems_of(image: Path) -> str:
    """What e2fsck finds in an image; "" if that is nothing."""
    done = subprocess.run(["e2fsck", "-f", "-n", str(image)], check=False, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout


async def test_an_image_grows_while_it_is_in_use(top: Path) -> None:
    store, image = Store(8, 8), top / "data/volumes" / HANDLE / "image"
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root", claims=store) as agent:
        await driver.create(HANDLE, backing="image")
        begin(agent, driver, store.content(), a_pod())
        path = (await agent.wait_ready()).volumes["v"].host_path
        (before,) = mounts.mounts_below(path)
        assert before.fs_type == "ext4" and file_system_size(path) <= 8 * MI
        with written(Path(path, "kept")) as file:
            for size in (64, 256):
                await driver.expand(HANDLE, size * MI)
                store.enlarge(agent, size)
                await until(lambda size=size: store.status["capacity"] == in_mi(size))  # type: ignore[misc]
                assert file_system_size(path) > size * MI * 3 // 4
                assert fits(Path(path, "filler"), size // 2)
            file.write("written while it grew")
        assert [mount.id for mount in mounts.mounts_below(path)] == [before.id], "it was not mounted again"
        assert Path(path, "kept").read_text() == "written while it grew"
        assert driver.names().count("NodeStageVolume") == driver.names().count("NodePublishVolume") == 1
        agent.roster.publish(roster())
        await until(lambda: "NodeUnstageVolume" in driver.names("done"))
        assert find_loops(str(image)) == []
        assert problems_of(image) == ""


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
async def test_a_directory_holds_no_more_than_its_size_and_grows(top: Path, fs_type: str) -> None:
    store = Store(8, 8)
    with quota_disk(fs_type, top) as disk:
        async with csi_driver(top / "root", disk / "data") as driver, started(top / "root", claims=store) as agent:
            await driver.create(HANDLE)
            begin(agent, driver, store.content(), a_pod())
            path = Path((await agent.wait_ready()).volumes["v"].host_path)
            assert fits(path / "filler", 6) and not fits(path / "filler", 12)
            assert file_system_size(str(path)) == 8 * MI, "the volume shows its own size"
            assert fits(disk / "filler", 12), "only the volume is limited"
            await driver.expand(HANDLE, 24 * MI)
            store.enlarge(agent, 24)
            await until(lambda: store.status["capacity"] == in_mi(24))
            assert fits(path / "filler", 20) and not fits(path / "filler", 30)
            agent.roster.publish(roster())
            await until(lambda: "NodeUnstageVolume" in driver.names("done"))


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
async def test_a_directory_of_a_pods_own_is_limited(top: Path, fs_type: str) -> None:
    with quota_disk(fs_type, top) as disk:
        node = NodeService(LocalVolumes(f"{disk}/volumes"), NodeIdentity("node-1", 0, {}), EphemeralLimits())
        capability = pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume())
        context = {EPHEMERAL: "true", "backing": "directory", "size": "8Mi"}
        path = top / "target"
        request = pb.NodePublishVolumeRequest(
            volume_id="csi-1", target_path=str(path), volume_capability=capability, volume_context=context
        )
        await node.publish(request)
        assert fits(path / "filler", 6) and not fits(path / "filler", 12)
        await node.unpublish(pb.NodeUnpublishVolumeRequest(volume_id="csi-1", target_path=str(path)))
        assert list((disk / "volumes").iterdir()) == []
