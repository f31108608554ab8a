"""Manifests with persistent volumes, claims and CSI drivers: what is taken, and what is wrong with the others."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pykubelet.base.api import core
from pykubelet.base.api.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim
from pykubelet.base.model.content import ContentKind, ManifestObject, ObjectKey
from pykubelet.base.model.roster import ManifestProblem
from pykubelet.desired.sources.decode import ManifestRules, decode_manifest
from pykubelet.desired.sources.static import file_origin
from pykubelet.desired.sources.url import url_origin

ORIGIN = file_origin("/m/data.yaml")
ALONE = ManifestRules("node-1", is_standalone=True)
TERMS = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]}]
VOLUME: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "disk"},
    "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "5Gi"}, "hostPath": {"path": "/srv"}},
}
CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
DRIVER: dict[str, Any] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "CSIDriver",
    "metadata": {"name": "a.example.com"},
    "spec": {"volumeLifecycleModes": ["Ephemeral"]},
}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {
        "containers": [{"name": "c", "image": "busybox:1"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}


def decode(document: dict[str, Any], rules: ManifestRules = ALONE) -> Any:
    return decode_manifest(yaml.safe_dump(document).encode(), ORIGIN, rules)


def only_object(document: dict[str, Any]) -> ManifestObject:
    (found,) = decode(document)
    assert isinstance(found, ManifestObject), found
    return found


def test_a_volume_has_its_defaults_and_an_uid_that_editing_does_not_change() -> None:
    found = only_object(VOLUME)
    assert found.key == ObjectKey(ContentKind.VOLUME, "", "disk")
    assert found.origin == "/m/data.yaml"
    assert isinstance(found.value, PersistentVolume)
    assert found.value.spec.volumeMode == "Filesystem"
    assert found.value.spec.persistentVolumeReclaimPolicy == "Retain"
    larger = only_object({**VOLUME, "spec": {**VOLUME["spec"], "capacity": {"storage": "9Gi"}}})
    assert larger.value.metadata.uid == found.value.metadata.uid != ""


def test_a_claim_is_of_the_default_namespace() -> None:
    found = only_object(CLAIM)
    assert found.key == ObjectKey(ContentKind.VOLUME_CLAIM, "default", "data")
    assert isinstance(found.value, PersistentVolumeClaim)
    other = only_object({**CLAIM, "metadata": {"name": "data", "namespace": "x"}})
    assert other.value.metadata.uid != found.value.metadata.uid


def test_a_driver_attaches_nothing() -> None:
    found = only_object(DRIVER).value
    assert isinstance(found, CSIDriver)
    assert (found.spec.attachRequired, found.spec.fsGroupPolicy) == (False, "ReadWriteOnceWithFSType")


CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "sealed"},
    "handler": "kata",
}


def test_a_runtime_class_names_a_handler() -> None:
    found = only_object(CLASS)
    assert found.key == ObjectKey(ContentKind.RUNTIME_CLASS, "", "sealed")
    assert isinstance(found.value, core.RuntimeClass)
    assert found.value.handler == "kata"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"handler": ""}, "handler"),
        ({"handler": "a/b"}, "handler"),
        ({"metadata": {"name": "A"}}, "metadata.name"),
        ({"metadata": {"name": "a", "namespace": "n"}}, "metadata.namespace"),
        ({"overhead": {"podFixed": {"memory": "1Mi"}}}, "overhead"),
        ({"scheduling": {"nodeSelector": {"a": "b"}}}, "scheduling"),
    ],
)
def test_what_a_runtime_class_may_not_have(change: dict[str, Any], field: str) -> None:
    (found,) = decode({**CLASS, **change})
    assert isinstance(found, ManifestProblem)
    assert found.field_path == field


def test_a_list_has_pods_and_objects() -> None:
    items = decode({"apiVersion": "v1", "kind": "List", "items": [VOLUME, CLAIM, DRIVER, POD]})
    assert [type(item) for item in items] == [ManifestObject, ManifestObject, ManifestObject, core.Pod]


def test_a_list_of_a_url_has_objects_too() -> None:
    data = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [VOLUME]}).encode()
    assert len(decode_manifest(data, url_origin("http://example.com/"), ALONE)) == 1


def spec_of(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    spec = {key: value for key, value in {**base["spec"], **changes}.items() if value is not None}
    return {**base, "spec": spec}


def list_of(*items: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


@pytest.mark.parametrize(
    ("document", "path", "reason"),
    [
        (spec_of(VOLUME, hostPath=None), "spec", "must specify a volume type"),
        (spec_of(VOLUME, nfs={"server": "s", "path": "/"}), "spec.nfs", "may not specify more than 1 volume type"),
        (spec_of(VOLUME, capacity={}), "spec.capacity[storage]", "Required value"),
        (spec_of(VOLUME, capacity={"storage": "0"}), "spec.capacity[storage]", "must be greater than zero"),
        (spec_of(VOLUME, capacity={"storage": "much"}), "spec.capacity[storage]", "Invalid value"),
        (spec_of(VOLUME, accessModes=["Mine"]), "spec.accessModes", "Unsupported value"),
        (spec_of(VOLUME, hostPath={"path": "/a/../b"}), "spec.hostPath.path", "must not contain '..'"),
        (spec_of(VOLUME, hostPath=None, local={"path": "/a"}), "spec.nodeAffinity", "requires node affinity"),
        (spec_of(VOLUME, hostPath=None, csi={"driver": "d"}), "spec.csi.volumeHandle", "Required value"),
        (spec_of(VOLUME, accessModes="ReadWriteOnce"), "spec.accessModes", "expected"),
        ({**VOLUME, "metadata": {}}, "metadata.name", "Required value"),
        ({**VOLUME, "metadata": {"name": "a", "namespace": "b"}}, "metadata.namespace", "not allowed on this type"),
        ({**VOLUME, "apiVersion": "v2"}, "apiVersion", 'expected "v1", got "v2"'),
        (spec_of(CLAIM, resources=None), "spec.resources[storage]", "Required value"),
        (spec_of(CLAIM, accessModes=[]), "spec.accessModes", "at least 1 access mode"),
        (spec_of(CLAIM, dataSource={"kind": "PersistentVolumeClaim", "name": "b"}), "spec.dataSource", "fills no volumes"),
        (spec_of(DRIVER, attachRequired=True), "spec.attachRequired", "attaches no volumes"),
        (spec_of(DRIVER, tokenRequests=[{"audience": "a"}]), "spec.tokenRequests", "has no tokens"),
        (spec_of(DRIVER, fsGroupPolicy="Maybe"), "spec.fsGroupPolicy", "Unsupported value"),
        (
            spec_of(VOLUME, hostPath=None, csi={"driver": "d", "volumeHandle": "h", "nodeStageSecretRef": {"name": "s"}}),
            "spec.csi.nodeStageSecretRef",
            "has no Secrets",
        ),
        (list_of(VOLUME, spec_of(CLAIM, resources=None)), "items[1].spec.resources[storage]", "Required value"),
        (list_of({"kind": "Secret"}), "items[0].kind", 'got "Secret"'),
    ],
)  # fmt: skip
def test_a_wrong_manifest_is_refused_by_field(document: dict[str, Any], path: str, reason: str) -> None:
    problems = decode(document)
    assert all(isinstance(problem, ManifestProblem) and problem.origin == "/m/data.yaml" for problem in problems)
    assert any(problem.field_path == path and reason in problem.reason for problem in problems), problems


@pytest.mark.parametrize("document", [VOLUME, CLAIM, DRIVER], ids=lambda document: str(document["kind"]))
def test_a_node_with_an_api_server_refuses_objects_and_names_where_they_belong(document: dict[str, Any]) -> None:
    (wrong,) = decode(document, ManifestRules("node-1"))
    kind = document["kind"]
    assert wrong.field_path == "kind"
    assert wrong.reason == f'expected "Pod", got "{kind}"; the API server has such objects: create it there'


def test_only_a_node_without_an_api_server_has_static_pods_with_claims() -> None:
    (pod,) = decode(POD)
    assert isinstance(pod, core.Pod)
    (wrong,) = decode(POD, ManifestRules("node-1"))
    assert wrong.reason.startswith("static pods may not reference persistentvolumeclaims; only a node without")


def test_an_unknown_field_is_ignored_with_a_remark() -> None:
    found, remark = decode(spec_of(VOLUME, capacty={"storage": "5Gi"}))
    assert found == only_object(VOLUME)
    assert (remark.origin, remark.field_path) == ("/m/data.yaml", "spec.capacty")
    assert remark.reason == 'unknown field, ignored; did you mean "capacity"?'
