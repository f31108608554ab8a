"""Pods beside one that is in trouble: they start, are probed, end and go as if nothing were."""

from __future__ import annotations

from support.agent import Agent, make_container, make_pod

READY = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 5}


async def others_go_on(agent: Agent, tag: str) -> None:
    """A pod starts, is probed, ready and reported; another one runs to its end; both go; the node is well."""
    agent.put(make_pod(f"{tag}-new", make_container(readinessProbe=READY, livenessProbe=READY)))
    agent.put(make_pod(f"{tag}-done", make_container(script="exit 0"), restartPolicy="Never"))
    await agent.wait_running(f"{tag}-new")
    await agent.wait_phase(f"{tag}-done", "Succeeded")
    agent.remove(f"{tag}-new", f"{tag}-done")
    await agent.wait_gone(f"{tag}-new", f"{tag}-done")
    assert agent.get("/healthz", agent.health_port) == (200, "ok")
    await agent.wait_for("the node itself waits for nothing", lambda: agent.ask_json("pods")["waits"] == [])
