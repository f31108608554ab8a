"""Pods that use up the node are evicted, by the kernel's own figures: its memory, its processes, the time that tasks lose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent import Json, condition, container_status, make_container, make_pod
from support.unit import CGROUP_MOUNT, LONG_S, TimeOfChange, UnitAgent, cgroups_below_kubepods, with_flags
from support.world import World, a_world, is_evicted

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
MIB = 1 << 20
#: What is left above the thresholds when a test begins; agent and neighbors need less, the evicted pods more.
SPARE_MEMORY, HOG = 500 * MIB, 700
SPARE_PROCESSES, FORKS = 250, 400
HOG_LIMIT = 1000 * MIB
#: From a crossing to the kill, of which the pod has 1 s to end: seconds are expected, minutes are not.
BOUND_S = 120
STALL = "--eviction-stall=memory.some=20%"


def read_total() -> int:
    line = Path("/proc/meminfo").read_text().splitlines()[0]
    return int(line.split()[1]) * 1024


def read_available() -> int:
    """`memory.available` as the kubelet counts it on cgroup v2: all but the working set of the root group."""
    stat = {name: int(value) for name, value in map(str.split, (CGROUP_MOUNT / "memory.stat").read_text().splitlines())}
    return read_total() - (stat["anon"] + stat["file"] - stat["inactive_file"])


def read_free_pids() -> int:
    """`pid.available`: processes and threads that there may still be."""
    most = min(int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))
    return most - int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def has_ended(memory_limit: int) -> bool:
    """No process is left in the container with this limit."""
    for group in cgroups_below_kubepods():
        try:
            if group.name.startswith("cri-") and (group / "memory.max").read_text().strip() == str(memory_limit):
                return "populated 0" in (group / "cgroup.events").read_text()
        except OSError:  # it is removed meanwhile
            continue
    return True


def sleeper(memory: int = 0, processes: int = 0, **resources: Any) -> Json:
    """A container that has this many MiB, and so many processes besides its own."""
    script = f"for i in $(seq {processes}); do sleep 3600 & done; "
    script += f"dd if=/dev/zero bs={memory}M count=1 2>/dev/null | sleep 3600" if memory else "exec sleep 3600"
    return make_container(script=script, resources=resources)


def check_alive(world: World, *names: str) -> None:
    """These pods were left alone."""
    for name in names:
        pod = world.pod(name)
        assert pod is not None and pod["status"]["phase"] == "Running", name
        assert container_status(pod)["restartCount"] == 0, name


async def test_pods_that_use_up_memory_or_processes_are_evicted(make_unit: MakeUnit, tmp_path: Path) -> None:
    """Of the neighbors one has a higher priority and uses more than it requests, the other is within its request."""
    memory, pids = read_available() - SPARE_MEMORY, read_free_pids() - SPARE_PROCESSES
    settings: Json = {
        "evictionHard": {"memory.available": str(memory), "pid.available": str(pids)},
        "evictionPressureTransitionPeriod": "10s",
    }
    async with a_world(with_flags(make_unit), tmp_path, **settings) as world:
        world.run(make_pod("favored", sleeper(memory=40, processes=20), priority=1000, terminationGracePeriodSeconds=0))
        modest = sleeper(requests={"memory": "50Mi"})
        world.run(make_pod("modest", modest, terminationGracePeriodSeconds=0))
        await world.wait_ready("favored", "modest", within=LONG_S)

        hog = sleeper(memory=HOG, limits={"memory": str(HOG_LIMIT)}, requests={"memory": "10Mi", "cpu": "500m"})
        message, _ = await evict(world, "hog", hog, lambda: read_available() < memory, "MemoryPressure")
        assert message.startswith("The node was low on resource: memory. Threshold quantity: ")
        assert ", request is 10Mi, has larger consumption of memory. " in message
        check_alive(world, "favored", "modest")

        forks = sleeper(processes=FORKS, limits={"memory": str(HOG_LIMIT)}, requests={"memory": "10Mi", "cpu": "500m"})
        message, events = await evict(world, "forks", forks, lambda: read_free_pids() < pids, "PIDPressure")
        assert message.startswith(f"The node was low on resource: pids. Threshold quantity: {pids}, available: ")
        assert events[-1]["metadata"]["annotations"]["starved_resource"] == "pids"
        check_alive(world, "favored", "modest")
        for name in ("favored", "modest", "hog", "forks"):
            world.delete(name, 0)
        await world.wait_gone("favored", "modest", "hog", "forks", within=LONG_S)


async def evict(
    world: World, name: str, container: Json, is_crossed: Callable[[], bool], pressure: str
) -> tuple[str, list[Json]]:
    """Run a pod that goes too far, until it is evicted and the node has recovered; its message and Events.

    Prints how long it took from the crossing of the threshold to the end of all processes of the pod.
    """
    with TimeOfChange(is_crossed, 0.05) as crossed:
        world.run(make_pod(name, container))
        await world.agent.wait_for(f"{name} takes too much", lambda: crossed.at, LONG_S)
        with TimeOfChange(lambda: has_ended(HOG_LIMIT), 0.05) as ended:
            await world.agent.wait_for(pressure, lambda: world.node_condition(pressure) == "True", LONG_S)
            pod = await world.wait(name, "evicted", is_evicted, within=LONG_S)
    took = ended.at - crossed.at
    print(f"{name}: {took:.1f} s from the crossing to the end of its processes")
    assert took < BOUND_S
    assert condition(pod, "DisruptionTarget") == "True"
    await world.agent.wait_for(f"no {pressure}", lambda: world.node_condition(pressure) == "False", LONG_S)
    message = str(pod["status"]["message"])
    events = [event for event in world.events("Evicted") if event["involvedObject"]["name"] == name]
    assert [event["message"] for event in events] == [message]
    return message, events


async def test_a_pod_that_stalls_the_node_is_named_and_then_evicted(make_unit: MakeUnit, tmp_path: Path) -> None:
    """Its container wants more than `memory.high` and has no swap: the kernel makes it wait nearly all of the time.

    With `--eviction-dry-run` it is named and lives; without, it is evicted.
    """
    settings: Json = {"featureGates": {"MemoryQoS": True}, "memoryThrottlingFactor": 0.1}
    settings |= {"evictionPressureTransitionPeriod": "10s"}
    async with a_world(with_flags(make_unit, STALL, "--eviction-dry-run"), tmp_path, **settings) as world:
        agent = world.agent
        assert isinstance(agent, UnitAgent)
        size: Json = {"requests": {"cpu": "500m", "memory": "32Mi"}, "limits": {"memory": "512Mi"}}
        world.run(make_pod("calm", sleeper(**size), terminationGracePeriodSeconds=0))
        await world.wait_ready("calm", within=LONG_S)
        stuck = make_container(script="sleep 5; tail /dev/zero", resources=size)
        world.run(make_pod("stuck", stuck, terminationGracePeriodSeconds=0))

        async def named() -> Json:
            found: Json = (await asyncio.to_thread(agent.ask_json, "explain", "node"))["eviction"]
            return found if found["would_evict"] else {}

        shown = await agent.wait_for("the stall shows, and the pod is named", named, LONG_S)
        assert [would["pod"] for would in shown["would_evict"]] == ["default/stuck"]
        (signal,) = [signal for signal in shown["signals"] if signal["signal"] == "memory.stall.some"]
        print(f"{100 - signal['available'] / 100:.0f} % of the time some task was stalled on memory")
        assert signal["available"] < signal["threshold"] and signal["met_since"] is not None
        text = (await asyncio.to_thread(agent.ask, "explain", "node")).stdout
        assert "memory.stall.some" in text and "Eviction (dry run: no pod is evicted)" in text
        check_alive(world, "calm", "stuck")
        assert world.node_condition("MemoryPressure") == "True"

        await asyncio.to_thread(agent.stop)
        agent.flags = tuple(flag for flag in agent.flags if flag != "--eviction-dry-run")
        await asyncio.to_thread(agent.start)
        pod = await world.wait("stuck", "evicted", is_evicted, within=LONG_S)
        message = pod["status"]["message"]
        assert message.startswith("The node was low on resource: memory. Some tasks were stalled ")
        assert message.endswith("% of the last 10s, threshold: 20%. ")
        assert condition(pod, "DisruptionTarget") == "True"
        await agent.wait_for("no pressure", lambda: world.node_condition("MemoryPressure") == "False", LONG_S)
        check_alive(world, "calm")
        for name in ("calm", "stuck"):
            world.delete(name, 0)
        await world.wait_gone("calm", "stuck", within=LONG_S)
