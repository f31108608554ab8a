"""Persistent volumes of a CSI driver in pods on a real containerd, attached by a stand-in for the controllers of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.test_csi_volumes import driver_of, offer, shows
from support.agent import WAIT_S
from support.claims import Attacher, bind_claim, pod_with_claim
from support.csi import DRIVER
from support.world import World

from pykubelet.base.model.attachments import unique_csi_name
from pykubelet.edges.host.fs.mounts import mounts_below

HANDLE = "pvc-1"
NAME = unique_csi_name(DRIVER, HANDLE)
LIFE = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]


@asynccontextmanager
async def attaching(world: World, *handles: str) -> AsyncIterator[Attacher]:
    attacher = Attacher(world, *handles)
    task = asyncio.get_running_loop().create_task(attacher.run())
    try:
        yield attacher
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def devices(world: World) -> list[Path]:
    """What is there of staged and published volumes."""
    top = world.agent.root / "plugins/kubernetes.io/csi"
    shared = [top / "volumeDevices" / name for name in ("staging", "publish")]
    return [
        path
        for path in (*top.glob("*/*"), *(child for folder in shared for child in folder.glob("*")))
        if path not in shared
    ]


async def nothing_is_staged(world: World, within: float = WAIT_S) -> None:
    await world.agent.wait_for("nothing is staged", lambda: not devices(world), within)
    assert not [mount for mount in mounts_below(str(world.agent.root)) if "kubernetes.io" in mount.target]


async def test_a_volume_is_attached_staged_published_and_all_back(world: World) -> None:
    agent = world.agent
    offer(world, attachRequired=True, volumeLifecycleModes=["Persistent"])
    async with driver_of(agent) as driver, attaching(world, HANDLE) as attacher:
        await driver.create(HANDLE)
        bind_claim(world, "data", HANDLE)
        attacher.wanted.clear()
        world.run(pod_with_claim("web", "data"))
        await agent.wait_for(
            "it is reported", lambda: NAME in (((attacher.node() or {}).get("status") or {}).get("volumesInUse") or ())
        )
        await agent.wait_for("it waits", lambda: shows(agent, "web", f"volume {NAME} is not yet in node's status"))
        assert driver.names() == []
        attacher.wanted.add(NAME)
        await world.wait_ready("web")
        (stage,), (publish,) = driver.requests("NodeStageVolume"), driver.requests("NodePublishVolume")
        assert stage["publish_context"] == publish["publish_context"] == {"path": f"/dev/{HANDLE}"}
        assert publish["volume_context"]["csi.storage.k8s.io/ephemeral"] == "false"
        attacher.wanted.clear()
        world.delete("web")
        await world.wait_gone("web")
        await nothing_is_staged(world)
        await agent.wait_for("it is detached", lambda: attacher.log == [f"attached {HANDLE}", f"detached {HANDLE}"])
        assert driver.names() == LIFE
        await world.wait_nothing_left()
