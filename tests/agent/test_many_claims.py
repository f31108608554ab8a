"""Many pods, each with a claim of its own, come and go in random order while the agent is killed again and again: nothing is left."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from agent.test_csi_claims import attaching, nothing_is_staged
from agent.test_csi_crashes import pod_with_device
from agent.test_csi_volumes import driver_of, offer
from support.agent import WAIT_S, Agent, Json, condition
from support.claims import Attacher, bind_claim, pod_with_claim
from support.csi import DRIVER, CsiProcess
from support.csi_rules import CsiRules
from support.world import World, a_world

from pykubelet.base.model.attachments import unique_csi_name
from pykubelet.edges.host.devices.loops import find_loops

MakeAgent = Callable[..., Agent]
#: For all pods together.
LONG_S = 10 * WAIT_S
PAUSE_S = 0.08
KEPT = "kept"
#: It hears SIGTERM only once it has written: until then, the first process of a container ignores it.
SCRIPT = f'echo {KEPT} > /data/file; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
KINDS = ("directory", "directory", "image", "block")


@dataclass
class Crowd:
    """The pods `p<n>`, each with the claim `p<n>` for the volume `p<n>`. `written`: those that were seen ready."""

    world: World
    driver: CsiProcess
    attacher: Attacher
    written: set[str] = field(default_factory=set)
    kills: int = 0

    async def prepare(self, names: list[str]) -> None:
        """Make the volumes and their claims; a quarter are images with a file system, and a quarter block volumes."""
        for number, name in enumerate(names):
            kind = KINDS[number % len(KINDS)]
            is_block = kind == "block"
            await self.driver.create(name, is_block=is_block, backing="directory" if kind == "directory" else "image")
            mode: Json = {"volumeMode": "Block"} if is_block else {}
            bind_claim(self.world, name, name, **mode)

    async def run(self, name: str, number: int) -> None:
        """Create the pod; it is wanted where the controllers attach volumes."""
        self.attacher.wanted.add(unique_csi_name(DRIVER, name))
        if KINDS[number % len(KINDS)] == "block":
            pod = pod_with_device(name, SCRIPT.replace("/data/file", "/dev/disk; sync"), claim=name)
        else:
            pod = pod_with_claim(name, name, SCRIPT)
        pod["spec"]["hostNetwork"] = True
        self.world.run(pod)

    def delete(self, name: str) -> None:
        """Delete the pod, however far it is."""
        if condition(self.world.pod(name) or {"status": {}}, "Ready") == "True":
            self.written.add(name)
        self.attacher.wanted.discard(unique_csi_name(DRIVER, name))
        self.world.delete(name)

    def kill(self) -> None:
        """Kill the agent, and start it again at once."""
        self.kills += 1
        self.world.agent.kill9()
        self.world.agent.start(wait=False)

    def lost(self) -> list[str]:
        """The pods whose volume has not kept what they have written."""
        return [name for name in sorted(self.written) if not self._has_kept(self.driver.data / "volumes" / name)]

    @staticmethod
    def _has_kept(volume: Path) -> bool:
        image = volume / "image"
        text = image.read_bytes() if image.exists() else (volume / "data" / "file").read_bytes()
        return KEPT.encode() in text

    def left(self, names: list[str]) -> list[str]:
        """Loop devices of the volumes, and what is reported about them in the Node's status."""
        volumes = self.driver.data / "volumes"
        loops = [loop for name in names for loop in find_loops(str(volumes / name / "image"))]
        status = (self.attacher.node() or {})["status"]
        return [
            *loops,
            *(status.get("volumesInUse") or ()),
            *(volume["name"] for volume in status.get("volumesAttached") or ()),
        ]


def planned(names: list[str], kills: int, chance: random.Random) -> list[tuple[str, str]]:
    """What happens, in order: each pod is created and some time later deleted; the agent is killed at random moments between."""
    times = [(chance.random(), name) for name in names]
    steps = [(at, "create", name) for at, name in times]
    steps += [(at + chance.random(), "delete", name) for at, name in times]
    steps += [(chance.uniform(0.05, 1.9), "kill", "") for _ in range(kills)]
    return [(what, name) for _, what, name in sorted(steps)]


@pytest.mark.parametrize(("pods", "kills"), [(20, 4), pytest.param(200, 20, marks=pytest.mark.crash)])
async def test_nothing_is_left_of_many_pods(
    make_agent: MakeAgent, tmp_path: Path, capsys: pytest.CaptureFixture[str], pods: int, kills: int
) -> None:
    seed = random.randrange(1 << 32)
    names, chance, began = [f"p{n}" for n in range(pods)], random.Random(seed), time.monotonic()
    async with a_world(make_agent, tmp_path, maxPods=pods + 10) as world:
        offer(world, attachRequired=True, volumeLifecycleModes=["Persistent"])
        async with driver_of(world.agent) as driver, attaching(world, *names) as attacher:
            attacher.wanted.clear()
            crowd = Crowd(world, driver, attacher)
            await crowd.prepare(names)
            for what, name in planned(names, kills, chance):
                match what:
                    case "create":
                        await crowd.run(name, names.index(name))
                    case "delete":
                        if chance.random() < 0.5:  # of the others, some are deleted before they are ready
                            await world.wait_ready(name, within=LONG_S)
                        crowd.delete(name)
                    case _:
                        crowd.kill()
                await asyncio.sleep(PAUSE_S * chance.uniform(0.5, 1.5))
            await world.agent.wait_for("all pods are gone", lambda: not any(map(world.pod, names)), LONG_S)
            await nothing_is_staged(world, within=LONG_S)
            await world.agent.wait_nothing_left(LONG_S)
            await world.agent.wait_for("all volumes are detached", lambda: not crowd.left(names), LONG_S)
            view = await world.agent.look()
            assert (view.sandboxes, view.containers) == ((), ())
            assert driver.volumes() == sorted(names)
            assert len(crowd.written) > pods // 4 and crowd.lost() == [], f"seed {seed}"
            rules = CsiRules()
            rules.read(driver.calls())
            assert (rules.broken, rules.left()) == ([], []), f"seed {seed}"
    with capsys.disabled():
        ready = f"{len(crowd.written)} were ready when they were deleted"
        print(f"\n{pods} pods, {ready}, {crowd.kills} kills, {time.monotonic() - began:.0f} s")
