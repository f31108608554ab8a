"""What the node keeps up, and what others wrote on it and it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from support.agent import NODE_NAME, Agent, Json, make_pod
from support.cluster import Cluster
from testbed.controlplane import CONTROLLERS_S

MakeAgent = Callable[..., Agent]
#: It is renewed after a quarter of it.
GOOD_S = 20
PATH = f"/api/v1/nodes/{NODE_NAME}"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}"


def test_the_lease_is_held_and_renewed(cluster: Cluster, make_cluster_agent: MakeAgent) -> None:
    make_cluster_agent(nodeLeaseDurationSeconds=GOOD_S).start()
    node = cluster.wait_node_ready()

    def found() -> Json | None:
        """Its own: that of a node before it may still be there."""
        lease = cluster.get(LEASE)
        owned = lease is not None and [owner["uid"] for owner in lease["metadata"].get("ownerReferences", ())]
        return lease if owned == [node["metadata"]["uid"]] else None

    lease = cluster.wait("lease", found)
    assert lease["spec"]["holderIdentity"] == NODE_NAME
    assert lease["spec"]["leaseDurationSeconds"] == GOOD_S
    first = renewed_at(lease)
    second = cluster.wait("renewal", lambda: (now := found()) and renewed_at(now) > first and now)
    assert (renewed_at(second) - first).total_seconds() < GOOD_S, "while it was good"


def renewed_at(lease: Json) -> datetime:
    return datetime.fromisoformat(lease["spec"]["renewTime"])


def test_the_node_has_a_csi_node_of_its_own(cluster: Cluster, cluster_agent: Agent) -> None:
    node = cluster.node()
    assert node is not None
    path = f"/apis/storage.k8s.io/v1/csinodes/{NODE_NAME}"
    owned = [{"apiVersion": "v1", "kind": "Node", "name": NODE_NAME, "uid": node["metadata"]["uid"]}]
    found = cluster.wait(
        "its CSINode", lambda: (c := cluster.get(path)) and c["metadata"]["ownerReferences"] == owned and c
    )
    assert "storage.alpha.kubernetes.io/migrated-plugins" in found["metadata"]["annotations"]


def test_labels_and_taints_of_others_stay(cluster: Cluster, make_cluster_agent: MakeAgent) -> None:
    taint = {"key": "own", "value": "yes", "effect": "NoSchedule"}
    agent = make_cluster_agent(("--node-labels", "own.example.com/at=start"), registerWithTaints=[taint]).start()
    node = cluster.wait_node_ready()
    assert node["metadata"]["labels"]["own.example.com/at"] == "start"
    # the controllers take away the taint of a node that is not ready, and write the whole list
    cluster.wait("only its own taint", lambda: (cluster.node() or {})["spec"]["taints"] == [taint], CONTROLLERS_S)
    labels = {"added.example.com/by": "admin", "own.example.com/at": "changed"}
    cluster.patch(PATH, {"metadata": {"labels": labels}, "spec": {"taints": None}})
    assert agent.stop() == 0
    agent.start()
    cluster.wait_node_ready()
    after = cluster.node()
    assert after is not None
    assert {key: after["metadata"]["labels"][key] for key in labels} == labels
    assert taint not in after["spec"].get("taints", [])


def test_an_extended_resource_that_a_user_advertises_can_be_used(cluster: Cluster, cluster_agent: Agent) -> None:
    """As the documentation "Advertise Extended Resources for a Node" has it: into the capacity alone, and out of it again."""
    name = "own.example.com/dongle"

    def allocatable() -> str:
        node = cluster.node()
        return str(node["status"]["allocatable"].get(name)) if node is not None else ""

    cluster.patch(f"{PATH}/status", {"status": {"capacity": {name: "4"}}})
    cluster.wait("it is allocatable", lambda: allocatable() == "4")
    limits = {"resources": {"limits": {name: "1"}, "requests": {name: "1"}}}
    pod = make_pod("user", automountServiceAccountToken=False)
    pod["spec"]["containers"][0] |= limits
    cluster.run(pod)
    cluster.wait_ready("user")
    cluster.patch(f"{PATH}/status", {"status": {"capacity": {name: None}}})
    cluster.wait("it is gone", lambda: allocatable() == "None")
