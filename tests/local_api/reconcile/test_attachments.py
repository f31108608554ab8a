"""Volumes are attached while pods need them, and the Node's status lists them."""

from __future__ import annotations

from typing import Any

from local_api.reconcile.world import World, kinds_of, thing

from pykubelet.base.model.attachments import attachment_name
from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.attachments import ATTACHMENTS, VOLUME_ATTACHMENTS

UNIQUE = "kubernetes.io/csi/ex.com^h"
NAME = attachment_name("h", "ex.com", "n")


def world(**driver: Any) -> World:
    marks = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    found = World(
        thing("Node", "n", status={}),
        thing("PersistentVolume", "pv", spec={"csi": {"driver": "ex.com", "volumeHandle": "h"}}),
        thing("PersistentVolumeClaim", "c", "ns", metadata=marks, spec={"volumeName": "pv"}),
        thing("Pod", "p", "ns", spec={"nodeName": "n", "volumes": volumes}, status={"phase": "Pending"}),
    )
    if driver:
        found.add(thing("CSIDriver", "ex.com", "", "storage.k8s.io/v1", spec=driver))
    return found


def get(world: World, resource: str, name: str) -> Json:
    found = world.get(resource, "", name)
    assert found is not None
    return found


def attached(world: World) -> list[str]:
    return [item["name"] for item in get(world, "nodes", "n")["status"].get("volumesAttached", ())]


def in_use(world: World, *names: str) -> None:
    node = get(world, "nodes", "n")
    world.add(node | {"status": node["status"] | {"volumesInUse": list(names)}})


def test_a_volume_is_attached_listed_and_detached() -> None:
    there = world()
    there.settle(VOLUME_ATTACHMENTS)
    found = get(there, ATTACHMENTS, NAME)
    assert found["spec"] == {"attacher": "ex.com", "nodeName": "n", "source": {"persistentVolumeName": "pv"}}
    assert attached(there) == []
    there.add(found | {"status": {"attached": True}})
    there.settle(VOLUME_ATTACHMENTS)
    assert attached(there) == [UNIQUE]
    assert [event["reason"] for event in there.list("events")] == ["SuccessfulAttachVolume"]
    in_use(there, UNIQUE)
    there.remove("pods", "ns", "p")
    there.settle(VOLUME_ATTACHMENTS)
    assert attached(there) == [UNIQUE], "the agent still uses it"
    in_use(there)
    assert kinds_of(there.settle(VOLUME_ATTACHMENTS)) == [
        "status nodes n", f"delete {ATTACHMENTS} {NAME}",
    ]  # fmt: skip


def test_a_driver_that_does_not_attach_has_no_attachment() -> None:
    assert world(attachRequired=False).settle(VOLUME_ATTACHMENTS) == []


def test_a_failure_reaches_the_pod() -> None:
    there = world(attachRequired=True)
    there.settle(VOLUME_ATTACHMENTS)
    there.add(get(there, ATTACHMENTS, NAME) | {"status": {"attached": False, "attachError": {"message": "no"}}})
    there.settle(VOLUME_ATTACHMENTS)
    assert [event["message"] for event in there.list("events")] == ['AttachVolume.Attach failed for volume "pv" : no']


def test_other_kinds_count_as_attached_while_they_are_in_use() -> None:
    there = World(thing("Node", "n", status={}))
    in_use(there, "kubernetes.io/iscsi/target")
    there.settle(VOLUME_ATTACHMENTS)
    assert attached(there) == ["kubernetes.io/iscsi/target"]
    in_use(there)
    there.settle(VOLUME_ATTACHMENTS)
    assert attached(there) == []
