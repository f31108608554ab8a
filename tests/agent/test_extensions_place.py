"""A CPU policy of an extension on real containers: the first CPU is reserved, the second is for one container at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.conftest import MakeAgent
from agent.test_extensions import extensions, write
from agent.test_placement import pod, sees, state

pytestmark = pytest.mark.integration

SPREAD = """
from pykubelet.extension import CpuMachine, CpuRequest, Extension


class Spread(Extension):
    name, api = "spread", "1.0"

    def place(self, request: CpuRequest, machine: CpuMachine) -> frozenset[int]:
        if request.pod.name.startswith("wrong"):
            return frozenset({0})
        return frozenset(sorted(machine.free)[-request.cpus :])
"""
SETTINGS = {"cpuManagerPolicy": "spread", "reservedSystemCPUs": "0"}


async def test_a_policy_of_an_extension_places_pods_like_static(make_agent: MakeAgent, tmp_path: Path) -> None:
    flags = ("--extension", write(tmp_path, SPREAD, "spread.py"))
    agent = make_agent(flags=flags, **SETTINGS).start()
    agent.put(pod("early"), pod("pinned", "1"))
    await agent.wait_running("early", "pinned")
    await sees(agent, "pinned", "1")
    assert state(agent)["policyName"] == "spread" and state(agent)["defaultCpuSet"] == "0"
    assert extensions(agent)[0]["points"] == ["place"] and extensions(agent)[0]["error"] == ""

    agent.stop()
    agent.start()  # the state file is its own
    await agent.wait_running("early", "pinned")
    assert state(agent)["policyName"] == "spread" and state(agent)["defaultCpuSet"] == "0"

    agent.remove("pinned")
    await agent.wait_for("CPU 1 is free", lambda: state(agent)["defaultCpuSet"] == "0-1")
    agent.put(pod("wrong", "1"))  # the answer is the reserved CPU: that of `static` counts
    await agent.wait_running("wrong")
    await sees(agent, "wrong", "1")
    assert extensions(agent)[0]["error"] == "place: these CPUs are not free: 0"


async def test_a_policy_that_no_extension_has_stops_the_start(make_agent: MakeAgent, tmp_path: Path) -> None:
    flags = ("--extension", write(tmp_path, SPREAD.replace('"spread"', '"other"'), "spread.py"))
    agent = make_agent(flags=flags, **SETTINGS)
    agent.start(wait=False)
    assert agent.process is not None and agent.process.wait(30) == 1
    agent.process = None
    assert "no extension of --extension is named spread and defines `place`" in agent.log_text()
