"""Claims and volumes find each other, part, and are protected while they are used."""

from __future__ import annotations

from typing import Any

import pytest
from local_api.reconcile.world import World, thing

from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.binding import binding
from pykubelet_local_api.reconcile.changes import annotation_of
from pykubelet_local_api.reconcile.claims import PROVISIONERS, VOLUME_CLAIMS
from pykubelet_local_api.reconcile.protection import PROTECTION

BINDING = binding()


def claim(name: str = "c", storage_class: str | None = "", size: str = "1Gi", **spec: Any) -> Json:
    fields: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}} | spec
    if storage_class is not None:
        fields["storageClassName"] = storage_class
    return thing("PersistentVolumeClaim", name, "ns", spec=fields, status={"phase": "Pending"})


def volume(name: str, size: str = "1Gi", storage_class: str = "", **spec: Any) -> Json:
    fields: Json = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    return thing("PersistentVolume", name, spec=fields | spec, status={"phase": "Pending"})


def storage_class(name: str, mode: str = "Immediate", *, default: bool = False, provisioner: str = "ex.com/p") -> Json:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    fields = {"provisioner": provisioner, "volumeBindingMode": mode}
    return thing("StorageClass", name, "", "storage.k8s.io/v1", metadata={"annotations": annotations}, **fields)


def get(world: World, resource: str, name: str) -> Json:
    found = world.get(resource, "ns" if resource == "persistentvolumeclaims" else "", name)
    assert found is not None
    return found


def phases(world: World) -> dict[str, str]:
    found = [*world.list("persistentvolumeclaims"), *world.list("persistentvolumes")]
    return {item["metadata"]["name"]: item["status"]["phase"] for item in found}


def events(world: World) -> list[tuple[str, str, str]]:
    return [(event["type"], event["reason"], event["message"]) for event in world.list("events")]


def test_a_claim_gets_the_smallest_volume_that_is_large_enough() -> None:
    world = World(claim(size="2Gi"), volume("small", "1Gi"), volume("fit", "3Gi"), volume("large", "9Gi"))
    world.settle(VOLUME_CLAIMS)
    assert phases(world) == {"c": "Bound", "fit": "Bound", "large": "Available", "small": "Available"}
    found = get(world, "persistentvolumeclaims", "c")
    assert found["spec"]["volumeName"] == "fit"
    assert found["status"]["capacity"] == {"storage": "3Gi"}
    assert found["metadata"]["annotations"] == {
        "pv.kubernetes.io/bind-completed": "yes",
        "pv.kubernetes.io/bound-by-controller": "yes",
    }


def test_two_claims_do_not_get_one_volume() -> None:
    world = World(claim("a"), claim("b"), volume("v"))
    world.settle(VOLUME_CLAIMS)
    assert phases(world) == {"a": "Bound", "b": "Pending", "v": "Bound"}


@pytest.mark.parametrize(
    "spec",
    [
        {"storageClassName": "other"},
        {"accessModes": ["ReadOnlyMany"]},
        {"volumeMode": "Block"},
        {"claimRef": {"namespace": "ns", "name": "another"}},
    ],
)
def test_a_volume_that_does_not_satisfy_is_not_taken(spec: Json) -> None:
    world = World(claim(), volume("v") | {"spec": volume("v")["spec"] | spec})
    world.settle(VOLUME_CLAIMS)
    assert phases(world) == {"c": "Pending", "v": "Available"}


def test_a_selector_chooses_by_labels() -> None:
    labeled = volume("z-labeled")
    labeled["metadata"]["labels"] = {"disk": "fast"}
    world = World(claim(selector={"matchLabels": {"disk": "fast"}}), volume("a"), labeled)
    world.settle(VOLUME_CLAIMS)
    assert get(world, "persistentvolumeclaims", "c")["spec"]["volumeName"] == "z-labeled"


def test_a_reserved_volume_goes_to_its_claim_and_names_stay_the_users() -> None:
    reserved = volume("v", "9Gi", claimRef={"namespace": "ns", "name": "c"})
    world = World(claim(), volume("small"), reserved)
    world.settle(VOLUME_CLAIMS)
    assert phases(world) == {"c": "Bound", "small": "Available", "v": "Bound"}
    assert annotation_of(get(world, "persistentvolumes", "v"), "pv.kubernetes.io/bound-by-controller") == ""


def test_a_claim_that_names_a_volume_gets_it_or_reports_why_not() -> None:
    world = World(claim(volumeName="v", size="5Gi"), volume("v", "1Gi"))
    world.settle(VOLUME_CLAIMS)
    assert phases(world)["c"] == "Pending"
    assert events(world) == [
        ("Warning", "VolumeMismatch", 'Cannot bind to requested volume "v": requested PV is too small')
    ]
    world = World(claim(volumeName="v"), volume("v", "1Gi"))
    world.settle(VOLUME_CLAIMS)
    assert phases(world) == {"c": "Bound", "v": "Bound"}


WAITING = (
    "Waiting for a volume to be created either by the external provisioner 'ex.com/p' or manually by the system administrator. "
    "If volume creation is delayed, please verify that the provisioner is running and correctly registered."
)


def provisioned(world: World, name: str = "c") -> None:
    """What a provisioner does."""
    found = get(world, "persistentvolumeclaims", name)
    reference = {"kind": "PersistentVolumeClaim", "namespace": "ns", "name": name, "uid": found["metadata"]["uid"]}
    made = volume(f"pvc-{name}", storage_class="fast", claimRef=reference, persistentVolumeReclaimPolicy="Delete")
    made["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": "ex.com/p"}
    world.add(made)


def test_a_volume_is_provisioned_bound_and_released() -> None:
    world = World(claim(storage_class="fast"), storage_class("fast"))
    world.settle(VOLUME_CLAIMS)
    found = get(world, "persistentvolumeclaims", "c")
    assert all(annotation_of(found, key) == "ex.com/p" for key in PROVISIONERS)
    assert events(world) == [("Normal", "ExternalProvisioning", WAITING)]
    provisioned(world)
    world.settle(VOLUME_CLAIMS)
    assert phases(world) == {"c": "Bound", "pvc-c": "Bound"}
    world.remove("persistentvolumeclaims", "ns", "c")
    world.settle(VOLUME_CLAIMS)
    assert phases(world) == {"pvc-c": "Released"}, "its provisioner deletes it"


def test_the_default_class_is_given_to_claims_without_one() -> None:
    world = World(claim(storage_class=None), storage_class("fast", default=True), storage_class("other"))
    world.settle(VOLUME_CLAIMS)
    assert get(world, "persistentvolumeclaims", "c")["spec"]["storageClassName"] == "fast"


@pytest.mark.parametrize(
    ("wanted", "event"),
    [
        (claim(), ("Normal", "FailedBinding", "no persistent volumes available for this claim and no storage class is set")),
        (claim(storage_class="x"), ("Warning", "ProvisioningFailed", 'storageclass.storage.k8s.io "x" not found')),
        (claim(storage_class="late"), ("Normal", "WaitForFirstConsumer", "waiting for first consumer to be created before binding")),
    ],
)  # fmt: skip
def test_a_claim_without_a_volume_reports_why(wanted: Json, event: tuple[str, str, str]) -> None:
    world = World(wanted, storage_class("late", "WaitForFirstConsumer"))
    world.settle(VOLUME_CLAIMS)
    assert events(world) == [event]


def test_a_lost_volume_is_reported() -> None:
    world = World(claim(), volume("v"))
    world.settle(VOLUME_CLAIMS)
    world.remove("persistentvolumes", "", "v")
    world.settle(VOLUME_CLAIMS)
    assert phases(world) == {"c": "Lost"}
    assert events(world)[-1][1] == "ClaimLost"


def test_a_released_volume_without_a_provisioner_stays_or_fails() -> None:
    world = World(claim("a"), claim("b"), volume("keep"))
    world.settle(VOLUME_CLAIMS)
    world.add(volume("other", persistentVolumeReclaimPolicy="Delete"))
    world.settle(VOLUME_CLAIMS)
    world.remove("persistentvolumeclaims", "ns", "a")
    world.remove("persistentvolumeclaims", "ns", "b")
    world.settle(VOLUME_CLAIMS)
    assert phases(world) == {"keep": "Released", "other": "Failed"}


def test_a_pod_with_a_claim_that_waits_comes_to_its_volume_and_node() -> None:
    node = thing("Node", "n", status={"allocatable": {"pods": "10"}})
    spec = {"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
    world = World(node, claim(storage_class="fast"), storage_class("fast", "WaitForFirstConsumer"))
    world.add(thing("Pod", "p", "ns", spec=spec))
    world.settle(BINDING, VOLUME_CLAIMS, PROTECTION)
    provisioned(world)
    world.settle(BINDING, VOLUME_CLAIMS, PROTECTION)
    pod = world.get("pods", "ns", "p")
    assert pod is not None
    assert pod["spec"]["nodeName"] == "n"


def test_what_is_in_use_is_protected() -> None:
    spec = {"nodeName": "n", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
    world = World(claim(), volume("v"), thing("Pod", "p", "ns", spec=spec))
    world.settle(VOLUME_CLAIMS, PROTECTION)
    world.delete("persistentvolumeclaims", "ns", "c")
    world.delete("persistentvolumes", "", "v")
    world.settle(VOLUME_CLAIMS, PROTECTION)
    assert phases(world) == {"c": "Bound", "v": "Bound"}
    world.remove("pods", "ns", "p")
    world.settle(VOLUME_CLAIMS, PROTECTION)
    assert phases(world) == {}


def test_an_ephemeral_volume_has_a_claim_of_its_pod() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": claim()["spec"]}
    spec = {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]}
    world = World(thing("Pod", "p", "ns", spec=spec))
    world.settle(PROTECTION)
    found = get(world, "persistentvolumeclaims", "p-v")
    assert found["metadata"]["labels"] == {"a": "b"}
    assert found["metadata"]["ownerReferences"][0]["name"] == "p"


def test_a_claim_that_is_not_the_pods_is_not_used() -> None:
    template = {"spec": claim()["spec"]}
    spec = {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]}
    world = World(thing("Pod", "p", "ns", spec=spec), claim("p-v"))
    world.settle(PROTECTION)
    assert events(world) == [("Warning", "FailedBinding", "PVC ns/p-v was not created for pod ns/p (pod is not owner)")]
