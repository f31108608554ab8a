"""Exclusive CPUs and memory of one NUMA node, as the container's first process sees them, on cgroup v2 with two NUMA nodes.

The machine has CPUs 0 and 1 on node 0, 2 and 3 on node 1; CPU 0 is reserved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.agent import Json, container_status, make_container, make_pod
from support.unit import LONG_S, UnitAgent, container_group, systemctl

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
RESERVED = [{"numaNode": node, "limits": {"memory": "256Mi"}} for node in (0, 1)]
SETTINGS: dict[str, Any] = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "412Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": RESERVED,
    "topologyManagerPolicy": "single-numa-node",
}
#: Which CPUs and memory nodes the process may use, as its first action; then again and again.
REPORT = "while :; do grep -E '^(Cpus|Mems)_allowed_list' /proc/self/status; sleep 2 & wait $!; done"


def pod(name: str, cpu: str = "") -> Json:
    """A pod that reports its CPUs; Guaranteed, if `cpu` is given."""
    amounts = {"cpu": cpu, "memory": "100Mi"}
    more: dict[str, Any] = {"resources": {"requests": amounts, "limits": amounts}} if cpu else {}
    return make_pod(name, make_container(script=f"trap 'exit 0' TERM; {REPORT}", **more))


def seen(agent: UnitAgent, name: str) -> list[tuple[str, str]]:
    """CPUs and memory nodes that the container has seen, the first ones first, repetitions left out."""
    output = agent.output(name, "main")
    cpus, mems = (re.findall(rf"{kind}_allowed_list:\s*(\S+)", output) for kind in ("Cpus", "Mems"))
    found = list(zip(cpus, mems, strict=False))
    return [pair for number, pair in enumerate(found) if not number or found[number - 1] != pair]


def has_seen(agent: UnitAgent, name: str, wanted: list[tuple[str, str]]) -> bool:
    return seen(agent, name) == wanted


async def sees(agent: UnitAgent, name: str, *wanted: tuple[str, str]) -> None:
    try:
        await agent.wait_for(f"{name} sees {wanted}", partial(has_seen, agent, name, list(wanted)), LONG_S)
    except AssertionError as error:
        raise AssertionError(f"{name} has seen {seen(agent, name)}\n{error}") from None


async def test_containers_have_their_cpus_and_memory_nodes(make_unit: MakeUnit) -> None:
    agent = make_unit(**SETTINGS).start()
    agent.put(pod("shared"), pod("wide", "3"))
    refused = await agent.wait_phase("wide", "Failed", within=LONG_S)
    assert refused["status"]["reason"] == "TopologyAffinityError"
    message = "Resources cannot be allocated with Topology locality"
    assert refused["status"]["message"] == f"Pod was rejected: {message}"
    await agent.wait_running("shared", within=LONG_S)
    await sees(agent, "shared", ("0-3", "0-1"))

    agent.put(pod("pair", "2"))
    await agent.wait_running("pair", within=LONG_S)
    await sees(agent, "pair", ("2-3", "1"))
    await sees(agent, "shared", ("0-3", "0-1"), ("0-1", "0-1"))
    agent.put(pod("single", "1"))
    await agent.wait_running("single", within=LONG_S)
    await sees(agent, "single", ("1", "0"))
    await sees(agent, "shared", ("0-3", "0-1"), ("0-1", "0-1"), ("0", "0-1"))
    pair = agent.pods()["pair"]
    group = container_group(container_status(pair)["containerID"].partition("://")[2])
    assert {(folder / "cpu.max").read_text().split()[0] for folder in (group, group.parent)} == {"max"}
    assert (group / "cpuset.cpus").read_text().strip() == "2-3"
    assert (group / "cpuset.mems").read_text().strip() == "1"

    before, files = (await agent.look()).running_ids(), states(agent)
    old = agent.main_pid()
    agent.kill9()
    agent.wait_restarted(old)
    await agent.wait_running("shared", "pair", "single", within=LONG_S)
    systemctl("restart", "containerd.service")
    agent.put(pod("late"))
    await agent.wait_running("late", "shared", "pair", "single", within=LONG_S)
    await sees(agent, "late", ("0", "0-1"))
    after = (await agent.look()).running_ids()
    assert {name: after[name] for name in before} == before
    assert states(agent) == files
    assert (seen(agent, "pair"), seen(agent, "single")) == ([("2-3", "1")], [("1", "0")])
    await agent.wait_phase("wide", "Failed", within=LONG_S)

    agent.remove("pair", "single", "wide")
    await agent.wait_gone("pair", "single", within=LONG_S)
    await agent.wait_for("all CPUs are shared", lambda: seen(agent, "late")[-1] == ("0-3", "0-1"), LONG_S)
    cpu, memory = states(agent)
    assert (cpu["defaultCpuSet"], cpu.get("entries"), memory.get("entries")) == ("0-3", None, None)
    assert all(node["memoryMap"]["memory"]["reserved"] == 0 for node in memory["machineState"].values())


def states(agent: UnitAgent) -> tuple[Json, Json]:
    cpu, memory = (json.loads((agent.root / f"{kind}_manager_state").read_text()) for kind in ("cpu", "memory"))
    return cpu, memory
