"""The samples of examples/extensions that are functions, on real containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent.conftest import MakeAgent
from support.agent import Agent, Json, make_container, make_pod
from testbed import host

pytestmark = pytest.mark.integration
SAMPLES = Path(__file__).parents[2] / "examples/extensions"


def flags_of(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--extension", str(SAMPLES / f"{name}.py")))


CARBON, PULL = {"carbon.example.com/most": "200"}, {"pull.example.com/not-before": "2099-01-01T00:00:00Z"}


def with_deadline(name: str, runtime_us: str, **container: Any) -> Json:
    notes = {"deadline.example.com/runtime-us": runtime_us, "deadline.example.com/period-us": "10000"}
    return make_pod(name, make_container(**container), annotations=notes)


def states(agent: Agent) -> dict[str, Any]:
    return {state["name"]: state for state in agent.ask_json("explain", "node")["extensions"]}


async def test_a_node_with_all_samples(make_agent: MakeAgent) -> None:
    names = ("carbon_admission", "deadline_admission", "memory_tiering", "pull_priority", "stall_eviction")
    agent = make_agent(flags=(*flags_of(*names), "--node-labels", "carbon.example.com/intensity=450"))
    absent = make_container(image="example.com/x:1", imagePullPolicy="IfNotPresent")
    agent.put(
        make_pod("web"),
        make_pod("nightly", annotations=CARBON),
        with_deadline("task", "2000", resources={"requests": {"cpu": "200m"}}),
        with_deadline("greedy", "9000"),
        make_pod("later", absent, annotations=PULL),
    )
    agent.start()
    await agent.wait_running("web", "task")
    greedy = await agent.wait_phase("greedy", "Failed")
    assert greedy["status"]["reason"] == "InvalidDeadline"
    assert "must request 900m CPU for its budget, and requests 0m" in greedy["status"]["message"]
    (wait,) = agent.explain("nightly")["waits"]
    assert wait["what"] == "clean power" and wait["detail"].startswith("450 g of CO2 for each kWh, 200 at most")
    await agent.wait_for("a delayed pull", lambda: "pull-priority" in str(agent.explain("later")["waits"]))
    container = (await agent.look()).running_ids()["task-node/main"]
    assert quota_of(agent, container) == (2100, 10_000)
    found = states(agent)
    assert sorted(found) == sorted(name.replace("_", "-") for name in names)
    assert [state for state in found.values() if state["error"] or state["off"]] == []


def quota_of(agent: Agent, container: str) -> tuple[int, int]:
    """Quota and period of a container's cgroup, in microseconds."""
    for folder in agent.cgroups(lambda name: container in name):
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
            return int(quota), int(period)
        if (folder / "cpu.cfs_quota_us").exists():
            return int((folder / "cpu.cfs_quota_us").read_text()), int((folder / "cpu.cfs_period_us").read_text())
    raise AssertionError(f"no cgroup of {container}")


@pytest.mark.cgroup_v2
async def test_memory_tiers(make_agent: MakeAgent) -> None:
    agent = make_agent(flags=flags_of("memory_tiering"))
    hot = make_container("cache", resources={"requests": {"memory": "16Mi"}})
    cold = make_container("archive", resources={"limits": {"memory": "64Mi"}})
    notes = {"tier.example.com/cache": "hot", "tier.example.com/archive": "cold"}
    agent.put(make_pod("shop", hot, cold, annotations=notes))
    agent.start()
    await agent.wait_running("shop")
    ids = (await agent.look()).running_ids()
    (cache,) = agent.cgroups(lambda name: ids["shop-node/cache"] in name)
    (archive,) = agent.cgroups(lambda name: ids["shop-node/archive"] in name)
    assert (cache / "memory.low").read_text() == f"{16 << 20}\n"
    assert (archive / "memory.high").read_text() == f"{32 << 20}\n"
    assert host.wait_until(lambda: states(agent)["memory-tiering"]["error"] == "", 5)
