"""Manifests with ConfigMaps, Secrets, persistent volumes, claims and CSI drivers: what is taken, and what is wrong with the others."""

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


CONFIG_MAP: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings"},
    "data": {"mode": "fast"},
    "binaryData": {"logo": "AAEC"},
}
SECRET: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "login"},
    "data": {"user": "YWRtaW4="},
    "stringData": {"password": "hunter2"},
}
#: What no message may have in it.
HIDDEN = "hunter2"


def test_a_config_map_has_texts_and_bytes() -> None:
    found = only_object(CONFIG_MAP)
    assert found.key == ObjectKey(ContentKind.CONFIG_MAP, "default", "settings")
    assert isinstance(found.value, core.ConfigMap)
    assert (found.value.data, found.value.binaryData) == ({"mode": "fast"}, {"logo": b"\0\1\2"})


def test_a_secret_has_its_plain_texts_among_its_data() -> None:
    found = only_object({**SECRET, "stringData": {"password": HIDDEN, "user": "root"}})
    assert found.key == ObjectKey(ContentKind.SECRET, "default", "login")
    assert isinstance(found.value, core.Secret)
    assert found.value.data == {"user": b"root", "password": HIDDEN.encode()}
    assert (found.value.type, found.value.stringData) == ("Opaque", {})


def test_base64_may_have_several_lines() -> None:
    data = b"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata:\n  user: |\n    YWRt\n    aW4=\n"
    (found,) = decode_manifest(data, ORIGIN, ALONE)
    assert isinstance(found, ManifestObject)
    assert isinstance(found.value, core.Secret)
    assert found.value.data == {"user": b"admin"}


def test_the_repr_of_an_object_has_nothing_of_a_secret() -> None:
    assert HIDDEN not in repr(only_object(SECRET))


DOCKER = "kubernetes.io/dockerconfigjson"


@pytest.mark.parametrize(
    ("document", "path", "reason"),
    [
        ({**CONFIG_MAP, "data": {"a/b": "x"}}, "data[a/b]", "a valid config key must consist of"),
        ({**CONFIG_MAP, "data": {"..": "x"}}, "data[..]", "must not be '..'"),
        ({**CONFIG_MAP, "data": {"logo": "x"}}, "data[logo]", "duplicate of key present in binaryData"),
        ({**CONFIG_MAP, "data": {"port": 80}}, "data[port]", "expected string, got integer: text that looks so needs"),
        ({**CONFIG_MAP, "data": {"a": "x" * (1 << 20)}}, "data", "may not be more than 1048576 bytes"),
        ({**CONFIG_MAP, "data": {"a": "\u20ac" * 400_000}}, "data", "may not be more than 1048576 bytes"),
        ({**CONFIG_MAP, "data": {f"k{n}": "" for n in range(50_001)}}, "data", "must have at most 50000 items"),
        ({**CONFIG_MAP, "data": "fast"}, "data", "expected object, got string"),
        ({**CONFIG_MAP, "binaryData": {"logo": "a b"}}, "binaryData[logo]", "plain text belongs in data"),
        ({**CONFIG_MAP, "metadata": {}}, "metadata.name", "Required value"),
        ({**CONFIG_MAP, "metadata": {"name": "a", "namespace": "A"}}, "metadata.namespace", "Invalid value"),
        ({**CONFIG_MAP, "immutable": "yes"}, "immutable", "expected boolean"),
        ({**CONFIG_MAP, "apiVersion": "v2"}, "apiVersion", 'expected "v1"'),
        ({**SECRET, "data": {"password": HIDDEN}}, "data[password]", "expected base64 text; plain text belongs in stringData"),
        ({**SECRET, "data": {"password": 12345}}, "data[password]", "expected base64 text"),
        ({**SECRET, "stringData": {"password": 12345}}, "stringData[password]", "expected string, got integer"),
        ({**SECRET, "stringData": {"a b": HIDDEN}}, "data[a b]", "a valid config key must consist of"),
        ({**SECRET, "stringData": {"a": HIDDEN * 200_000}}, "data", "may not be more than 1048576 bytes"),
        ({**SECRET, "type": "kubernetes.io/tls"}, "data[tls.key]", "Required value"),
        ({**SECRET, "type": "kubernetes.io/ssh-auth"}, "data[ssh-privatekey]", "Required value"),
        ({**SECRET, "type": DOCKER}, "data[.dockerconfigjson]", "Required value"),
        ({**SECRET, "type": DOCKER, "stringData": {".dockerconfigjson": HIDDEN}}, "data[.dockerconfigjson]", "redacted"),
        ({**SECRET, "type": "kubernetes.io/basic-auth", "data": {}, "stringData": {}}, "data[username]", "Required value"),
        ({**SECRET, "type": "kubernetes.io/service-account-token"}, "type", "issues no tokens"),
    ],
)  # fmt: skip
def test_what_config_maps_and_secrets_may_not_have(document: dict[str, Any], path: str, reason: str) -> None:
    problems = decode(document)
    assert all(isinstance(problem, ManifestProblem) for problem in problems)
    assert any(problem.field_path == path and reason in problem.reason for problem in problems), problems
    assert HIDDEN not in repr(problems)


@pytest.mark.parametrize(
    "text", ["!hunter2", "*hunter2", "'hunter2", '"hunter2\\q"', "{hunter2", "[hunter2", "@hunter2"]
)
@pytest.mark.parametrize("field", ["data", "stringData"])
def test_a_password_without_quotes_that_is_no_yaml_is_not_shown(field: str, text: str) -> None:
    data = f"apiVersion: v1\nkind: Secret\nmetadata: {{name: a}}\n{field}:\n  password: {text}\n".encode()
    problems = decode_manifest(data, ORIGIN, ALONE)
    assert all(isinstance(problem, ManifestProblem) for problem in problems)
    assert HIDDEN not in repr(problems)


def with_pod(**spec: Any) -> dict[str, Any]:
    return {**POD, "spec": {"containers": [{"name": "c", "image": "busybox:1"}], **spec}}


def with_env(**container: Any) -> dict[str, Any]:
    return with_pod(containers=[{"name": "c", "image": "busybox:1", **container}])


REFERRING = {
    "env": with_env(env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "k"}}}]),
    "secret-env": with_env(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "k"}}}]),
    "envFrom": with_env(envFrom=[{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}]),
    "configMap": with_pod(volumes=[{"name": "v", "configMap": {"name": "a"}}]),
    "secret": with_pod(volumes=[{"name": "v", "secret": {"secretName": "a"}}]),
    "projected": with_pod(
        volumes=[{"name": "v", "projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "b"}}]}}]
    ),
    "imagePullSecrets": with_pod(imagePullSecrets=[{"name": "a"}]),
    "csi": with_pod(volumes=[{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "a"}}}]),
}


@pytest.mark.parametrize("name", REFERRING)
def test_static_pods_may_refer_to_config_maps_and_secrets_without_an_api_server(name: str) -> None:
    (pod,) = decode(REFERRING[name])
    assert isinstance(pod, core.Pod)
    (wrong,) = decode(REFERRING[name], ManifestRules("node-1"))
    assert wrong.reason in ("static pods may not reference configmaps", "static pods may not reference secrets")


def test_service_accounts_stay_refused() -> None:
    (wrong,) = decode(with_pod(serviceAccountName="robot"))
    assert wrong.reason == (
        "static pods may not reference serviceaccounts; a node without an API server issues no tokens: leave spec.serviceAccountName out"
    )


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
        (spec_of(VOLUME, capacity={}), "spec.capacity", "Required value"),
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
            "spec.csi.nodeStageSecretRef.namespace",
            "Required value",
        ),
        (list_of(spec_of(CLAIM, resources=None)), "items[0].spec.resources[storage]", "Required value"),
        (list_of({"kind": "Service"}), "items[0].kind", '"Service" is ignored'),
        (list_of({"name": "a"}), "items[0].kind", "got nothing"),
        ({"apiVersion": "v1", "kind": "List"}, "items", "expected a list, got nothing"),
    ],
)  # fmt: skip
def test_a_wrong_manifest_is_refused_by_field(document: dict[str, Any], path: str, reason: str) -> None:
    problems = decode(document)
    assert all(isinstance(problem, ManifestProblem) and problem.origin == "/m/data.yaml" for problem in problems)
    assert any(problem.field_path == path and reason in problem.reason for problem in problems), problems


@pytest.mark.parametrize(
    "document", [VOLUME, CLAIM, DRIVER, CONFIG_MAP, SECRET], ids=lambda document: str(document["kind"])
)
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


def test_the_good_items_of_a_list_count() -> None:
    first, wrong, pod = decode(list_of(VOLUME, spec_of(CLAIM, resources=None), POD))
    assert (first.key.name, pod.metadata.name, wrong.field_path) == (
        "disk",
        "web-node-1",
        "items[1].spec.resources[storage]",
    )


def test_an_unknown_field_is_ignored_with_a_remark() -> None:
    found, remark = decode(spec_of(VOLUME, capacty={"storage": "5Gi"}))
    assert found == only_object(VOLUME)
    assert (remark.origin, remark.field_path) == ("/m/data.yaml", "spec.capacty")
    assert remark.reason == 'unknown field, ignored; did you mean "capacity"?'
