"""Pods that use up a resource of the node are evicted, and their neighbors stay: real containers, within limits of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import MakeAgent
from support.agent import Agent, Json, NotYet, condition, make_container, make_pod
from support.world import World, a_world, is_evicted
from testbed import host, places

from pykubelet.base.api.quantity import parse
from pykubelet.edges.host.proc.procfs import read_meminfo, read_pid_limit, read_process_count

MI = 1 << 20
POD_MEMORY = 700 * MI
#: Pods are evicted when less than this is left of what all pods may use.
SPARE = "300Mi"
HOG = "dd if=/dev/zero bs=500M count=1 2>/dev/null | sleep 3600"
TRANSITION = "5s"
#: What one pod may have, and by how much the processes of the machine may grow. The rest is for other programs' coming and going.
POD_PIDS, SPARE_PIDS = 1500, 900
FEW_PIDS = ("True", "KubeletHasInsufficientPID", "kubelet has insufficient PID available")
ENOUGH_PIDS = ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available")
EVICTED_WITHIN_S = 120.0

pytestmark = pytest.mark.integration


def whole_condition(world: World, kind: str) -> tuple[str, ...]:
    """Status, reason and message."""
    nodes = (item for item in world.server.store.objects.values() if item.get("kind") == "Node")
    shown = (entry for node in nodes for entry in node["status"].get("conditions", []) if entry["type"] == kind)
    return next(((entry["status"], entry["reason"], entry["message"]) for entry in shown), ())


@pytest.fixture
async def memory_world(make_agent: MakeAgent, tmp_path: Path) -> AsyncIterator[World]:
    """All pods together may use `POD_MEMORY`."""
    reserved = read_meminfo()["MemTotal"] - POD_MEMORY
    settings: dict[str, Any] = {
        "systemReserved": {"memory": str(reserved)},
        "evictionHard": {"memory.available": SPARE},
        "evictionPressureTransitionPeriod": TRANSITION,
    }
    async with a_world(make_agent, tmp_path, **settings) as world:
        yield world


async def test_a_pod_that_takes_the_memory_of_all_is_evicted(memory_world: World) -> None:
    world = memory_world
    world.run(make_pod("good", make_container(resources={"requests": {"memory": "50Mi"}})))
    world.run(make_pod("idle", priority=1000))
    await world.wait_ready("good", "idle")
    shown = await asyncio.to_thread(world.agent.ask, "explain", "node")
    assert "allocatableMemory.available" in shown.stdout
    world.run(make_pod("hog", make_container(script=HOG)))
    hog = await world.wait("hog", "evicted", is_evicted)
    message = hog["status"]["message"]
    assert message.startswith("The node was low on resource: memory. Threshold quantity: 300Mi, available: ")
    assert ", request is 0, has larger consumption of memory. " in message
    assert condition(hog, "DisruptionTarget") == "True"
    await world.agent.wait_for("MemoryPressure", lambda: world.node_condition("MemoryPressure") == "True")
    world.run(make_pod("late"))
    late = await world.wait("late", "refused", is_evicted)
    assert late["status"]["message"] == "Pod was rejected: The node had condition: [MemoryPressure]. "
    await world.agent.wait_for("no MemoryPressure", lambda: world.node_condition("MemoryPressure") == "False")
    world.run(make_pod("later"))
    await world.wait_ready("later", "good", "idle")
    [event] = [event for event in world.events("Evicted") if event["involvedObject"]["name"] == "hog"]
    assert event["message"] == message
    assert event["metadata"]["annotations"]["starved_resource"] == "memory"
    assert world.events("EvictionThresholdMet")[0]["message"] == "Attempting to reclaim memory"
    assert all(status["restartCount"] == 0 for name in ("good", "idle") for status in container_statuses(world, name))


def container_statuses(world: World, name: str) -> list[Json]:
    pod = world.pod(name)
    assert pod is not None
    return list(pod["status"]["containerStatuses"])


@pytest.fixture
async def crowded_world(make_agent: MakeAgent, tmp_path: Path) -> AsyncIterator[World]:
    """All processes of the machine may grow by `SPARE_PIDS`; its pods may have `POD_PIDS` each. Only one run of the tests does this at a
    time, because the machine's processes are those of all."""
    with (places.home() / "processes.lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        settings: dict[str, Any] = {
            "podPidsLimit": POD_PIDS,
            "evictionHard": {"pid.available": str(pid_threshold())},
            "evictionPressureTransitionPeriod": "20s",
        }
        async with a_world(make_agent, tmp_path, **settings) as world:
            yield world


def pid_threshold() -> int:
    return read_pid_limit() - read_process_count() - SPARE_PIDS


def pids_of_pods(agent: Agent) -> int:
    folders = [Path(f"/sys/fs/cgroup{controller}{agent.cgroup}") for controller in ("/pids", "")]
    return sum(int(host.read_control(folder / "pids.current") or 0) for folder in folders)


@contextlib.contextmanager
def but_for_other_programs(agent: Agent) -> Iterator[None]:
    """Skip in place of a failure while other programs alone keep the machine below the threshold: the signal is the machine's."""
    try:
        yield
    except (NotYet, AssertionError):
        threshold = int(agent.settings["evictionHard"]["pid.available"])
        if read_pid_limit() - read_process_count() + pids_of_pods(agent) < threshold:
            pytest.skip(f"other programs of this machine have started more than {SPARE_PIDS} processes meanwhile")
        raise


async def test_a_pod_that_takes_the_process_ids_of_all_is_evicted(crowded_world: World) -> None:
    with but_for_other_programs(crowded_world.agent):
        await evicts_the_pod_that_forks(crowded_world)


async def evicts_the_pod_that_forks(world: World) -> None:
    limits = {"limits": {"memory": "2Gi"}}
    world.run(make_pod("good", make_container(script=f"{forks(3)}; wait")))
    await world.wait_ready("good")
    await world.agent.wait_for("PIDPressure", lambda: whole_condition(world, "PIDPressure") == ENOUGH_PIDS)
    world.run(make_pod("forker", make_container(script=f"{forks(POD_PIDS - 20)}; wait", resources=limits)))
    forker = await world.wait("forker", "evicted", is_evicted, within=EVICTED_WITHIN_S)
    words = r"The node was low on resource: pids\. Threshold quantity: (\w+), available: (\w+)\. "
    found = re.fullmatch(words, forker["status"]["message"])
    assert found is not None and parse(found[2]).nano < parse(found[1]).nano
    assert condition(forker, "DisruptionTarget") == "True"
    await world.agent.wait_for("PIDPressure", lambda: whole_condition(world, "PIDPressure") == FEW_PIDS)
    world.run(make_pod("late"))
    late = await world.wait("late", "refused", is_evicted)
    assert late["status"]["message"] == "Pod was rejected: The node had condition: [PIDPressure]. "
    await world.agent.wait_for("no PIDPressure", lambda: whole_condition(world, "PIDPressure") == ENOUGH_PIDS)
    assert world.events("NodeHasInsufficientPID")
    world.run(make_pod("later"))
    await world.wait_ready("later", "good")
    [event] = [event for event in world.events("Evicted") if event["involvedObject"]["name"] == "forker"]
    assert world.events("EvictionThresholdMet")[0]["message"] == "Attempting to reclaim pids"
    assert event["message"] == forker["status"]["message"]
    assert event["metadata"]["annotations"]["starved_resource"] == "pids"
    assert event["metadata"]["annotations"]["offending_containers"] == ""
    assert [status["restartCount"] for status in container_statuses(world, "good")] == [0]


def forks(count: int) -> str:
    return f"i=0; while [ $i -lt {count} ]; do sleep 3600 & i=$((i+1)); done"


def unmount(root: Path) -> None:
    subprocess.run(["umount", "-R", "-l", str(root)], check=True)


@pytest.fixture
async def small_disk(make_agent: MakeAgent, tmp_path: Path) -> AsyncIterator[World]:
    """The root directory of the agent is a file system of 64 MiB and a thousand inodes."""
    settings: dict[str, Any] = {
        "evictionHard": {"nodefs.available": "20Mi", "nodefs.inodesFree": "300"},
        "evictionPressureTransitionPeriod": TRANSITION,
    }
    mounted: list[Path] = []

    def make(*args: Any, **more: Any) -> Agent:
        agent = make_agent(*args, **more)
        agent.root.mkdir()
        options = "size=64m,nr_inodes=1000"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(agent.root)], check=True)
        mounted.append(agent.root)
        return agent

    try:
        async with a_world(make, tmp_path, **settings) as world:
            yield world
    finally:
        for root in mounted:
            unmount(root)


@pytest.mark.parametrize(
    ("script", "resource"),
    [
        ("dd if=/dev/zero of=/data/file bs=1M count=50 2>/dev/null", "ephemeral-storage"),
        ("for i in $(seq 800); do : > /data/$i; done", "inodes"),
    ],
)
async def test_a_pod_that_fills_the_disk_is_evicted(small_disk: World, script: str, resource: str) -> None:
    world = small_disk
    world.run(make_pod("good", make_container(resources={"requests": {"memory": "50Mi"}})))
    await world.wait_ready("good")
    mounts = [{"name": "data", "mountPath": "/data"}]
    filler = make_container(script=f"{script}; sleep 3600", volumeMounts=mounts)
    world.run(make_pod("filler", filler, volumes=[{"name": "data", "emptyDir": {}}]))
    pod = await world.wait("filler", "evicted", is_evicted)
    assert pod["status"]["message"].startswith(f"The node was low on resource: {resource}. ")
    await world.agent.wait_for("the Event of DiskPressure", lambda: world.events("NodeHasDiskPressure"))
    await world.agent.wait_for("no DiskPressure", lambda: world.node_condition("DiskPressure") == "False")
    await world.wait_ready("good")
    assert [status["restartCount"] for status in container_statuses(world, "good")] == [0]
