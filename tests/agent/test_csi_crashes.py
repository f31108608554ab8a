"""Agent and driver are killed at each step of the work for a CSI volume, one after the other, and started again.

The steps are not listed here: they are the effects that agent and driver have on the machine while pods with a volume come,
their volume grows, the agent is restarted beside them, and they go. After each such life nothing is left, nothing that the
pods have written is lost, and the driver has been called as the CSI specification allows (`support/csi_rules.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest
from agent.test_csi_claims import LIFE, nothing_is_staged
from agent.test_csi_volumes import offer, pod_with_volume, text_of
from support.agent import WAIT_S, Agent, Json, make_container, make_pod, sweep
from support.api_server import FakeApiServer
from support.claims import CLAIMS, VOLUMES, bind_claim, pod_with_claim
from support.crashes import CrashingAgent
from support.csi import CsiProcess, csi_driver
from support.csi_rules import CsiRules
from support.world import World, kubeconfig
from testbed.private_runtime import Testbed

from pykubelet.edges.host.devices.loops import find_loops
from pykubelet.edges.host.fs.mounts import mounts_below

LIVES = 400
HANDLE = "pvc-1"
NAMES = ("one", "other")
#: The modules of CSI volumes, and those of the volume manager.
CSI_MODULES, MANAGER = "volumes/csi/", "provide/volumes/"
#: In one wait there may be many kills, each of which costs a start.
LONG_S = 8 * WAIT_S
EXPAND = "NodeExpandVolume"
#: Adds a line, and waits.
APPENDS = 'echo line >> /data/file; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'


class Kind(StrEnum):
    """Kinds of volumes: of a pod's own, of a claim, and of a claim without a file system."""

    INLINE = "inline"
    CLAIM = "claim"
    BLOCK = "block"

    @property
    def steps(self) -> set[str]:
        """The kinds of effects of the agent that are never missing in a life."""
        own = {"rename", "unlink", "rmdir", *LIFE[1:3]}
        if self is Kind.INLINE:
            return own
        mapped = {"mount", "umount", "ioctl", "symlink"} if self is Kind.BLOCK else set()
        return own | mapped | {*LIFE, EXPAND}


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


def pod_with_device(name: str, script: str, claim: str = "data") -> Json:
    """A pod that has the claim's block volume at `/dev/disk`."""
    container = make_container(script=script, volumeDevices=[{"name": "data", "devicePath": "/dev/disk"}])
    return make_pod(name, container, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": claim}}])


@dataclass
class Lives:
    """Pods with a volume of this kind come and go, again and again. `data`: the driver's directory."""

    world: World
    kind: Kind
    data: Path
    number: int = 0
    rules: CsiRules = field(default_factory=CsiRules)
    _read: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The pods. Two share the volume of a claim."""
        return NAMES if self.kind is not Kind.INLINE else NAMES[:1]

    @property
    def has_claim(self) -> bool:
        return self.kind is not Kind.INLINE

    async def prepare(self, driver: CsiProcess) -> None:
        """Make the volume, its claim, and a PersistentVolume."""
        if not self.has_claim:
            return
        is_block = self.kind is Kind.BLOCK
        await driver.create(HANDLE, is_block=is_block)
        mode: Json = {"volumeMode": "Block"} if is_block else {}
        size = {"storage": "8Mi"}
        bind_claim(self.world, "data", HANDLE, capacity=size, **mode)

        def sized(claim: Json) -> None:
            claim["spec"] |= {"resources": {"requests": size}, **mode}
            claim["status"]["capacity"] = size

        self.world.server.update(f"{CLAIMS}/data", sized)

    async def live(self) -> None:
        """One life. Of what has to outlive it everything is there, and of the rest nothing."""
        world, agent = self.world, self.world.agent
        self.number += 1
        if self.has_claim:
            self._grow(2 * self.number + 7)
        for name in self.names:
            world.run(self._pod(name))
        await world.wait_ready(*self.names, within=LONG_S)
        await self._wait_written()
        before = self._mounts()
        assert before, "nothing is mounted"
        if self.has_claim:
            self._grow(2 * self.number + 8)
        agent.kill9()  # it is started again, finds what is mounted, and sees that the volume has grown
        await agent.wait_running(*self.names, within=LONG_S)
        if self.has_claim:
            await agent.wait_for("the volume grows", self._has_grown, LONG_S)
        assert self._mounts() == before, "a restart has changed what is mounted"
        for name in self.names:
            world.delete(name)
        await world.wait_gone(*self.names, within=LONG_S)
        await nothing_is_staged(world, within=LONG_S)
        await agent.wait_nothing_left(LONG_S)
        self._check()

    def _pod(self, name: str) -> Json:
        match self.kind:
            case Kind.INLINE:
                return pod_with_volume(name)
            case Kind.CLAIM:
                return pod_with_claim(name, "data", APPENDS)
            case Kind.BLOCK:
                waits = APPENDS.replace("echo line >> /data/file", f"printf '{self._mark}' > /dev/disk; sync")
                return pod_with_device(name, waits)

    @property
    def _mark(self) -> str:
        """What the pods of a life write to their device."""
        return f"life {self.number}."

    def _grow(self, size_mi: int) -> None:
        """The controllers of the cluster make the volume larger; the node has to follow."""
        size, server = {"storage": f"{size_mi}Mi"}, self.world.server
        server.update(f"{VOLUMES}/pv-data", lambda volume: volume["spec"].update(capacity=size))

        def pending(claim: Json) -> None:
            claim["spec"]["resources"] = {"requests": size}
            state = {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}
            claim["status"] |= {"allocatedResources": size, **state}

        server.update(f"{CLAIMS}/data", pending)

    def _has_grown(self) -> bool:
        """Whether the node has reported the size of the PersistentVolume."""
        status, size = self._claim()["status"], self.world.server.get(f"{VOLUMES}/pv-data")["spec"]["capacity"]
        return bool(status["capacity"] == size and not status.get("allocatedResourceStatuses"))

    def _claim(self) -> Json:
        return self.world.server.get(f"{CLAIMS}/data")

    async def _wait_written(self) -> None:
        agent = self.world.agent
        match self.kind:
            case Kind.INLINE:
                await agent.wait_for("it is written", lambda: text_of(agent, NAMES[0]) == "written\n", LONG_S)
            case Kind.CLAIM:
                await agent.wait_for("it is written", lambda: self._lines() >= 2 * self.number, LONG_S)
            case Kind.BLOCK:
                await agent.wait_for("it is written", self._is_marked, LONG_S)

    def _lines(self) -> int:
        """How many lines the pods have written into the persistent volume, wherever the driver keeps it."""
        found = [path for path in (self.data / "volumes").rglob("file") if path.is_file()]
        return len(found[0].read_text().splitlines()) if len(found) == 1 else 0

    def _is_marked(self) -> bool:
        with (self.data / "volumes" / HANDLE / "image").open("rb") as image:
            return image.read(64).startswith(self._mark.encode())

    def _mounts(self) -> set[tuple[int, str]]:
        """Number and place of each mount of the volumes."""
        found = mounts_below(str(self.world.agent.root))
        return {(mount.id, mount.target) for mount in found if "kubernetes.io" in mount.target}

    def _check(self) -> None:
        """After a life: the data, the driver's state, the devices, and its calls."""
        volumes = sorted(path.name for path in (self.data / "volumes").glob("*"))
        assert volumes == ([HANDLE] if self.has_claim else [])
        match self.kind:
            case Kind.CLAIM:
                assert self._lines() >= 2 * self.number
            case Kind.BLOCK:
                assert self._is_marked()
                assert find_loops(str(self.data / "volumes" / HANDLE / "image")) == []
        self.check_calls()

    def check_calls(self) -> None:
        """The driver's calls since the last look are as the CSI specification allows, and nothing is staged or published."""
        lines = (self.data / "calls.jsonl").read_text().splitlines()
        self.rules.read(json.loads(line) for line in lines[self._read :])
        self._read = len(lines)
        assert self.rules.broken == []
        assert self.rules.left() == []


@asynccontextmanager
async def crashing(
    testbed: Testbed, folder: Path, variables: dict[str, str], *, keep: bool = True
) -> AsyncIterator[World]:
    """A world whose agent kills itself at the points of `variables`. `keep`: it is started again whenever it has ended."""
    await sweep(testbed)
    async with FakeApiServer() as server:
        flags = ("--kubeconfig", str(kubeconfig(server, folder / "kubeconfig")))
        agent = CrashingAgent(testbed, Path(testbed.folder) / f"csi-{folder.name[-20:]}", {}, flags, points=variables)
        if variables:
            variables["PYKUBELET_CRASH_PLACES"] = str(agent.folder)
        world = World(server, agent)
        offer(world, volumeLifecycleModes=["Persistent", "Ephemeral"])
        keepers = [asyncio.get_running_loop().create_task(keep_running(agent))] if keep else []
        try:
            yield world
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await agent.clear()


def points(done: Path, **given: str) -> dict[str, str]:
    """The variables of `support/crashing_agent.py`."""
    return {f"PYKUBELET_CRASH_{name.upper()}": value for name, value in {"done": str(done), **given}.items()}


async def until_nothing_is_new(done: Path, live_once: Callable[[], Awaitable[None]]) -> list[str]:
    """Live until no point is added to `done`. Returns the effects of all points."""
    for _ in range(LIVES):
        before = _text(done)
        try:
            await live_once()
        except AssertionError as error:
            last = _text(done).splitlines()[-4:]
            raise AssertionError("\n".join([str(error), "the last kills, the newest last:", *last])) from error
        if _text(done) == before:
            return [json.loads(line)["effect"] for line in before.splitlines()]
    raise AssertionError(f"still new points after {LIVES} lives: {_text(done)}")


def _text(done: Path) -> str:
    return done.read_text() if done.exists() else ""


async def kill_agent_everywhere(testbed: Testbed, folder: Path, kind: Kind, **given: str) -> list[str]:
    """Returns the effects at which the agent was killed."""
    done = folder / "done"
    async with crashing(testbed, folder, points(done, **given)) as world:
        data = world.agent.folder / "driver"
        async with csi_driver(world.agent.root, data) as driver:
            lives = Lives(world, kind, data)
            await lives.prepare(driver)
            return await until_nothing_is_new(done, lives.live)


async def kill_driver_everywhere(testbed: Testbed, folder: Path, kind: Kind, **given: str) -> list[str]:
    """Returns the effects at which the driver was killed."""
    done = folder / "done"
    async with crashing(testbed, folder, {}) as world:
        data = world.agent.folder / "driver"
        lives = Lives(world, kind, data)
        async with csi_driver(world.agent.root, data) as driver:
            await lives.prepare(driver)
            await driver.stop()
        variables = points(done, within="pykubelet_csi_local/", places=str(world.agent.folder), **given)
        keeper = asyncio.get_running_loop().create_task(keep_driver_running(world.agent, data, variables))
        try:
            return await until_nothing_is_new(done, lives.live)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)


@pytest.mark.parametrize("kind", Kind)
async def test_the_agent_is_killed_after_each_kind_of_effect(testbed: Testbed, tmp_path: Path, kind: Kind) -> None:
    given = {"within": CSI_MODULES, "sites": "coarse", "moments": "sent,after"}
    assert kind.steps <= set(await kill_agent_everywhere(testbed, tmp_path, kind, **given))


async def test_the_driver_is_killed_after_each_kind_of_effect(testbed: Testbed, tmp_path: Path) -> None:
    effects = await kill_driver_everywhere(testbed, tmp_path, Kind.CLAIM, sites="coarse", moments="after")
    assert {"mount", "umount"} <= set(effects)


@pytest.mark.crash
@pytest.mark.parametrize("kind", Kind)
async def test_the_agent_is_killed_at_every_effect(testbed: Testbed, tmp_path: Path, kind: Kind) -> None:
    given = {"within": MANAGER, "sites": "fine", "moments": "before,half,sent,after"}
    effects = await kill_agent_everywhere(testbed, tmp_path, kind, **given)
    assert kind.steps <= set(effects) and len(effects) > 60
    assert "patch" in effects or kind is Kind.INLINE


@pytest.mark.crash
@pytest.mark.parametrize("kind", Kind)
async def test_the_driver_is_killed_at_every_effect(testbed: Testbed, tmp_path: Path, kind: Kind) -> None:
    effects = await kill_driver_everywhere(testbed, tmp_path, kind, sites="fine", moments="before,half,sent,after")
    wanted = {"mount", "umount"} if kind is not Kind.INLINE else {"truncate", "umount"}  # mount(8) mounts an image
    assert wanted <= set(effects) and len(effects) > 10
