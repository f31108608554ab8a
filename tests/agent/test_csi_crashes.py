"""The agent is killed at each step of publishing and unpublishing a CSI volume, one after the other, and started again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from agent.test_csi_volumes import driver_of, offer, pod_with_volume, text_of
from support.agent import sweep
from support.crashes import CrashingAgent
from support.csi import CsiProcess
from support.world import World, kubeconfig
from testbed.containerd import Testbed

from pykubelet.testing.kubeapi.fake import FakeApiServer

LIVES = 100


async def keep_running(agent: CrashingAgent) -> None:
    """Start the agent again whenever it has killed itself."""
    while True:
        if not agent.alive:
            agent.kill9()
            agent.start(wait=False)
        await asyncio.sleep(0.02)


async def live(world: World, driver: CsiProcess) -> None:
    """A pod with a volume comes and goes; nothing of it is left."""
    world.run(pod_with_volume("web"))
    await world.wait_ready("web")
    await world.agent.wait_for("it is written", lambda: text_of(world.agent, "web") == "written\n")
    world.delete("web")
    await world.wait_gone("web")
    await world.wait_nothing_left()
    assert driver.volumes() == []


async def kill_everywhere(testbed: Testbed, folder: Path, **points: str) -> list[str]:
    """Lives until one comes to no new point. Returns the effects at which the agent was killed."""
    await sweep(testbed)
    done = folder / "done"
    names = {"done": str(done), "within": "csi_mount", **points}
    variables = {f"PYKUBELET_CRASH_{name.upper()}": value for name, value in names.items()}
    async with FakeApiServer() as server:
        flags = ("--kubeconfig", str(kubeconfig(server, folder / "kubeconfig")))
        agent = CrashingAgent(testbed, Path(testbed.folder) / f"csi-{folder.name[-20:]}", {}, flags, points=variables)
        world = World(server, agent)
        offer(world)
        variables["PYKUBELET_CRASH_PLACES"] = str(agent.folder)
        async with driver_of(agent) as driver:
            keeper = asyncio.get_running_loop().create_task(keep_running(agent))
            try:
                for _ in range(LIVES):
                    before = done.read_text() if done.exists() else ""
                    await live(world, driver)
                    if done.exists() and done.read_text() == before:
                        return [json.loads(line)["effect"] for line in before.splitlines()]
            finally:
                keeper.cancel()
                await asyncio.gather(keeper, return_exceptions=True)
                await agent.clear()
    raise AssertionError(f"still new points after {LIVES} lives: {done.read_text()}")


async def test_killed_after_each_kind_of_effect(testbed: Testbed, tmp_path: Path) -> None:
    effects = await kill_everywhere(testbed, tmp_path, sites="coarse", moments="sent,after")
    assert {"NodePublishVolume", "NodeUnpublishVolume", "rename", "unlink", "rmdir"} <= set(effects)


@pytest.mark.crash
async def test_killed_before_during_and_after_every_effect(testbed: Testbed, tmp_path: Path) -> None:
    effects = await kill_everywhere(testbed, tmp_path, sites="fine", moments="before,half,sent,after")
    assert len(effects) > 25
