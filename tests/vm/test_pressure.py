"""What only this machine has: PSI in the Summary API, swap limits that hold, and an OOM kill that ends a whole container."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent import Json, container_status, make_container, make_pod
from support.unit import CGROUP_MOUNT, LONG_S, UnitAgent
from support.world import a_world

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
MIB = 1 << 20


def stats_of(summary: Json, pod: str) -> Json:
    """The Summary API's entry of a pod; an empty one before there is any."""
    found: Json = next((p for p in summary.get("pods", []) if p["podRef"]["name"].startswith(pod)), {})
    return found


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
    """The shell is small and its child is large: with `memory.oom.group` both go, and the container is OOMKilled."""
    agent = make_unit().start()
    script = "sleep 5; tail /dev/zero; while :; do sleep 1; done"
    greedy = make_container(script=script, resources={"limits": {"cpu": "1", "memory": "48Mi"}})
    agent.put(make_pod("greedy", greedy, restartPolicy="Never"))
    pod = await agent.wait_phase("greedy", "Failed", within=LONG_S)
    ended = container_status(pod)["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    await agent.remove_all(LONG_S)
    assert agent.stop() == 0


async def test_a_burstable_container_swaps_within_its_share(make_unit: MakeUnit, tmp_path: Path) -> None:
    """It needs more than its memory limit and less than that with its swap: it lives, and its swap use is told."""

    def make(flags: tuple[str, ...], **settings: Any) -> UnitAgent:
        agent = make_unit(**settings)
        agent.flags = flags
        return agent

    script = "head -c 60000000 /dev/zero | tail -c 60000000 | sleep 3600"
    size = {"requests": {"cpu": "50m", "memory": "120Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}}
    async with a_world(make, tmp_path, memorySwap={"swapBehavior": "LimitedSwap"}) as world:
        agent = world.agent
        assert isinstance(agent, UnitAgent)
        world.run(make_pod("swapper", make_container(script=script, resources=size), terminationGracePeriodSeconds=0))
        await world.wait_ready("swapper", within=LONG_S)
        (scope,) = [
            path
            for path in (CGROUP_MOUNT / "kubepods.slice").rglob("cri-containerd-*.scope")
            if (path / "memory.max").read_text().strip() == str(128 * MIB)
        ]
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
        world.delete("swapper", 0)
        await world.wait_gone("swapper", within=LONG_S)
