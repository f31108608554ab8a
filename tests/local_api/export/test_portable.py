"""What an export contains, and what another cluster would refuse."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from local_api.reconcile.world import World

from pykubelet.base.api.documents import read_documents
from pykubelet_local_api.export.portable import exported
from pykubelet_local_api.export.yaml_text import yaml_documents

RBAC = "rbac.authorization.k8s.io/v1"


def made(kind: str, name: str, namespace: str = "default", version: str = "v1", **more: Any) -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **more}


def names(*objects: dict[str, Any], namespace: str = "") -> list[str]:
    return [f"{each['kind']} {each['metadata']['name']}" for each in exported(World(*objects), namespace)[0]]


def test_objects_come_in_an_order_that_can_be_applied() -> None:
    objects = [made(kind, "x") for kind in ("Pod", "Service", "Secret", "ConfigMap", "ServiceAccount")]
    objects = [each | {"spec": {}} if each["kind"] in ("Pod", "Service") else each for each in objects]
    assert names(*objects, made("Namespace", "team", "")) == [
        "Namespace team", "ServiceAccount x", "ConfigMap x", "Secret x", "Service x", "Pod x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "left",
    [
        made("Namespace", "kube-system", ""),
        made("ConfigMap", "kube-root-ca.crt"),
        made("ServiceAccount", "default"),
        made("Service", "kubernetes", spec={}),
        made("Node", "n1", ""),
        made("Lease", "n1", "kube-node-lease", "coordination.k8s.io/v1"),
        made("ClusterRole", "view", "", RBAC, metadata={"labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}),
        made("Pod", "static", metadata={"annotations": {"kubernetes.io/config.mirror": "1"}}),
        made("Pod", "done", status={"phase": "Succeeded"}),
        made("Pod", "leaving", metadata={"deletionTimestamp": "2026-11-29T20:00:00Z"}),
        made("Secret", "token", type="kubernetes.io/service-account-token"),
        made("PersistentVolume", "pvc-1", "", metadata={"annotations": {"pv.kubernetes.io/provisioned-by": "csi"}}),
        made("ConfigMap", "owned", metadata={"ownerReferences": [{"kind": "Pod", "name": "p"}]}),
    ],
    ids=lambda each: f"{each['kind']}-{each['metadata']['name']}",
)  # fmt: skip
def test_what_belongs_to_this_node_or_is_made_by_itself_is_left_out(left: dict[str, Any]) -> None:
    assert names(left) == []


def test_a_pod_gets_a_node_and_a_token_of_its_new_cluster() -> None:
    pod = made(
        "Pod", "web",
        metadata={"uid": "1", "resourceVersion": "7", "creationTimestamp": "2026", "managedFields": [{}], "labels": {"a": "b"}},
        spec={
            "nodeName": "n1", "serviceAccount": "x", "serviceAccountName": "x", "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
            "volumes": [{"name": "kube-api-access-abcde", "projected": {}}, {"name": "data", "emptyDir": {}}],
            "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "kube-api-access-abcde", "mountPath": "/t"}]}],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "mine", "operator": "Exists"},
            ],
        },
        status={"phase": "Running"},
    )  # fmt: skip
    [[found], remarks] = exported(World(pod))
    assert found == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": {"a": "b"}, "name": "web", "namespace": "default"},
        "spec": {
            "serviceAccountName": "x",
            "containers": [{"name": "c", "image": "i"}],
            "tolerations": [{"key": "mine", "operator": "Exists"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }
    assert remarks == []


def test_a_claim_keeps_a_volume_that_comes_along() -> None:
    claim = made("PersistentVolumeClaim", "c", spec={"volumeName": "v"})
    volume = made("PersistentVolume", "v", "", spec={"claimRef": {"name": "c", "namespace": "default", "uid": "1"}})
    [first, second] = exported(World(claim, volume))[0]
    assert first["spec"] == {"claimRef": {"name": "c", "namespace": "default"}}
    assert second["spec"] == {"volumeName": "v"}
    provisioned = volume | {
        "metadata": volume["metadata"] | {"annotations": {"pv.kubernetes.io/provisioned-by": "csi"}}
    }
    [[only], [remark]] = exported(World(claim, provisioned))
    assert only["spec"] == {}
    assert "its data must be copied" in remark


def test_endpoints_that_a_service_selects_are_made_by_itself() -> None:
    """Those of a service without a selector are data."""
    selecting = made("Service", "a", spec={"selector": {"app": "a"}})
    assert names(selecting, made("Endpoints", "a"), made("Service", "b", spec={}), made("Endpoints", "b")) == [
        "Service a", "Service b", "Endpoints b",
    ]  # fmt: skip


def test_only_a_namespace() -> None:
    inside, outside = made("ConfigMap", "in", "team"), made("ConfigMap", "out")
    role = made("ClusterRole", "team", "", RBAC)
    assert names(made("Namespace", "team", ""), inside, outside, role, namespace="team") == [
        "Namespace team",
        "ConfigMap in",
    ]


TEXTS = [
    "y",
    "no",
    "1e3",
    "0o7",
    "22:22",
    "",
    "~",
    "a\nb\n",
    " x",
    "ü\u2028",
    "x: y",
    "-",
    "# a",
    "true",
    "1_0",
    "line\n  two\n\n",
    "\t",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_stays_text(text: str) -> None:
    config = made("ConfigMap", "a", data={"key": text, "on": "z"})
    [written] = yaml_documents([config])
    [read] = read_documents(written.encode())
    assert not isinstance(read, Exception) and read.value == config
    assert yaml.safe_load(written) == config
