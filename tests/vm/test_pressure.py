"""What only this machine has: PSI in the Summary API, swap limits that hold, and OOM kills of whole containers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Json, container_status, make_container, make_pod
from support.unit import (
    LONG_S,
    TimeOfChange,
    UnitAgent,
    cgroups_below_kubepods,
    container_group,
    read_events,
    with_flags,
)
from support.world import a_world

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
MIB = 1 << 20


def stats_of(summary: Json, pod: str) -> Json:
    """The Summary API's entry of a pod; an empty one before there is any."""
    found: Json = next((p for p in summary.get("pods", []) if p["podRef"]["name"].startswith(pod)), {})
    return found


def knows_no_swap(folder: Path) -> bool:
    """Whether this kernel mounts a tmpfs with `noswap`."""
    target = folder / "trial"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "noswap", "tmpfs", str(target)]
    if subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode != 0:
        return False
    subprocess.run(["umount", str(target)], check=True)
    return True


def kernel_log() -> str:
    return subprocess.run(["dmesg"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


async def test_pressure_shows_in_the_summary(make_unit: MakeUnit) -> None:
    """Four processes that want a CPU each and get one together wait most of the time."""
    agent = make_unit().start()
    loop = "while :; do :; done"
    size = {"cpu": "1", "memory": "32Mi"}  # emulated, runc needs minutes with less
    busy = make_container(script=f"{loop} & {loop} & {loop} & {loop}", resources={"limits": size})
    agent.put(make_pod("busy", busy, terminationGracePeriodSeconds=0))
    await agent.wait_running("busy", within=LONG_S)

    def waits() -> Json:
        entry = stats_of(agent.summary(), "busy")
        some: Json = entry.get("cpu", {}).get("psi", {}).get("some", {})
        return some if some.get("avg10", 0) > 10 else {}

    some = await agent.wait_for("CPU pressure of the pod", waits, LONG_S)
    assert some["total"] > 0
    node = agent.summary()["node"]
    for resource in ("cpu", "memory", "io"):
        assert set(node[resource]["psi"]) == {"some", "full"}
    await agent.remove_all(LONG_S)
    assert agent.stop() == 0


async def test_an_oom_kill_ends_the_whole_container(make_unit: MakeUnit) -> None:
    """The shell is small and its child is large: with `memory.oom.group` all processes go, and the container is OOMKilled.

    How long the status took is printed (`pytest -rP`), not judged.
    """
    agent = make_unit().start()
    script = "sleep 3600 & sleep 5; tail /dev/zero; while :; do sleep 1; done"
    size = {"limits": {"cpu": "1", "memory": "48Mi"}}
    agent.put(make_pod("greedy", make_container(script=script, resources=size), restartPolicy="Never"))
    (container,) = (await agent.wait_runtime("greedy runs", lambda view: view.running, LONG_S)).running
    group = container_group(container.id)
    assert (group / "memory.oom.group").read_text().strip() == "1"

    def has_failed() -> bool:
        pod = agent.pods().get("greedy", {})
        return bool(pod.get("status", {}).get("phase") == "Failed")

    with TimeOfChange(has_failed, 0.2) as reported:
        pod = await agent.wait_phase("greedy", "Failed", within=LONG_S)
    ended = container_status(pod)["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    killed = await agent.finished_at(container.id)
    print(f"OOMKilled was reported {reported.at - killed:.1f} s after the end of the container")
    assert "are going to be killed due to memory.oom.group set" in kernel_log()
    assert not [
        folder
        for folder in cgroups_below_kubepods()
        if folder.name == group.name and (folder / "cgroup.procs").read_text()
    ]
    await agent.remove_all(LONG_S)
    assert agent.stop() == 0


async def test_without_swap_and_without_oom_groups(make_unit: MakeUnit, tmp_path: Path) -> None:
    """`singleProcessOOMKill: true`: only the large child is killed, and its container runs on. NoSwap: no pod has any swap."""
    size = {"cpu": "1", "memory": "48Mi"}
    resources: dict[str, Json] = {
        "guaranteed": {"limits": size},
        "burstable": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": size},
        "besteffort": {},
    }
    script = "sleep 5; tail /dev/zero; touch /tmp/survived; while :; do sleep 1; done"
    survives = {"exec": {"command": ["test", "-e", "/tmp/survived"]}, "periodSeconds": 5, "timeoutSeconds": 60}
    settings: Json = {"singleProcessOOMKill": True, "memorySwap": {"swapBehavior": "NoSwap"}}
    async with a_world(with_flags(make_unit), tmp_path, **settings) as world:
        for name, given in resources.items():
            more: Json = {"script": script, "readinessProbe": survives} if name == "burstable" else {}
            world.run(make_pod(name, make_container(resources=given, **more), terminationGracePeriodSeconds=0))
        await world.wait_ready(*resources, within=LONG_S)
        view = await world.agent.look()
        for name in resources:
            (container,) = view.of(name).running
            group = container_group(container.id)
            found = [(group / file).read_text().strip() for file in ("memory.oom.group", "memory.swap.max")]
            assert found == ["0", "0"], name
            events = read_events(group / "memory.events")
            assert (events["oom_kill"] > 0, events.get("oom_group_kill", 0)) == (name == "burstable", 0)
            pod = world.pod(name)
            assert pod is not None and container_status(pod)["restartCount"] == 0
            world.delete(name, 0)
        await world.wait_gone(*resources, within=LONG_S)


async def test_a_burstable_container_swaps_within_its_share(make_unit: MakeUnit, tmp_path: Path) -> None:
    """It needs more than its memory limit and less than that with its swap: it lives, and its swap use is reported."""
    script = "head -c 60000000 /dev/zero | tail -c 60000000 | sleep 3600"
    size = {"requests": {"cpu": "50m", "memory": "120Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}}
    settings: Json = {"memorySwap": {"swapBehavior": "LimitedSwap"}}
    async with a_world(with_flags(make_unit), tmp_path, **settings) as world:
        agent = world.agent
        assert isinstance(agent, UnitAgent)
        container = make_container(
            script=script, resources=size, volumeMounts=[{"name": "cache", "mountPath": "/cache"}]
        )
        volumes = [{"name": "cache", "emptyDir": {"medium": "Memory"}}]
        world.run(make_pod("swapper", container, volumes=volumes, terminationGracePeriodSeconds=0))
        await world.wait_ready("swapper", within=LONG_S)
        (running,) = (await agent.look()).of("swapper").running
        scope = container_group(running.id)
        share = int((scope / "memory.swap.max").read_text())
        assert 20 * MIB < share < 22 * MIB  # 120 MiB of 6 GiB, of 1 GiB of swap
        # the kernel's own means: what it takes from the group goes to swap, as far as that is allowed
        (scope / "memory.high").write_text(str(48 * MIB))

        def swaps() -> Json:
            (container,) = stats_of(agent.summary(), "swapper").get("containers") or [{}]
            swap: Json = container.get("swap", {})
            return swap if swap.get("swapUsageBytes", 0) > MIB else {}

        used = await agent.wait_for("swap in use", swaps, LONG_S)
        assert used["swapUsageBytes"] + used["swapAvailableBytes"] <= share
        assert agent.summary()["node"]["swap"]["swapUsageBytes"] > 0
        # in memory only, where the kernel can; else an Event reports that it cannot
        mounts = map(str.split, Path("/proc/mounts").read_text().splitlines())
        (options,) = {mount[3] for mount in mounts if mount[1].endswith("~empty-dir/cache")}
        warned = bool(world.events("PossibleMemoryBackedVolumesOnDisk"))
        print(f"the kernel {'does not know' if warned else 'knows'} noswap: {options}")
        assert knows_no_swap(tmp_path) is ("noswap" in options.split(",")) is not warned
        world.delete("swapper", 0)
        await world.wait_gone("swapper", within=LONG_S)
