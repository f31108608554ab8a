"""The kinds beside pods: what is stored, and which changes are refused. All messages are those of an API server 1.36.

The same for many more objects, compared with a real one: tests/cluster/test_local_api_strategies.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from local_api.strategies.cases import CASES
from local_api.strategies.stored import ADMIN, NODE, StoredObjects, kind_of

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.classes import system_priority_classes
from pykubelet_local_api.strategies.strategy import Context
from pykubelet_local_api.strategies.table import strategy_of
from pykubelet_local_api.view import RequestUser


@pytest.fixture
def stored() -> StoredObjects:
    """One namespace."""
    found = StoredObjects()
    found.namespace("ns")
    return found


@pytest.mark.parametrize("case", [case for group in CASES.values() for case in group], ids=lambda case: case.plural)
def test_a_stored_object_is_stored_again_unchanged(stored: StoredObjects, case: Any) -> None:
    """Defaults are there once: a client that writes back what it read changes nothing."""
    kind = kind_of(case.plural)
    place, name = ("ns" if kind.is_namespaced else ""), case.body["metadata"]["name"]
    try:
        found = stored.create(case.plural, case.body, place)
    except StatusError:
        return
    assert stored.update(case.plural, name, {}, place) == found


def test_every_kind_has_a_strategy(stored: StoredObjects) -> None:
    for kind in KINDS:
        assert strategy_of(kind).name_errors("a") == []


@pytest.mark.parametrize(
    ("data", "changed", "message"),
    [
        ({"data": {"a": "b"}}, {"data": {"a": "c"}}, "data: Forbidden: field is immutable when `immutable` is set"),
        ({}, {"immutable": False}, "immutable: Forbidden: field is immutable when `immutable` is set"),
        ({}, {"metadata": {"labels": {"a": "b"}}}, ""),
    ],
)
def test_an_immutable_config_map(stored: StoredObjects, data: Json, changed: Json, message: str) -> None:
    stored.create("configmaps", {"metadata": {"name": "a"}, "immutable": True, **data}, "ns")
    refused = f'ConfigMap "a" is invalid: {message}' if message else ""
    assert stored.change_refusal("configmaps", "a", changed, "ns") == refused


def test_a_secret_has_its_text_encoded(stored: StoredObjects) -> None:
    found = stored.create("secrets", {"metadata": {"name": "a"}, "stringData": {"a": "b"}, "data": {"c": "ZA=="}}, "ns")
    assert (found["data"], found["type"], "stringData" in found) == ({"a": "Yg==", "c": "ZA=="}, "Opaque", False)
    assert stored.refusal("secrets", {"metadata": {"name": "b"}, "data": {"a": "***"}}, "ns") == (
        'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 0'
    )
    assert stored.change_refusal("secrets", "a", {"type": "x"}, "ns") == (
        'Secret "a" is invalid: type: Invalid value: "x": field is immutable'
    )


def test_services_have_addresses_of_their_own(stored: StoredObjects) -> None:
    def service(name: str, **fields: Any) -> Json:
        return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **fields}}

    given = [stored.create("services", service(f"s{i}", type="NodePort"), "ns")["spec"] for i in range(20)]
    addresses = {spec["clusterIP"] for spec in given}
    ports = {spec["ports"][0]["nodePort"] for spec in given}
    assert len(addresses) == len(ports) == 20
    assert all(address.startswith("10.96.") and not address.startswith("10.96.0.") for address in addresses)
    assert all(30000 <= port <= 32767 for port in ports)
    taken = given[0]["clusterIP"]
    assert stored.refusal("services", service("x", clusterIP=taken), "ns") == (
        f'Service "x" is invalid: spec.clusterIPs: Invalid value: ["{taken}"]: '
        f"failed to allocate IP {taken}: provided IP is already allocated"
    )
    port = given[1]["ports"][0]["nodePort"]
    clash = service("x", type="NodePort") | {"spec": {"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]}}
    assert "provided port is already allocated" in stored.refusal("services", clash, "ns")


def test_a_service_keeps_its_address(stored: StoredObjects) -> None:
    """A patch of the older field alone, which leaves the newer one as it is."""
    stored.create("services", {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}, "ns")
    assert stored.change_refusal("services", "s", {"spec": {"clusterIP": "10.96.200.1"}}, "ns") == (
        'Service "s" is invalid: spec.clusterIPs[0]: Invalid value: ["10.96.200.1"]: may not change once set'
    )
    both = {
        "metadata": {"name": "t"},
        "spec": {"ports": [{"port": 80}], "clusterIP": "10.96.9.1", "clusterIPs": ["10.96.9.2"]},
    }
    assert "first value must match `clusterIP`" in stored.refusal("services", both, "ns")


def test_one_port_number_of_a_node_for_two_protocols(stored: StoredObjects) -> None:
    ports = [{"port": 53, "name": "u", "protocol": "UDP"}, {"port": 53, "name": "t"}]
    spec = stored.create("services", {"metadata": {"name": "dns"}, "spec": {"type": "NodePort", "ports": ports}}, "ns")[
        "spec"
    ]
    assert spec["ports"][0]["nodePort"] == spec["ports"][1]["nodePort"]


def test_claims_get_the_default_class_and_a_finalizer(stored: StoredObjects) -> None:
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    stored.create(
        "storageclasses.storage.k8s.io",
        {"metadata": {"name": "fast", **default}, "provisioner": "a.b", "allowVolumeExpansion": True},
    )
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    found = stored.create("persistentvolumeclaims", {"metadata": {"name": "a"}, "spec": spec}, "ns")
    assert found["spec"]["storageClassName"] == "fast"
    assert found["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    without = stored.create(
        "persistentvolumeclaims", {"metadata": {"name": "b"}, "spec": spec | {"storageClassName": ""}}, "ns"
    )
    assert without["spec"]["storageClassName"] == ""


def test_a_bound_claim_grows_if_its_class_allows_it(stored: StoredObjects) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "sc"}
    stored.create("storageclasses.storage.k8s.io", {"metadata": {"name": "sc"}, "provisioner": "a.b"})
    stored.create("persistentvolumeclaims", {"metadata": {"name": "a"}, "spec": spec}, "ns")
    larger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    assert "spec is immutable after creation" in stored.change_refusal("persistentvolumeclaims", "a", larger, "ns")
    stored.update("persistentvolumeclaims", "a", {"spec": {"volumeName": "v"}}, "ns")
    stored.update(
        "persistentvolumeclaims", "a", {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}, "ns", "status"
    )
    assert stored.change_refusal("persistentvolumeclaims", "a", larger, "ns") == (
        'persistentvolumeclaims "a" is forbidden: only dynamically provisioned pvc can be resized and '
        "the storageclass that provisions the pvc must support resize"
    )
    stored.update("storageclasses.storage.k8s.io", "sc", {"allowVolumeExpansion": True})
    assert stored.change_refusal("persistentvolumeclaims", "a", larger, "ns") == ""
    smaller = {"spec": {"resources": {"requests": {"storage": "0.5Gi"}}}}
    assert "field can not be less than status.capacity" in stored.change_refusal(
        "persistentvolumeclaims", "a", smaller, "ns"
    )


def test_a_new_node_is_tainted_until_it_is_ready(stored: StoredObjects) -> None:
    found = stored.create("nodes", {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "0.5"}}}, user=NODE)
    assert found["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    assert found["status"]["allocatable"] == {"cpu": "500m"}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"metadata": {"labels": {"node-restriction.kubernetes.io/x": "1"}}},
         "is not allowed to modify labels: node-restriction.kubernetes.io/x"),
        ({"metadata": {"labels": {"kubernetes.io/foo": "1"}}}, "is not allowed to modify labels: kubernetes.io/foo"),
        ({"metadata": {"labels": {"node-role.kubernetes.io/foo": "1"}}},
         "is not allowed to modify labels: node-role.kubernetes.io/foo"),
        ({"spec": {"taints": []}}, 'node "n1" is not allowed to modify taints'),
        ({"metadata": {"labels": {"foo": "1", "kubernetes.io/os": "linux"}}}, ""),
    ],
)  # fmt: skip
def test_a_node_changes_some_labels_of_its_own(stored: StoredObjects, patch: Json, message: str) -> None:
    stored.create("nodes", {"metadata": {"name": "n1"}}, user=NODE)
    refused = f'nodes "n1" is forbidden: {message}' if message else ""
    assert stored.change_refusal("nodes", "n1", patch, user=NODE) == refused
    assert stored.change_refusal("nodes", "n1", patch, user=ADMIN) == ""


@pytest.mark.parametrize(
    ("plural", "namespace", "name", "message"),
    [
        ("nodes", "", "n2", 'nodes "n2" is forbidden: node "n1" is not allowed to modify node "n2"'),
        ("leases.coordination.k8s.io", "kube-node-lease", "n2", 'leases.coordination.k8s.io "n2" is forbidden: '
         "can only access node lease with the same name as the requesting node"),
        ("csinodes.storage.k8s.io", "", "n2",
         'csinodes.storage.k8s.io "n2" is forbidden: '
         "can only access CSINode with the same name as the requesting node"),
        ("leases.coordination.k8s.io", "kube-node-lease", "n1", ""),
    ],
)  # fmt: skip
def test_a_node_writes_its_own_objects(
    stored: StoredObjects, plural: str, namespace: str, name: str, message: str
) -> None:
    stored.namespace("kube-node-lease")
    assert stored.refusal(plural, {"metadata": {"name": name}, "spec": {}}, namespace, NODE) == message


def test_a_namespace_has_its_name_as_a_label(stored: StoredObjects) -> None:
    found = stored.create("namespaces", {"metadata": {"name": "a"}})
    assert found["metadata"]["labels"] == {"kubernetes.io/metadata.name": "a"}
    assert (found["spec"], found["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})
    assert stored.update("namespaces", "a", {"spec": {"finalizers": []}}, "", "finalize")["spec"]["finalizers"] == []
    strategy = strategy_of(kind_of("namespaces"))
    with pytest.raises(StatusError, match='namespaces "default" is forbidden: this namespace may not be deleted'):
        strategy.prepare_delete({"metadata": {"name": "default"}}, Context(stored, ADMIN))
    going = {"metadata": {"name": "a"}}
    strategy.prepare_delete(going, Context(stored, ADMIN))
    assert going["status"] == {"phase": "Terminating"}


def test_the_classes_of_the_system_are_valid_and_stay(stored: StoredObjects) -> None:
    for found in system_priority_classes():
        stored.create("priorityclasses.scheduling.k8s.io", found)
    pod = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "x"}], "priorityClassName": "system-node-critical"},
    }
    assert stored.create("pods", pod, "ns")["spec"]["priority"] == 2_000_001_000
    strategy = strategy_of(kind_of("priorityclasses.scheduling.k8s.io"))
    with pytest.raises(StatusError, match="this is a system priority class and cannot be deleted"):
        strategy.prepare_delete({"metadata": {"name": "system-node-critical"}}, Context(stored, ADMIN))


def test_pods_without_a_class_get_the_default_one(stored: StoredObjects) -> None:
    stored.create(
        "priorityclasses.scheduling.k8s.io", {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True}
    )
    second = {"metadata": {"name": "other"}, "value": 8, "globalDefault": True}
    assert "Only one default can exist" in stored.refusal("priorityclasses.scheduling.k8s.io", second)
    spec = stored.create(
        "pods", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}, "ns"
    )["spec"]
    assert (spec["priority"], spec["priorityClassName"]) == (7, "usual")


def test_a_signing_request_is_by_its_client(stored: StoredObjects) -> None:
    user = RequestUser("bob", ("b", "a"), "7", {"k": ("v",)})
    pem = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K"
    spec = {"request": pem, "signerName": "a.b/c", "usages": ["client auth"], "username": "eve", "groups": ["root"]}
    found = stored.create(
        "certificatesigningrequests.certificates.k8s.io", {"metadata": {"name": "r"}, "spec": spec}, user=user
    )
    assert {key: found["spec"][key] for key in ("username", "groups", "uid", "extra")} == {
        "username": "bob", "groups": ["b", "a"], "uid": "7", "extra": {"k": ["v"]},
    }  # fmt: skip

    def change(subresource: str, *conditions: Json) -> str:
        patch = {"status": {"conditions": list(conditions)}}
        return stored.change_refusal("certificatesigningrequests.certificates.k8s.io", "r", patch, "", subresource)

    approved = {"type": "Approved", "status": "True"}
    assert 'updates may not add a condition of type "Approved"' in change("status", approved)
    assert change("approval", approved) == ""
    assert 'updates may not remove a condition of type "Approved"' in change("approval")


def test_events_of_both_groups(stored: StoredObjects) -> None:
    old = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "ns"}, "reason": "r"}
    found = stored.create("events", old, "ns")
    assert (found["source"], found["eventTime"], found["reportingComponent"]) == ({}, None, "")
    assert stored.refusal("events.events.k8s.io", old, "ns") == (
        'Event.events.k8s.io "e" is invalid: [eventTime: Required value, type: Invalid value: "": has invalid value: ]'
    )
