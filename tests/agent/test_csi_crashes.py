"""Agent and driver are killed at each step of the work for a CSI volume, one after the other, and started again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agent.test_csi_claims import LIFE, nothing_is_staged
from agent.test_csi_volumes import driver_of, offer, pod_with_volume, text_of
from support.agent import Agent, sweep
from support.claims import bind_claim, pod_with_claim
from support.crashes import CrashingAgent
from support.csi import csi_driver
from support.world import World, kubeconfig
from testbed.containerd import Testbed

from pykubelet.testing.kubeapi.fake import FakeApiServer

LIVES = 200
HANDLE = "pvc-1"
#: The modules of CSI volumes.
WITHIN = "volumes/csi_"


async def keep_running(agent: CrashingAgent) -> None:
    """Start the agent again whenever it has killed itself."""
    while True:
        if not agent.alive:
            agent.kill9()
            agent.start(wait=False)
        await asyncio.sleep(0.02)


async def keep_driver_running(agent: Agent, folder: Path, variables: Mapping[str, str]) -> None:
    """Run a driver that kills itself at the points of `variables`, and start it again whenever it has. Never returns."""
    while True:
        async with csi_driver(agent.root, folder, points=variables) as driver:
            while not await driver.has_ended(1.0):
                continue


async def live(world: World) -> None:
    """A pod with a volume of its own comes and goes; nothing of it is left."""
    world.run(pod_with_volume("web"))
    await world.wait_ready("web")
    await world.agent.wait_for("it is written", lambda: text_of(world.agent, "web") == "written\n")
    world.delete("web")
    await world.wait_gone("web")
    await world.wait_nothing_left()


#: Adds a line, and waits.
APPENDS = 'trap "exit 0" TERM; echo line >> /data/file; while :; do sleep 3600 & wait $!; done'


async def live_with_claim(world: World) -> None:
    """Two pods with one persistent volume come and go; nothing of them is left at the node."""
    names = ("one", "other")
    for name in names:
        world.run(pod_with_claim(name, "data", APPENDS))
    await world.wait_ready(*names)
    for name in names:
        world.delete(name)
    await world.wait_gone(*names)
    await nothing_is_staged(world)
    await world.wait_nothing_left()


@asynccontextmanager
async def crashing(testbed: Testbed, folder: Path, variables: dict[str, str]) -> AsyncIterator[World]:
    """A world whose agent kills itself at the points of `variables`, and is started again."""
    await sweep(testbed)
    async with FakeApiServer() as server:
        flags = ("--kubeconfig", str(kubeconfig(server, folder / "kubeconfig")))
        agent = CrashingAgent(testbed, Path(testbed.folder) / f"csi-{folder.name[-20:]}", {}, flags, points=variables)
        if variables:
            variables["PYKUBELET_CRASH_PLACES"] = str(agent.folder)
        world = World(server, agent)
        offer(world, volumeLifecycleModes=["Persistent", "Ephemeral"])
        keeper = asyncio.get_running_loop().create_task(keep_running(agent))
        try:
            yield world
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await agent.clear()


def points(done: Path, **given: str) -> dict[str, str]:
    """The variables of `support/crashing_agent.py`."""
    return {f"PYKUBELET_CRASH_{name.upper()}": value for name, value in {"done": str(done), **given}.items()}


async def until_nothing_is_new(done: Path, live_once: Callable[[], Awaitable[None]]) -> list[str]:
    """Live until no point is added to `done`. Returns the effects of all points."""
    for _ in range(LIVES):
        before = done.read_text() if done.exists() else ""
        await live_once()
        if done.exists() and done.read_text() == before:
            return [json.loads(line)["effect"] for line in before.splitlines()]
    raise AssertionError(f"still new points after {LIVES} lives: {done.read_text()}")


def lines_in(data: Path) -> int:
    """How many lines the pods have written into the persistent volume, wherever the driver keeps it."""
    (file,) = [path for path in (data / "volumes").rglob("file") if path.is_file()]
    return len(file.read_text().splitlines())


async def kill_agent_everywhere(testbed: Testbed, folder: Path, *, claimed: bool, **given: str) -> list[str]:
    """Returns the effects at which the agent was killed. Nothing that was written to a persistent volume is lost."""
    done, lives = folder / "done", 0
    async with (
        crashing(testbed, folder, points(done, within=WITHIN, **given)) as world,
        driver_of(world.agent) as driver,
    ):

        async def live_once() -> None:
            nonlocal lives
            lives += 1
            await (live_with_claim(world) if claimed else live(world))
            assert driver.volumes() == ([HANDLE] if claimed else [])
            assert not claimed or lines_in(driver.data) >= 2 * lives

        if claimed:
            await driver.create(HANDLE)
            bind_claim(world, "data", HANDLE)
        return await until_nothing_is_new(done, live_once)


@pytest.mark.parametrize("claimed", [False, True])
async def test_killed_after_each_kind_of_effect(testbed: Testbed, tmp_path: Path, claimed: bool) -> None:
    effects = await kill_agent_everywhere(testbed, tmp_path, claimed=claimed, sites="coarse", moments="sent,after")
    calls = set(LIFE if claimed else LIFE[1:3])
    assert {*calls, "rename", "unlink", "rmdir"} <= set(effects)


@pytest.mark.crash
@pytest.mark.parametrize("claimed", [False, True])
async def test_killed_before_during_and_after_every_effect(testbed: Testbed, tmp_path: Path, claimed: bool) -> None:
    moments = "before,half,sent,after"
    effects = await kill_agent_everywhere(testbed, tmp_path, claimed=claimed, sites="fine", moments=moments)
    assert len(effects) > (50 if claimed else 25)


@pytest.mark.crash
async def test_the_driver_is_killed_at_every_effect(testbed: Testbed, tmp_path: Path) -> None:
    done, lives = tmp_path / "done", 0
    async with crashing(testbed, tmp_path, {}) as world:
        folder = world.agent.folder / "driver"
        async with csi_driver(world.agent.root, folder) as driver:
            await driver.create(HANDLE)
            await driver.stop()
        bind_claim(world, "data", HANDLE)
        variables = points(done, within="csi_local/", sites="fine", places=str(world.agent.folder))
        keeper = asyncio.get_running_loop().create_task(keep_driver_running(world.agent, folder, variables))

        async def live_once() -> None:
            nonlocal lives
            lives += 1
            await live_with_claim(world)
            assert lines_in(folder) >= 2 * lives

        try:
            effects = await until_nothing_is_new(done, live_once)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        assert len(effects) > 10
