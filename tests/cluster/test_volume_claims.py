"""A claim that the control plane binds, with the real node authorizer: the node may only read it by name."""

from __future__ import annotations

from pathlib import Path

from support.agent import NODE_NAME, Agent, make_container, make_pod
from support.cluster import Cluster

VOLUMES = "/api/v1/persistentvolumes"


def test_a_pod_waits_for_its_claim_to_be_bound_and_leaves_its_data(
    cluster: Cluster, cluster_agent: Agent, tmp_path: Path
) -> None:
    assert cluster_agent.alive
    claims = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims"
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand"}
    request = {"resources": {"requests": {"storage": "1Mi"}}}
    cluster.create(claims, {"metadata": {"name": "data"}, "spec": common | request})
    mounts = [{"name": "store", "mountPath": "/store"}]
    volume = {"name": "store", "persistentVolumeClaim": {"claimName": "data"}}
    container = make_container("main", "echo done > /store/mark; sleep 3600", volumeMounts=mounts)
    cluster.run(make_pod("claimer", container, volumes=[volume], automountServiceAccountToken=False))
    source = {"hostPath": {"path": str(tmp_path)}, "capacity": {"storage": "1Mi"}}
    name = f"{cluster.namespace}-by-hand"
    cluster.create(
        VOLUMES, {"metadata": {"name": name}, "spec": common | source | {"persistentVolumeReclaimPolicy": "Retain"}}
    )
    try:
        cluster.wait_ready("claimer")
        cluster.wait("the data", lambda: (tmp_path / "mark").exists())
        cluster.delete_pod("claimer", 1)
        cluster.wait_gone("claimer")
        assert (tmp_path / "mark").read_text() == "done\n"
    finally:
        cluster.delete(f"{claims}/data")
        cluster.delete(f"{VOLUMES}/{name}")


def test_a_node_reports_that_a_volume_has_grown(cluster: Cluster, cluster_agent: Agent, tmp_path: Path) -> None:
    """The admission plugin NodeRestriction lets a node change a few fields of a claim's status only."""
    assert cluster_agent.alive
    claims = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims"
    name = f"{cluster.namespace}-growing"
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand"}
    request = {"resources": {"requests": {"storage": "1Mi"}}}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE_NAME]}]}]
    place = {"local": {"path": str(tmp_path)}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    spec = {**common, **place, "capacity": {"storage": "1Mi"}, "persistentVolumeReclaimPolicy": "Retain"}
    cluster.create(VOLUMES, {"metadata": {"name": name}, "spec": spec})
    cluster.create(claims, {"metadata": {"name": "data"}, "spec": {**common, **request, "volumeName": name}})

    def capacity() -> str:
        status = (cluster.get(f"{claims}/data") or {}).get("status", {})
        return str(status.get("capacity", {}).get("storage", ""))

    try:
        cluster.wait("the claim to be bound", lambda: capacity() == "1Mi")
        cluster.patch(f"{VOLUMES}/{name}", {"spec": {"capacity": {"storage": "2Mi"}}})
        mounts = [{"name": "store", "mountPath": "/store"}]
        volume = {"name": "store", "persistentVolumeClaim": {"claimName": "data"}}
        container = make_container("main", "sleep 3600", volumeMounts=mounts)
        cluster.run(make_pod("grower", container, volumes=[volume], automountServiceAccountToken=False))
        cluster.wait_ready("grower")
        assert capacity() == "2Mi"
        cluster.delete_pod("grower", 1)
        cluster.wait_gone("grower")
    finally:
        cluster.delete(f"{claims}/data")
        cluster.delete(f"{VOLUMES}/{name}")
