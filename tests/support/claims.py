"""Claims that are bound to CSI volumes, and a stand-in for the controller that attaches volumes, at a scripted API server."""

from __future__ import annotations

import asyncio
from typing import Any

from support.agent import NODE_NAME, Json, make_container, make_pod
from support.csi import DRIVER
from support.world import World

from pykubelet.base.model.attachments import attachment_name, unique_csi_name

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
NODE = f"/api/v1/nodes/{NODE_NAME}"
WRITES = 'echo written >> /data/file; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'


def bind_claim(world: World, name: str, handle: str, *, source: Json | None = None, **spec: Any) -> str:
    """Create a claim, and the persistent volume `pv-<name>` that it is bound to. Returns the volume's name."""
    volume = f"pv-{name}"
    claim = {"metadata": {"name": name}, "spec": {"volumeName": volume}, "status": {"phase": "Bound"}}
    uid = world.server.create(CLAIMS, claim)["metadata"]["uid"]
    csi = {"driver": DRIVER, "volumeHandle": handle, **(source or {})}
    fields = {"accessModes": ["ReadWriteOnce"], "claimRef": {"uid": uid}, "csi": csi, **spec}
    world.server.create(VOLUMES, {"metadata": {"name": volume}, "spec": fields})
    return volume


def pod_with_claim(name: str, claim: str, script: str = WRITES, **spec: Any) -> Json:
    """A pod that has the claim's volume at `/data`."""
    container = make_container(script=script, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    return make_pod(name, container, volumes=[volume], **spec)


class Attacher:
    """Attaches volumes that the Node's status reports as in use, and detaches the others: what two controllers do in a cluster."""

    def __init__(self, world: World, *handles: str) -> None:
        self._world = world
        self._volumes = {unique_csi_name(DRIVER, handle): handle for handle in handles}
        self.wanted = set(self._volumes)
        #: What has happened, in order: `attached <handle>`, `detached <handle>`.
        self.log: list[str] = []

    async def run(self) -> None:
        """Follow the Node's status. Never returns."""
        while True:
            self.step()
            await asyncio.sleep(0.02)

    def step(self) -> None:
        """Attach and detach what is due."""
        node = self.node()
        if node is None:
            return
        in_use = set(node["status"].get("volumesInUse") or ())
        attached = {volume["name"] for volume in node["status"].get("volumesAttached") or ()}
        for name in sorted(self.wanted & in_use - attached):
            handle = self._volumes[name]
            body = {
                "metadata": {"name": attachment_name(handle, DRIVER, NODE_NAME)},
                "status": {"attached": True, "attachmentMetadata": {"path": f"/dev/{handle}"}},
            }
            self._world.server.create(ATTACHMENTS, body)
            self._report(attached | {name})
            attached.add(name)
            self.log.append(f"attached {handle}")
        for name in sorted(attached - self.wanted - in_use):
            handle = self._volumes[name]
            self._report(attached - {name})
            attached.discard(name)
            self._world.server.delete(f"{ATTACHMENTS}/{attachment_name(handle, DRIVER, NODE_NAME)}")
            self.log.append(f"detached {handle}")

    def node(self) -> Json | None:
        """The Node, None while there is none."""
        return self._world.node()

    def _report(self, attached: set[str]) -> None:
        listed = [{"name": name, "devicePath": ""} for name in sorted(attached)]
        self._world.server.update(f"{NODE}/status", lambda node: node["status"].update(volumesAttached=listed))
