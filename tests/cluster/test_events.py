"""Events as `kubectl` shows them."""

from __future__ import annotations

from support.agent import NODE_NAME, Agent, Json, make_pod
from support.cluster import Cluster


def by_reason(cluster: Cluster, name: str, *reasons: str) -> dict[str, Json]:
    """The Events about an object, once all of these are there."""

    def found() -> dict[str, Json] | None:
        events = {event["reason"]: event for event in cluster.events(name)}
        return events if set(reasons) <= set(events) else None

    return dict(cluster.wait(f"Events {reasons}", found))


def test_the_life_of_a_pod_is_reported(cluster_agent: Agent, cluster: Cluster) -> None:
    (pod,) = cluster.run(make_pod("reported"))
    cluster.wait_ready("reported")
    created = by_reason(cluster, "reported", "Pulled", "Created", "Started")["Created"]
    assert created["source"] == {"component": "kubelet", "host": NODE_NAME}
    assert created["type"] == "Normal" and created["count"] == 1
    about = created["involvedObject"]
    assert (about["kind"], about["namespace"], about["name"]) == ("Pod", cluster.namespace, "reported")
    assert about["uid"] == pod["metadata"]["uid"] and about["resourceVersion"]
    assert about["fieldPath"].startswith("spec.containers{")
    assert "Started" in cluster.kubectl("describe", "pod", "reported")
    cluster.delete_pod("reported", grace_s=1)
    by_reason(cluster, "reported", "Killing")


def test_the_node_sends_events_about_itself(cluster_agent: Agent, cluster: Cluster) -> None:
    """The Node of this agent: Events of those that had its name before are still there."""
    node = cluster.get(f"/api/v1/nodes/{NODE_NAME}")
    assert node is not None
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid%3D{node['metadata']['uid']}"

    def reported() -> bool:
        reasons = {
            event["reason"] for event in cluster.list_objects(path) if event["source"].get("component") == "kubelet"
        }
        return {"Starting", "NodeHasSufficientMemory"} <= reasons

    cluster.wait("Events of the node", reported)
    assert "Starting kubelet." in cluster.kubectl("describe", "node", NODE_NAME)
