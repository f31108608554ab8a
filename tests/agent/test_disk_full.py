"""The disk below the root directory is full or read-only: pods wait and say why, the agent lives, and all goes on with space."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import Agent, Json, is_ready, make_container, make_pod, sweep
from support.api_server import FakeApiServer
from support.world import World, kubeconfig

pytestmark = pytest.mark.integration


def needs_disk(name: str) -> Json:
    container = make_container(volumeMounts=[{"name": "data", "mountPath": "/data"}])
    return make_pod(name, container, volumes=[{"name": "data", "emptyDir": {}}])


@pytest.fixture
def small_disk(make_agent: Callable[..., Agent]) -> Iterator[Agent]:
    """An agent, not started, whose root directory is a tmpfs of 4 MiB and few inodes."""
    agent = make_agent()
    agent.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=1000", "tmpfs", str(agent.root)], check=True)
    yield agent
    agent.kill9()
    unmount(agent.root)


def fill(root: Path) -> list[Path]:
    """Use up bytes and inodes; the files that hold them."""
    files = []
    with open(root / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"\0" * 4096)
        except OSError:
            files.append(root / "filler")
    try:
        for number in range(5000):
            os.close(os.open(root / f"inode-{number}", os.O_CREAT | os.O_WRONLY))
            files.append(root / f"inode-{number}")
    except OSError:
        return files
    raise AssertionError("the file system is not full")


async def test_pods_wait_for_space(small_disk: Agent) -> None:
    agent = small_disk.start()
    agent.put(needs_disk("early"))
    await agent.wait_running("early")
    files = fill(agent.root)
    agent.put(needs_disk("late"))

    def reported() -> bool:
        waits = [w for w in agent.explain("late")["waits"] if "no space left on device" in w["detail"].lower()]
        assert all(wait["owner"] and wait["next_step"] for wait in waits)
        return bool(waits)

    await agent.wait_for("the pod states what it waits for", reported)
    assert agent.get("/healthz", agent.health_port) == (200, "ok")
    assert is_ready(agent.pods()["early"])

    agent.kill9()
    agent.start()
    await agent.wait_running("early")
    await agent.wait_for("reported again after a start on a full disk", reported)
    agent.remove("early")
    await agent.wait_gone("early")

    for file in files:
        file.unlink()
    await agent.wait_running("late")
    await agent.remove_all()
    assert agent.stop() == 0


async def test_pods_wait_for_a_disk_that_can_be_written(small_disk: Agent) -> None:
    agent = small_disk.start()
    agent.put(needs_disk("early"))
    await agent.wait_running("early")
    remount(agent.root, "ro")
    agent.put(needs_disk("late"))

    def reported() -> bool:
        waits = [w for w in agent.explain("late")["waits"] if "read-only file system" in w["detail"].lower()]
        assert all(wait["owner"] and wait["next_step"] for wait in waits)
        return bool(waits)

    await agent.wait_for("the pod states what it waits for", reported)
    assert "ead-only file system" in agent.ask("explain", "late-node").stdout
    assert agent.get("/healthz", agent.health_port) == (200, "ok")
    assert is_ready(agent.pods()["early"])
    remount(agent.root, "rw")
    await agent.wait_running("late")
    await agent.remove_all()
    assert agent.stop() == 0


def remount(root: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(root)], check=True)


# A disk that pods fill

DISK_MIB = 48


@pytest.fixture
async def world_on_disk(make_agent: Callable[..., Agent], tmp_path: Path) -> AsyncIterator[Callable[..., World]]:
    """Makes one world whose agent, not started, has its directories of pods and logs on an ext4 file system of 48 MiB."""
    mounted: list[Agent] = []
    async with FakeApiServer() as server:

        def make(**settings: Any) -> World:
            agent = make_agent(("--kubeconfig", str(kubeconfig(server, tmp_path / "kubeconfig"))), **settings)
            image = tmp_path / "disk"
            with image.open("wb") as file:
                file.truncate(DISK_MIB << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
            agent.root.mkdir()
            subprocess.run(["mount", "-o", "loop", str(image), str(agent.root)], check=True)
            mounted.append(agent)
            agent.logs = agent.root / "pod-logs"
            config = json.loads(agent.config_file.read_text()) | {"podLogsDir": str(agent.logs)}
            agent.config_file.write_text(json.dumps(config))
            return World(server, agent)

        yield make
        for agent in mounted:
            agent.kill9()
            await sweep(agent.testbed)
            unmount(agent.root)


def unmount(root: Path) -> None:
    subprocess.run(["umount", "-R", "-l", str(root)], check=True)


def writer(name: str) -> Json:
    """Writes to its volume until nothing is left, and again whenever there is some."""
    script = "while :; do dd if=/dev/zero of=/data/file$((n += 1)) bs=64k 2>/dev/null; sleep 0.2; done"
    volumes = [{"name": "data", "emptyDir": {}}]
    mounts = [{"name": "data", "mountPath": "/data"}]
    return make_pod(name, make_container(script=script, volumeMounts=mounts), volumes=volumes)


def logger(name: str) -> Json:
    """Logs all the time."""
    return make_pod(
        name, make_container(script="while :; do head -c 30000 /dev/zero | tr '\\0' x; echo; sleep 0.1; done")
    )


def free_bytes(root: Path) -> int:
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize


def container_id(world: World, name: str) -> str:
    pod = world.pod(name)
    assert pod is not None
    status = pod["status"]["containerStatuses"][0]
    assert status["restartCount"] == 0
    return str(status["containerID"])


async def test_pods_that_write_and_log_fill_the_disk_to_the_last_byte(world_on_disk: Callable[..., World]) -> None:
    world = world_on_disk(evictionHard={"nodefs.available": "0%"}, containerLogMaxSize="1Gi")
    agent = world.agent.start()
    world.run(needs_disk("early"))
    await world.wait_ready("early")
    before = container_id(world, "early")
    world.run(logger("logger"))
    world.run(writer("writer"))
    await agent.wait_for("the disk is full", lambda: free_bytes(agent.root) == 0)
    world.run(needs_disk("late"))

    async def reported() -> bool:
        pods = (await asyncio.to_thread(agent.ask_json, "pods"))["pods"]
        details = [wait["detail"].lower() for pod in pods if pod["name"] == "late" for wait in pod["waits"]]
        return any("no space left on device" in detail for detail in details)

    await agent.wait_for("the pod reports what it waits for", reported)
    assert await asyncio.to_thread(agent.get, "/healthz", agent.health_port) == (200, "ok")
    agent.kill9()
    agent.start()
    await agent.wait_for("reported again after a start on a full disk", reported)
    await world.wait_ready("early", "writer", "logger")
    assert container_id(world, "early") == before, "a restart on a full disk loses no state"
    for name in ("writer", "logger"):
        world.delete(name)
    await world.wait_gone("writer", "logger")
    await world.wait_ready("late", "early")
    assert container_id(world, "early") == before
    for name in ("early", "late"):
        world.delete(name)
    await world.wait_gone("early", "late")
    await world.wait_nothing_left()
    assert agent.stop() == 0


async def test_a_full_disk_recovers_by_eviction(world_on_disk: Callable[..., World]) -> None:
    """Nothing but the agent frees space; images of other tests stay."""
    world = world_on_disk(
        evictionHard={"nodefs.available": "25%"}, evictionPressureTransitionPeriod="3s", imageMinimumGCAge="10h"
    )
    agent = world.agent.start()
    world.run(needs_disk("early"))
    await world.wait_ready("early")
    before = container_id(world, "early")
    world.run(writer("writer"))
    ended = await world.wait("writer", "evicted", lambda pod: pod["status"].get("phase") == "Failed", 90)
    assert ended["status"]["reason"] == "Evicted"
    assert ended["status"]["message"].startswith("The node was low on resource: ephemeral-storage. ")
    await agent.wait_for("space again", lambda: free_bytes(agent.root) > (DISK_MIB << 20) // 4)

    def pressed() -> bool:
        nodes = (item for item in world.server.store.objects.values() if item.get("kind") == "Node")
        return any(
            c["type"] == "DiskPressure" and c["status"] == "True" for n in nodes for c in n["status"]["conditions"]
        )

    await agent.wait_for("no DiskPressure", lambda: not pressed(), 60)
    world.run(needs_disk("late"))
    await world.wait_ready("late", "early")
    assert container_id(world, "early") == before
