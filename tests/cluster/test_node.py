"""The node as the cluster sees it: registered, ready, well described, and back after whatever happens to its object."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from support.agent import NODE_NAME, Agent, Json, condition
from support.cluster import Cluster

NODE = f"/api/v1/nodes/{NODE_NAME}"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}"
MakeAgent = Callable[..., Agent]


def wait(cluster: Cluster, path: str, holds: Callable[[Json], Any]) -> Json:
    def found() -> Json | None:
        body = cluster.get(path)
        return body if body is not None and holds(body) else None

    return dict(cluster.wait(path, found))


def is_ready(node: Json) -> bool:
    return condition(node, "Ready") == "True"


def test_a_node_is_ready_soon_and_reports_what_it_is(make_cluster_agent: MakeAgent, cluster: Cluster) -> None:
    agent = make_cluster_agent()
    agent.start()
    node = wait(cluster, NODE, lambda node: is_ready(node) and node["status"].get("images"))
    status, info = node["status"], node["status"]["nodeInfo"]
    assert [c["type"] for c in status["conditions"]] == ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
    assert condition(node, "Ready") == "True"
    assert info["containerRuntimeVersion"].startswith("containerd://")
    assert info["kubeletVersion"].startswith("v1.37.") and info["operatingSystem"] == "linux"
    assert {a["type"] for a in status["addresses"]} == {"InternalIP", "Hostname"}
    assert set(status["capacity"]) >= {"cpu", "memory", "pods", "ephemeral-storage"}
    assert set(status["allocatable"]) >= {"cpu", "memory", "pods", "ephemeral-storage"}
    assert any("pause" in name for image in status["images"] for name in image.get("names", ()))
    labels = node["metadata"]["labels"]
    assert labels["kubernetes.io/hostname"] == NODE_NAME and labels["kubernetes.io/os"] == "linux"
    lease = wait(cluster, LEASE, lambda lease: owners(lease) == [node["metadata"]["uid"]])
    assert lease["spec"]["holderIdentity"] == NODE_NAME and lease["spec"]["leaseDurationSeconds"] == 40


def owners(lease: Json) -> list[str]:
    """The UIDs of its owners. The lease of a node before this one may still be there."""
    return [owner["uid"] for owner in lease["metadata"].get("ownerReferences", ())]


def test_a_deleted_node_comes_back(cluster_agent: Agent, cluster: Cluster) -> None:
    before = wait(cluster, NODE, is_ready)
    cluster.delete(NODE)
    after = wait(cluster, NODE, lambda node: is_ready(node) and node["metadata"]["uid"] != before["metadata"]["uid"])
    assert after["metadata"]["labels"] == before["metadata"]["labels"]


def test_a_killed_agent_comes_back_without_a_moment_of_unreadiness(cluster_agent: Agent, cluster: Cluster) -> None:
    before = wait(cluster, NODE, is_ready)
    cluster_agent.kill9()
    cluster_agent.start()
    time.sleep(1.0)
    after = wait(cluster, NODE, is_ready)
    times = [
        next(c["lastTransitionTime"] for c in node["status"]["conditions"] if c["type"] == "Ready")
        for node in (before, after)
    ]
    assert times[0] == times[1]
