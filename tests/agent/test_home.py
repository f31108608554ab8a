"""An agent that is configured with the cgroup to run in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Agent
from testbed import host
from testbed.private_runtime import Testbed

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]


async def test_the_agent_lives_in_the_group_named_for_it_and_its_usage_is_reported(
    make_agent: MakeAgent, testbed: Testbed
) -> None:
    group = f"/{testbed.name}/agents-home"
    agent = make_agent(kubeletCgroups=group)
    agent.start()
    try:
        assert agent.process is not None
        groups = {line.split(":", 2)[2] for line in Path(f"/proc/{agent.process.pid}/cgroup").read_text().split()}
        assert group in groups
        node = json.loads(agent.get("/stats/summary", agent.read_only_port)[1])["node"]
        own = next(container for container in node["systemContainers"] if container["name"] == "kubelet")
        assert own["memory"]["workingSetBytes"] > 0 and own["cpu"]["usageCoreNanoSeconds"] > 0
        assert agent.stop() == 0
    finally:
        agent.kill9()
        host.remove_cgroup(group)
