"""VolumeAttachments of CSI volumes: read while the Node lists the volume as attached, and polled until it is."""

from __future__ import annotations

import asyncio

import pytest
from provide.objects.stand import Stand, stand

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.model.attachments import attachment_key, unique_csi_name
from pykubelet.base.model.content import Unreadable
from pykubelet.base.model.node import ApiNode

pytestmark = pytest.mark.virtual_time
DRIVER, HANDLE = "csi.example.com", "pvc-1"
KEY = attachment_key(HANDLE, DRIVER, "n")
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
POD = {
    "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
    "spec": {
        "nodeName": "n",
        "containers": [{"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}


def begin(s: Stand) -> None:
    """A pod with a claim that is bound to a CSI volume, whose driver needs to attach it."""
    claim = {"metadata": {"name": "data"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}
    uid = s.server.create("/api/v1/namespaces/shop/persistentvolumeclaims", claim)["metadata"]["uid"]
    volume = {"claimRef": {"uid": uid}, "csi": {"driver": DRIVER, "volumeHandle": HANDLE}}
    s.server.create("/api/v1/persistentvolumes", {"metadata": {"name": "pv"}, "spec": volume})
    s.server.create("/apis/storage.k8s.io/v1/csidrivers", {"metadata": {"name": DRIVER}, "spec": {}})
    s.want(from_object(Pod, POD))


def list_attached(s: Stand, *volumes: str) -> None:
    s.node.publish(ApiNode(True, volumes_attached=dict.fromkeys(volumes, "")))


async def test_an_attachment_is_read_once_the_node_lists_its_volume_until_it_does_not() -> None:
    async with stand() as s:
        begin(s)
        s.server.create(ATTACHMENTS, {"metadata": {"name": KEY.name}, "status": {"attached": True}})
        await s.until_server(lambda: s.server.count("GET", "persistentvolumes/pv"))
        list_attached(s, unique_csi_name(DRIVER, "other"), "kubernetes.io/iscsi/1:2:3")
        await asyncio.sleep(20)
        assert s.server.count("GET", ATTACHMENTS) == 0
        list_attached(s, unique_csi_name(DRIVER, HANDLE))
        assert (await s.value(KEY)).status.attached
        assert s.server.count("GET", ATTACHMENTS) == 1
        list_attached(s)
        await s.until(lambda content: KEY not in content.objects)
        await asyncio.sleep(300)
        assert s.server.count("GET", ATTACHMENTS) == 1


async def test_an_attachment_that_is_not_attached_is_read_again_with_growing_pauses() -> None:
    async with stand() as s:
        begin(s)
        s.server.create(ATTACHMENTS, {"metadata": {"name": KEY.name}, "status": {"attached": False}})
        list_attached(s, unique_csi_name(DRIVER, HANDLE))
        assert not (await s.value(KEY)).status.attached
        await asyncio.sleep(60)
        assert 20 < s.server.count("GET", ATTACHMENTS) < 50
        s.server.update(f"{ATTACHMENTS}/{KEY.name}", lambda found: found["status"].update(attached=True))
        async with asyncio.timeout(60 / 5 * 1.25 + 1):
            await s.value(KEY, lambda value: value.status.attached)
        count = s.server.count("GET", ATTACHMENTS)
        await asyncio.sleep(50)
        assert s.server.count("GET", ATTACHMENTS) == count


async def test_an_attachment_that_cannot_be_read_is_reported_after_a_while() -> None:
    async with stand() as s:
        begin(s)
        list_attached(s, unique_csi_name(DRIVER, HANDLE))
        found = await s.found(KEY)
        assert not isinstance(found, Unreadable) and "not found" in str(found)
