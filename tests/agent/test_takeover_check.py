"""`pykubelet takeover --check` about a node with running pods: of this agent, which leaves the same as a kubelet."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest
from agent.conftest import MakeAgent
from support.agent import NODE_NAME, Agent, Json, make_container, make_pod

pytestmark = pytest.mark.integration


async def check(agent: Agent, *more: str) -> tuple[int, Json]:
    """The exit code and the changes, by their subjects. `more`: flags laid over those of the agent."""
    words = [str(agent.program), "takeover", "--check", "-o", "json", "--", *agent.command(*more)[1:]]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60, env=agent.env)
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, {
        finding["subject"]: finding["text"] for finding in findings if finding["severity"] != "note"
    }


async def test_what_would_change_is_named(make_agent: MakeAgent) -> None:
    agent = make_agent(cpuManagerPolicy="static", reservedSystemCPUs="0").start()
    volumes = [{"name": "data", "emptyDir": {}}]
    agent.put(make_pod("kept", make_container(volumeMounts=[{"name": "data", "mountPath": "/d"}]), volumes=volumes))
    agent.put(make_pod("changed", make_container()))
    await agent.wait_running("kept", "changed")
    assert await check(agent) == (0, {})

    code, changes = await check(agent, "--hostname-override", "other")
    assert code == 1 and all("is ended: no manifest has it" in text for text in changes.values())
    assert set(changes) == {f"pod default/kept-{NODE_NAME}", f"pod default/changed-{NODE_NAME}"}

    agent.kill9()  # the manifest changes while no agent runs
    agent.put(make_pod("changed", make_container(script="sleep 1000")))
    code, changes = await check(agent)
    assert code == 1 and list(changes) == [f"pod default/changed-{NODE_NAME}"]
    assert changes[f"pod default/changed-{NODE_NAME}"].startswith("is started anew: it runs with the UID ")
