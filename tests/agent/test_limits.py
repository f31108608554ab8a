"""Containers that reach the limits of their pod: only they feel it, and the agent reports why."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Agent, Json, container_status, make_container, make_pod

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
LIMITS = {"limits": {"cpu": "500m", "memory": "32Mi"}}


def terminated(pod: Json) -> Json:
    found: Json = container_status(pod)["state"].get("terminated") or {}
    return found


async def test_a_container_over_its_memory_limit_is_reported_as_oom_killed(make_agent: MakeAgent) -> None:
    """How long that takes is printed (`pytest -rP`), not judged: other load decides it here."""
    agent = make_agent().start()
    agent.put(make_pod("hog", make_container(script="exec tail /dev/zero", resources=LIMITS), restartPolicy="Never"))
    ended = terminated(await agent.wait_pod("hog", "its container has ended", terminated))
    seen = time.time()
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    (container,) = (await agent.look()).of("hog-node").containers
    killed = await agent.finished_at(container.id)
    print(f"OOMKilled was reported {seen - killed:.3f} s after the kill")
    assert killed <= seen
    await agent.wait_for("the kernel's record", lambda: "the kernel killed a process" in agent.log_text())
    # the limit of a pod was hit, not that of the machine
    assert "System OOM encountered, victim process: tail" not in agent.log_text()
    await agent.remove_all()
    assert agent.stop() == 0


async def test_a_fork_bomb_stays_inside_its_pod(make_agent: MakeAgent) -> None:
    agent = make_agent(podPidsLimit=64).start()
    bomb = "for i in 1 2 3; do (while :; do sleep 3600 & done) & done; exec sleep 3600"
    agent.put(make_pod("bomb", make_container(script=bomb, resources=LIMITS), terminationGracePeriodSeconds=0))

    def is_full() -> bool:
        """The kernel counts refusals in the group of the container, or of the pod, by its version."""
        counts = [path for group in agent.pod_cgroups() for path in group.rglob("pids.events")]
        return any("max 0" not in path.read_text() for path in counts)

    await agent.wait_for("the kernel refuses the pod a process", is_full)
    limits = {path.read_text().strip() for group in agent.pod_cgroups() if (path := Path(group, "pids.max")).exists()}
    assert "64" in limits
    forks = {"exec": {"command": ["sh", "-c", "sleep 0; sleep 0 & wait"]}, "periodSeconds": 1, "timeoutSeconds": 10}
    agent.put(make_pod("neighbor", make_container(readinessProbe=forks)))
    await agent.wait_running("neighbor")
    assert agent.pods()["bomb"]["status"]["phase"] == "Running"
    await agent.remove_all()
    assert agent.stop() == 0
