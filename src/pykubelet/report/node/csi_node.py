"""Keeps the node's CSINode object, and what the Node shows about CSI drivers.

Owns: the CSINode with its owner, annotation and drivers; of the Node, the annotation with the drivers' ids of this node, and
their topology labels. Reads: `ApiNode`, `Plugins`. Each change of them is sent at once (`plan_csi_node` decides what); a new
Node of the name gets all of it again.
Source: the Kubernetes documentation "CSINode"; KEP-625 (in-tree storage plugins to CSI) for the annotation.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pykubelet.base.api.core import Node
from pykubelet.base.api.storage import CSINode
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, set_on_change
from pykubelet.base.kit.log import Log
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.node.api_node import NODES
from pykubelet.report.node.plan_csi_node import Drivers, csi_drivers, plan_entries, plan_node

log = Log("node")
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
#: In-tree plugins whose volumes are now handled by CSI drivers.
MIGRATED_PLUGINS = (
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
)
_BACKOFF = BackoffPolicy(0.5, 30.0)


class CsiNodeKeeper:
    """Keeps the CSINode of the node `name`."""

    def __init__(self, client: ApiClient, name: str, node: Cell[ApiNode], plugins: Cell[Plugins]) -> None:
        self._client = client
        self._name = name
        self._node = node
        self._plugins = plugins
        self._sent: tuple[str, Drivers] = ("", {})
        self._seen: set[str] = set()
        self._collisions: dict[str, str] = {}

    async def run(self) -> None:
        """Send each change. Never returns."""
        changed, failures = asyncio.Event(), 0
        with set_on_change(changed, self._node, self._plugins):
            while True:
                changed.clear()
                node, drivers = self._node.get(), csi_drivers(self._plugins.get())
                if not node.registered or (node.uid, drivers) == self._sent:
                    await changed.wait()
                    continue
                self._seen.update(drivers)
                try:
                    await self._send(node.uid, drivers)
                except ApiError as error:
                    if not failures:
                        log.warning(
                            "the node's CSI drivers cannot be reported", error=error, status=error.status or None
                        )
                    failures += 1
                    await asyncio.sleep(max(_BACKOFF.delay_s(failures), error.retry_after_s or 0.0))
                else:
                    self._sent, failures = (node.uid, drivers), 0

    async def _send(self, uid: str, drivers: Drivers) -> None:
        gone = self._seen - drivers.keys()
        csi_node = await self._ensure(uid)
        if self._seen:
            drivers = await self._update_node(drivers, gone)
            await self._update_entries(csi_node, drivers, gone)

    async def _update_node(self, drivers: Drivers, gone: set[str]) -> Drivers:
        """Update annotation and labels of the Node. Returns the drivers whose topology agrees with it."""
        path = f"{NODES}/{self._name}"
        change = plan_node(await self._client.get(path, Node), drivers, gone)
        if change.patch:
            await self._client.patch(f"{path}/status", change.patch, PatchKind.STRATEGIC, Node)
        for name, problem in change.collisions.items():
            if self._collisions.get(name) != problem:
                log.warning("a CSI driver is left out of the Node and CSINode", driver=name, reason=problem)
        self._collisions = dict(change.collisions)
        return {name: info for name, info in drivers.items() if name not in change.collisions}

    async def _update_entries(self, csi_node: CSINode, drivers: Drivers, gone: set[str]) -> None:
        entries = plan_entries(csi_node.spec.drivers, drivers, gone | self._collisions.keys())
        if entries != csi_node.spec.drivers:
            version = {"resourceVersion": csi_node.metadata.resourceVersion}
            body = {"metadata": version, "spec": {"drivers": entries}}
            await self._client.patch(f"{CSI_NODES}/{self._name}", body, PatchKind.MERGE, CSINode)

    async def _ensure(self, uid: str) -> CSINode:
        """The CSINode, made if it is missing, with the right owner and annotation."""
        owners = [{"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": uid}]
        annotations = {MIGRATED: ",".join(MIGRATED_PLUGINS)}
        metadata: dict[str, Any] = {"name": self._name, "annotations": annotations, "ownerReferences": owners}
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": metadata, "spec": {"drivers": []}}
        path = f"{CSI_NODES}/{self._name}"
        if self._sent[0] != uid:
            try:
                return await self._client.create(CSI_NODES, body, CSINode)
            except ApiError as error:
                if not error.already_exists:
                    raise
        try:
            found = await self._client.get(path, CSINode)
        except ApiError as error:
            if not error.is_not_found:
                raise
            return await self._client.create(CSI_NODES, body, CSINode)
        is_ours = [owner.uid for owner in found.metadata.ownerReferences] == [uid]
        if is_ours and found.metadata.annotations.get(MIGRATED) == annotations[MIGRATED]:
            return found
        return await self._client.patch(path, {"metadata": metadata}, PatchKind.MERGE, CSINode)
