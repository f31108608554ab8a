"""Static pods are shown in the cluster by mirror pods, and run on whoever deletes their mirror pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.agent import NODE_NAME, Agent, Json, container_status, make_container, make_pod
from support.cluster import Cluster

MakeAgent = Callable[..., Agent]
MIRROR = f"fixed-{NODE_NAME}"
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
