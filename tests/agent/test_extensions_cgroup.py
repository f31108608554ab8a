"""Values of cgroups that an extension changes, on real containers: as the kernel has them, and who does not write them back."""

from __future__ import annotations

import asyncio
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import MakeAgent
from agent.test_extensions import extensions, write
from support.agent import Agent, Json, container_status, make_container, make_pod
from support.sizes import IN_PROGRESS, MIB, instance_of, kernel_limits, reported, size
from support.world import PODS, World, a_world
from testbed import host

pytestmark = pytest.mark.integration

DOUBLE = """
from dataclasses import dataclass

from pykubelet.extension import Extension


@dataclass(frozen=True)
class Settings:
    times: int = 2
    wrong: bool = False


class Double(Extension):
    name, api, Settings = "double", "1.0", Settings

    def cgroup(self, pod, container, values):
        more = {"memory.max": str(int(values["memory.max"]) * self.settings.times)}
        if self.settings.wrong:
            more["cgroup.freeze"] = "1"
        return more if container else {**more, "pids.max": "77"}
"""


def calls(agent: Agent) -> int:
    _, text = agent.get("/metrics", agent.read_only_port)
    found = re.search(r'^pykubelet_extension_calls_total{extension="double",point="cgroup"} (\d+)', text, re.MULTILINE)
    return int(found[1]) if found else 0


def pids(agent: Agent, pod: Json) -> set[str]:
    own = [folder for folder in agent.pod_cgroups() if pod["metadata"]["uid"] in folder.name]
    return {host.read_control(folder / "pids.max").strip() for folder in own} - {""}


def has_limits(agent: Agent, pod: Json, memory_mib: int) -> bool:
    """The pod and its container."""
    found = {kernel_limits(agent, pod), kernel_limits(agent, pod, instance_of(pod))}
    return {memory for _, memory in found} == {memory_mib * MIB}


async def limits_become(agent: Agent, pod: Json, memory_mib: int) -> None:
    await agent.wait_for(f"{memory_mib} MiB", partial(has_limits, agent, pod, memory_mib))


def is_resized(pod: Json) -> bool:
    given = container_status(pod)["allocatedResources"]
    return bool(given == size("400m", "96Mi")["requests"]) and not reported(pod, IN_PROGRESS)


async def the_pod(world: World) -> Json:
    await world.wait_ready("web")
    pod = world.pod("web")
    assert pod is not None
    return pod


async def test_values_are_those_of_the_extension_and_stay(make_agent: MakeAgent, tmp_path: Path) -> None:
    settings = write(tmp_path, "times: 2\n", "double.yaml")
    flags = (
        "--extension",
        f"{write(tmp_path, DOUBLE, 'double.py')}={settings}",
        *("--extension-cpu-time", "100ms"),  # an emulated CPU that waits for a real one counts that time as used
        *("--emulated-version", "1.36", "--global-housekeeping-interval", "1s"),  # 1.37 has no such flag
    )

    def make(more: tuple[str, ...], **fields: Any) -> Agent:
        return make_agent(flags=(*more, *flags), **fields)

    async with a_world(make, tmp_path) as world:
        agent = world.agent
        world.run(make_pod("web", make_container(resources=size("400m", "64Mi"))))
        pod = await the_pod(world)
        await limits_become(agent, pod, 128)
        assert pids(agent, pod) == {"77"} and calls(agent) == 2  # the pod, and its container
        assert extensions(agent)[0]["error"] == ""
        await asyncio.sleep(2.5)  # some periodic updates
        assert has_limits(agent, pod, 128) and calls(agent) == 2
        assert container_status(pod)["allocatedResources"] == {"cpu": "400m", "memory": "64Mi"}

        def resized(found: Json) -> None:
            found["spec"]["containers"][0]["resources"] = size("400m", "96Mi")

        world.server.update(f"{PODS}/web/resize", resized)
        await limits_become(agent, pod, 192)
        resized_pod = await world.wait("web", "the end of the resize", is_resized)  # else it goes on after the restart
        assert instance_of(resized_pod) == instance_of(pod) and calls(agent) == 4

        agent.stop()
        (tmp_path / "double.yaml").write_text("times: 3\n")
        agent.start()  # another answer is written to what runs
        await limits_become(agent, pod, 288)
        assert pids(agent, pod) == {"77"} and calls(agent) == 2
        pod = await the_pod(world)
        assert container_status(pod)["restartCount"] == 0

        agent.stop()
        (tmp_path / "double.yaml").write_text("times: 3\nwrong: true\n")
        agent.start()  # a wrong answer: the agent's own values
        await limits_become(agent, pod, 96)
        assert "cgroup: 'cgroup.freeze' cannot be changed" in extensions(agent)[0]["error"]


REALTIME = """
from pykubelet.extension import Extension


class Realtime(Extension):
    name, api = "realtime", "1.0"

    def cgroup(self, pod, container, values):
        wanted = pod.annotations.get("realtime")
        return {"cpu.rt_runtime_us": wanted} if wanted and container else None
"""
FILE = "cpu.rt_runtime_us"
CPU_ROOT = Path("/sys/fs/cgroup/cpu")


def realtime_container() -> Json:
    """One that shows its time as its first action."""
    script = f"cat {CPU_ROOT}/{FILE}; sleep 1000"
    return make_container(script=script, resources={"requests": {"cpu": "10m"}})


def has_shown(agent: Agent, name: str, time: str) -> bool:
    return agent.output(name, "main").splitlines()[-1:] == [time]


def times(agent: Agent) -> dict[str, int]:
    """Of all cgroups of this agent in which it is not 0, by path below its own."""
    own = CPU_ROOT / agent.cgroup.strip("/")
    folders = [
        Path(folder) for folder, _, names in os.walk(own) if FILE in names
    ]  # Path.rglob fails where one vanishes
    found = {str(folder.relative_to(own)): int((folder / FILE).read_text()) for folder in folders}
    return {name: amount for name, amount in found.items() if amount}


@pytest.mark.skipif(not (CPU_ROOT / FILE).exists(), reason="needs cgroup v1 and RT_GROUP_SCHED")
async def test_time_for_real_time_scheduling(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent(flags=("--extension", write(tmp_path, REALTIME, "realtime.py")))
    above = CPU_ROOT / agent.cgroup.strip("/").partition("/")[0]
    (above / FILE).write_text("100000")  # what is above cgroupRoot is not the agent's
    try:
        pods = [make_pod("plain", realtime_container())]
        for name, amount in (("first", "20000"), ("second", "30000"), ("greedy", "900000")):
            pods.append(make_pod(name, realtime_container(), annotations={"realtime": amount}))
        agent.put(*pods)
        agent.start()
        await agent.wait_running("first", "second", "greedy", "plain")
        found = times(agent)
        assert found.pop(".") == found.pop("kubepods") == found.pop("kubepods/burstable") == 50_000
        assert sorted(found.values()) == [20_000, 20_000, 30_000, 30_000]  # pods and containers
        for name, time in (("first", "20000"), ("greedy", "0"), ("plain", "0")):
            await agent.wait_for("its first command", partial(has_shown, agent, name, time))
        assert "the time for real-time scheduling cannot be set" in agent.ask("explain", "greedy").stdout
        agent.remove("first", "second", "greedy", "plain")
        await agent.wait_for("no pods", lambda: not agent.pod_cgroups())
    finally:
        agent.stop()
        await agent.clear()
