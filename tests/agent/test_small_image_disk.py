"""The disk of images and containers is full: pulls fail and say why, and are tried again; unused images go before pods do."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.agent import Agent, Json, container_status, make_container, make_pod, waiting_reason
from support.world import World, a_world
from testbed import containerd, images, places, registry
from testbed.private_runtime import Testbed
from testbed.registry import Registry

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.host.fs.mounts import read_fs_usage
from pykubelet.edges.host.proc.procfs import read_meminfo

pytestmark = pytest.mark.integration

MIB = 1 << 20
DISK, LARGE = 96 * MIB, 12 * MIB
#: What is left when the disk counts as full: a large image needs more, everything else less.
LEFT = 8 * MIB
NO_DISK_SIGNALS = {"memory.available": str(read_meminfo()["MemTotal"] // 1000)}
WITHIN_S = 120.0
#: An extension that has images removed in the reverse order of their names.
BY_NAME = """
from pykubelet.extension import Extension


class ByName(Extension):
    name, api = "by-name", "1.0"

    def rank_images_for_removal(self, images):
        return sorted(images, key=lambda image: image.names, reverse=True)
"""


@dataclass
class SmallDisk:
    """A runtime whose files lie on a file system of their own, and a registry that it trusts."""

    testbed: Testbed
    registry: Registry
    folder: Path

    @property
    def free(self) -> int:
        return read_fs_usage(str(self.testbed.root)).available_bytes

    def fill(self) -> None:
        """Leave `LEFT`."""
        assert os.path.ismount(self.testbed.root)
        with (self.testbed.root / "filler").open("wb") as filler:
            while self.free > LEFT:
                filler.write(b"\0" * min(MIB, self.free - LEFT))
                filler.flush()
                os.fsync(filler.fileno())

    def empty(self) -> None:
        (self.testbed.root / "filler").unlink()

    def push(self, name: str, size: int = LARGE) -> str:
        """An image in the registry, larger than `size` bytes; its name."""
        archive = self.folder / "image.tar"
        files = {**images.busybox_files(), "/large": images.Entry(os.urandom(size))}
        images.build_image(f"localhost/{name}:1", files, images.Config(), archive)
        registry.push(self.registry, archive, f"team/{name}:1")
        return f"{self.registry.address}/team/{name}:1"

    async def has(self, image: str) -> bool:
        client = CriClient(self.testbed.endpoint)
        try:
            return any(image in listed.repo_tags for listed in await client.list_images())
        finally:
            await client.close()

    @asynccontextmanager
    async def world(self, **settings: Any) -> AsyncIterator[World]:
        made: list[Agent] = []

        def make(flags: tuple[str, ...] = (), **given: Any) -> Agent:
            made.append(Agent(self.testbed, self.folder / "agent", given, flags))
            return made[-1]

        try:
            async with a_world(make, self.folder, **settings) as world:
                yield world
        finally:
            for agent in made:
                await agent.clear()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = places.run_folder("small")
    disk, mounted = folder / "disk", folder / containerd.kind()
    mounted.mkdir(parents=True)
    testbed = None
    try:
        with disk.open("wb") as file:
            file.truncate(DISK)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(disk)], check=True)
        subprocess.run(["mount", "-o", "loop", str(disk), str(mounted)], check=True)
        testbed = containerd.up(folder)
        with registry.serving(tmp_path / "registry") as serving:
            containerd.trust_registry(testbed, serving.address, serving.url)
            yield SmallDisk(testbed, serving, tmp_path)
    finally:
        containerd.down(folder, [f"/{testbed.name}"] if testbed is not None else [])


def pulling(name: str, image: str, **spec: Any) -> Json:
    return make_pod(name, make_container(image=image, imagePullPolicy="IfNotPresent"), **spec)


def events(world: World, reason: str, name: str = "") -> list[str]:
    found = (item for item in world.server.store.objects.values() if item.get("kind") == "Event")
    return [
        event["message"]
        for event in found
        if event["reason"] == reason and name in ("", event["involvedObject"]["name"])
    ]


def node_condition(world: World, kind: str) -> str:
    nodes = (item for item in world.server.store.objects.values() if item.get("kind") == "Node")
    conditions = (condition for node in nodes for condition in node["status"].get("conditions", []))
    return next((condition["status"] for condition in conditions if condition["type"] == kind), "")


async def test_a_pull_on_a_full_disk_fails_and_is_tried_again(small_disk: SmallDisk) -> None:
    image = small_disk.push("large")
    async with small_disk.world(evictionHard=NO_DISK_SIGNALS) as world:
        world.run(make_pod("neighbor"))
        await world.wait_ready("neighbor")
        small_disk.fill()
        world.run(pulling("late", image))
        failed = await world.wait("late", "its pull has failed", lambda pod: waiting_reason(pod) == "ErrImagePull")
        message = container_status(failed)["state"]["waiting"]["message"]
        assert message.endswith("no space left on device")
        held = await world.wait("late", "the back-off", lambda pod: waiting_reason(pod) == "ImagePullBackOff")
        message = container_status(held)["state"]["waiting"]["message"]
        assert message.startswith(f'Back-off pulling image "{image}": ErrImagePull: ')
        assert message.endswith("no space left on device")
        expected = {"Error: ErrImagePull", "Error: ImagePullBackOff"}
        await world.agent.wait_for("the Events", lambda: expected <= set(events(world, "Failed", "late")))
        assert events(world, "Pulling", "late")[0] == f'Pulling image "{image}"'
        pulls = set(events(world, "Failed", "late")) - expected  # of CRI-O each names another temporary file
        assert pulls and all(
            pull.startswith(f'Failed to pull image "{image}": ') and "no space left on device" in pull for pull in pulls
        )
        small_disk.empty()
        await world.wait_ready("late", within=WITHIN_S)
        await world.wait_ready("neighbor")
        neighbor = world.pod("neighbor")
        assert neighbor is not None and container_status(neighbor)["restartCount"] == 0


async def test_unused_images_go_before_any_pod_does(small_disk: SmallDisk) -> None:
    used, unused = small_disk.push("used"), small_disk.push("unused")
    settings: dict[str, Any] = {
        "evictionHard": NO_DISK_SIGNALS | {"imagefs.available": str(LEFT + 2 * MIB)},
        "evictionPressureTransitionPeriod": "5s",
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "1s",
    }
    async with small_disk.world(**settings) as world:
        world.run(pulling("stays", used))
        world.run(pulling("goes", unused))
        await world.wait_ready("stays", "goes")
        world.delete("goes")
        await world.wait_gone("goes")
        assert await small_disk.has(unused)
        assert world.agent.stop() == 0
        world.agent.start()  # which looks for images: those that were not there at an earlier look are kept
        world.run(make_pod("later"))
        await world.wait_ready("stays", "later")  # the second cannot be ready from before the start
        small_disk.fill()
        await world.agent.wait_for("DiskPressure", lambda: node_condition(world, "DiskPressure") == "True", WITHIN_S)
        await world.agent.wait_for("the end of DiskPressure", lambda: node_condition(world, "DiskPressure") == "False")
        assert not await small_disk.has(unused) and await small_disk.has(used)
        assert small_disk.free > LEFT + 2 * MIB
        await world.wait_ready("stays")
        assert events(world, "EvictionThresholdMet") and not events(world, "Evicted")


async def test_an_extension_orders_the_images_that_are_removed(small_disk: SmallDisk, tmp_path: Path) -> None:
    client = CriClient(small_disk.testbed.endpoint)
    for name in ("beech", "ash", "cedar"):
        await client.pull_image(pb.ImageSpec(image=small_disk.push(name, MIB)), None)
    await client.close()
    extension = tmp_path / "by_name.py"
    extension.write_text(BY_NAME)
    settings: dict[str, Any] = {
        "evictionHard": NO_DISK_SIGNALS | {"imagefs.available": str(LEFT + 2 * MIB)},
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "1s",
    }
    agent = Agent(small_disk.testbed, tmp_path / "agent", settings, ("--extension", str(extension)))
    try:
        agent.start()
        small_disk.fill()
        await agent.wait_for("the removals", lambda: "/team/ash:1" in removed_images(agent))
        found = re.findall(r"/team/(\w+):1", removed_images(agent))
        assert found == ["cedar", "beech", "ash"]
        assert agent.ask_json("explain", "node")["extensions"][0]["error"] == ""
    finally:
        await agent.clear()


def removed_images(agent: Agent) -> str:
    """The lines of the agent's log about removed images."""
    return "\n".join(line for line in agent.log_text().splitlines() if "image removed" in line)
