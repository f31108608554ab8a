"""A pod whose cgroup is removed while it runs: its processes are moved away, as by a tool that cleans up too much."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Agent, container_status, make_pod
from testbed import host

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]


def empty_and_remove(group: Path) -> None:
    """Move every process at or below a cgroup to that of its QoS class, and remove it."""
    folders = [Path(folder) for folder, _, _ in os.walk(group, topdown=False)]
    for folder in folders:
        for pid in (folder / "cgroup.procs").read_text().split():
            (group.parent.parent.parent / "cgroup.procs").write_text(pid)
    for folder in folders:
        folder.rmdir()


@pytest.mark.cgroup_v1  # version 2 takes no process in a group that has others below it
async def test_pod_starts_anew_inside_a_cgroup(make_agent: MakeAgent) -> None:
    agent = make_agent(syncFrequency="2s").start()
    agent.put(make_pod("web"))
    view = await agent.wait_runtime("the pod runs", lambda view: view.running_names() == ["web-node/main"])
    before = view.running_ids()["web-node/main"]
    groups = agent.pod_cgroups()
    assert groups
    for group in groups:
        empty_and_remove(group)

    def anew() -> bool:
        status = agent.pods()["web"]
        return status["status"]["phase"] == "Running" and before not in container_status(status)["containerID"]

    await agent.wait_for("another instance runs", anew)
    await agent.wait_for("inside the pod's cgroup again", lambda: {g.parent for g in groups} <= _parents(agent))
    assert host.cgroup_pids(agent.cgroup)
    assert "the cgroup of a pod is gone while its containers run" in agent.log_text()


def _parents(agent: Agent) -> set[Path]:
    return {group.parent for group in agent.pod_cgroups()}
