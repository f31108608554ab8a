"""The driver is killed at each effect that it has on the machine, one after the other, and called again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from csi_local.stand import BLOCK, MOUNT, create, publication, staging, write_through
from support.csi import CsiProcess, csi_driver

from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import LIMITS, CsiNode
from pykubelet.edges.host.devices.block_devices import device_size
from pykubelet.edges.host.devices.loops import find_loops
from pykubelet.edges.host.fs.mounts import mounts_below, read_fs_usage
from pykubelet.edges.plugins.channels import plugin_channel
from pykubelet.net.grpc.call import call
from pykubelet.net.grpc.status import Code, RpcError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
LIVES = 200


class Fragile:
    """A driver that is started again whenever it has killed itself; the call is then repeated, as every caller does."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.done = top / "done"
        names = {"done": str(self.done), "within": "pykubelet_csi_local/", "sites": "fine", "places": str(top)}
        self._points = {f"PYKUBELET_CRASH_{name.upper()}": value for name, value in names.items()}
        self._stack = AsyncExitStack()
        self._driver: CsiProcess | None = None

    async def driver(self) -> CsiProcess:
        if self._driver is None:
            made = csi_driver(self.top / "root", self.top / "data", points=self._points)
            self._driver = await self._stack.enter_async_context(made)
        return self._driver

    async def close(self) -> None:
        self._driver = None
        await self._stack.aclose()

    async def call(self, act: Callable[[CsiNode], Awaitable[Any]]) -> None:
        """Repeat the call as the kubelet does, until it is answered: mount(8) may outlive the driver that was killed."""
        again = iter(range(50))
        while True:
            driver = await self.driver()
            try:
                with CsiNode(driver.name, str(driver.endpoint)) as node:
                    await act(node)
                return
            except RpcError as error:
                if await driver.has_ended():
                    await self.close()
                elif error.code is not Code.FAILED_PRECONDITION or next(again, None) is None:
                    raise
                else:
                    await asyncio.sleep(0.1)

    async def control(self, call_: str, **fields: Any) -> None:
        request, answer = getattr(pb, f"{call_}Request"), getattr(pb, f"{call_}Response")

        async def act(_: CsiNode) -> None:
            channel = plugin_channel(str((await self.driver()).endpoint), LIMITS)
            try:
                await call(channel, f"/csi.v1.Controller/{call_}", request(**fields), answer, 60)
            finally:
                channel.close()

        await self.call(act)


async def live(fragile: Fragile, backing: str) -> None:
    """A persistent and an ephemeral volume come and go; the data stay as long as they should."""
    top, size = fragile.top, pb.CapacityRange(required_bytes=8 << 20)
    staged, target = str(top / "staged"), str(top / "target")
    parameters = {"backing": backing}
    wanted = {"capacity_range": size, "volume_capabilities": [MOUNT], "parameters": parameters}
    await fragile.control("CreateVolume", name="pvc-1", **wanted)
    stage = pb.NodeStageVolumeRequest(volume_id="pvc-1", staging_target_path=staged, volume_capability=MOUNT)
    publish = pb.NodePublishVolumeRequest(
        volume_id="pvc-1", staging_target_path=staged, target_path=target, volume_capability=MOUNT
    )
    for is_first in (True, False):
        await fragile.call(lambda node: node.stage(stage))
        await fragile.call(lambda node: node.publish(publish))
        if is_first:
            (top / "target" / "file").write_text("kept")
        assert (top / "target" / "file").read_text() == "kept"
        await fragile.call(lambda node: node.unpublish("pvc-1", target))
        await fragile.call(lambda node: node.unstage("pvc-1", staged))
        larger = pb.CapacityRange(required_bytes=16 << 20)
        await fragile.control("ControllerExpandVolume", volume_id="pvc-1", capacity_range=larger)
    await fragile.call(lambda node: node.stage(stage))
    if backing == "image":
        assert read_fs_usage(staged).capacity_bytes > 9 << 20, "an interrupted growth goes on"
    await fragile.call(lambda node: node.unstage("pvc-1", staged))
    await fragile.control("DeleteVolume", volume_id="pvc-1")
    await live_as_block(fragile)
    context = {"csi.storage.k8s.io/ephemeral": "true", "size": "8Mi"}
    inline = pb.NodePublishVolumeRequest(
        volume_id="csi-1", target_path=target, volume_capability=MOUNT, volume_context=context, readonly=True
    )
    await fragile.call(lambda node: node.publish(inline))
    with pytest.raises(OSError, match="Read-only"):
        (top / "target" / "file").write_text("x")
    await fragile.call(lambda node: node.unpublish("csi-1", target))
    assert mounts_below(str(top)) == ()
    assert find_loops(str(top / "data/volumes/pvc-1/image")) == find_loops(str(top / "data/volumes/csi-1/image"))
    assert (await fragile.driver()).volumes() == []


async def live_as_block(fragile: Fragile) -> None:
    """A block volume comes, is written, grows while it is published, and goes."""
    top, image = fragile.top, fragile.top / "data/volumes/pvc-2/image"
    staged, target = str(top / "staged-2"), str(top / "device")
    size, larger = (pb.CapacityRange(required_bytes=n << 20) for n in (4, 6))
    await fragile.control("CreateVolume", name="pvc-2", capacity_range=size, volume_capabilities=[BLOCK])
    stage = pb.NodeStageVolumeRequest(volume_id="pvc-2", staging_target_path=staged, volume_capability=BLOCK)
    publish = pb.NodePublishVolumeRequest(
        volume_id="pvc-2", staging_target_path=staged, target_path=target, volume_capability=BLOCK
    )
    expand = pb.NodeExpandVolumeRequest(volume_id="pvc-2", volume_path=target, capacity_range=larger)
    await fragile.call(lambda node: node.stage(stage))
    await fragile.call(lambda node: node.publish(publish))
    write_through(Path(target), b"k" * 512)
    await fragile.control("ControllerExpandVolume", volume_id="pvc-2", capacity_range=larger)
    await fragile.call(lambda node: node.expand(expand))
    assert device_size(target) == 6 << 20
    assert image.read_bytes()[:512] == b"k" * 512
    await fragile.call(lambda node: node.unpublish("pvc-2", target))
    await fragile.call(lambda node: node.unstage("pvc-2", staged))
    assert find_loops(str(image)) == []
    await fragile.control("DeleteVolume", volume_id="pvc-2")


@pytest.mark.parametrize("backing", ["directory", pytest.param("image", marks=pytest.mark.crash)])
async def test_killed_at_every_effect(top: Path, backing: str) -> None:
    fragile = Fragile(top)
    try:
        for _ in range(LIVES):
            before = fragile.done.read_text() if fragile.done.exists() else ""
            await live(fragile, backing)
            if fragile.done.exists() and fragile.done.read_text() == before:
                break
        else:
            raise AssertionError("there are always new points")
    finally:
        await fragile.close()
    assert len(before.splitlines()) > 20


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
