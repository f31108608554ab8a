"""A claim that the control plane binds, with the real node authorizer: the node may only read it by name."""

from __future__ import annotations

from pathlib import Path

from support.agent import Agent, make_container, make_pod
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
