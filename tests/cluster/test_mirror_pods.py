"""Static pods are shown in the cluster by mirror pods, and run on whoever deletes their mirror pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.agent import NODE_NAME, Agent, Json, container_status, make_container, make_pod
from support.cluster import Cluster
from testbed.host import free_port

MakeAgent = Callable[..., Agent]
MIRROR = f"fixed-{NODE_NAME}"
SECOND = f"second-{NODE_NAME}"
ANNOTATION = "kubernetes.io/config.mirror"


def started(cluster: Cluster, agent: Agent) -> Json:
    """A static pod runs, in the test's namespace; its mirror pod when that is ready."""
    agent.put(own(cluster, make_pod("fixed")))
    (mirror,) = cluster.wait_ready(MIRROR)
    return mirror


def own(cluster: Cluster, pod: Json) -> Json:
    return pod | {"metadata": pod["metadata"] | {"namespace": cluster.namespace}}


def test_a_static_pod_is_mirrored_with_its_status(cluster: Cluster, cluster_agent: Agent) -> None:
    mirror = started(cluster, cluster_agent)
    node = cluster.node()
    assert node is not None
    assert (
        mirror["metadata"]["annotations"][ANNOTATION] == mirror["metadata"]["annotations"]["kubernetes.io/config.hash"]
    )
    (owner,) = mirror["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NODE_NAME, node["metadata"]["uid"])
    cluster_agent.remove("fixed")
    cluster.wait_gone(MIRROR)


def test_a_changed_manifest_changes_the_mirror(cluster: Cluster, cluster_agent: Agent) -> None:
    before = started(cluster, cluster_agent)["metadata"]["annotations"][ANNOTATION]
    container = make_container(env=[{"name": "A", "value": "changed"}])
    cluster_agent.put(own(cluster, make_pod("fixed", container)))

    def changed(pod: Json) -> Any:
        return (
            pod["metadata"]["annotations"][ANNOTATION] != before
            and pod["spec"]["containers"][0].get("env")
            and container_status(pod)["state"].get("running")
        )

    cluster.wait_pod(MIRROR, "the changed pod runs", changed)


def test_the_mirror_of_a_rejected_pod_is_made_anew_when_the_pod_is_admitted(
    cluster: Cluster, cluster_agent: Agent
) -> None:
    port = {"containerPort": 80, "hostPort": free_port(0)}
    for name in ("fixed", "second"):
        cluster_agent.put(own(cluster, make_pod(name, make_container(ports=[port]))))
        cluster.wait_pod(f"{name}-{NODE_NAME}", "there", lambda pod: pod["status"]["phase"] in ("Running", "Failed"))
    rejected = cluster.wait_pod(SECOND, "rejected", lambda pod: pod["status"].get("reason") == "NodePorts")
    assert rejected["status"]["phase"] == "Failed"
    cluster_agent.remove("fixed")
    cluster.wait_gone(MIRROR)
    running = cluster.wait_pod(SECOND, "running", lambda pod: pod["status"]["phase"] == "Running")
    assert running["metadata"]["uid"] != rejected["metadata"]["uid"]
    assert "reason" not in running["status"]
    assert running["status"]["startTime"] >= rejected["status"]["startTime"]
