"""Sees to it that the node has its CSINode, which says what of the CSI is on it.

Owns: the object's being there, its owner and the annotation; the drivers in it are left as they are. Reads: `NodeView`. It is
made once the Node is registered, and looked at again for every new Node of the name.
Source: the Kubernetes documentation "CSINode"; KEP-625 (in-tree storage plugins to CSI) for the annotation.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pykubelet.base.api.storage import CSINode
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.log import Log
from pykubelet.base.model.node import NodeView
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError

log = Log("node")
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
#: In-tree plugins whose volumes are a CSI driver's by now.
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


async def keep_csi_node(client: ApiClient, node: Cell[NodeView]) -> None:
    """Never returns."""
    owner, failures = "", 0
    while True:
        view = await _other_node(node, owner)
        try:
            await _ensure(client, view)
        except ApiError as error:
            if not failures:
                log.warning("the node's CSINode cannot be made", error=error, status=error.status or None)
            failures += 1
            await asyncio.sleep(max(_BACKOFF.delay_s(failures), error.retry_after_s or 0.0))
        else:
            owner, failures = view.uid, 0


async def _other_node(node: Cell[NodeView], known: str) -> NodeView:
    return await node.wait_for(lambda view: view.registered and view.uid != known)


async def _ensure(client: ApiClient, node: NodeView) -> None:
    owners = [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}]
    annotations = {MIGRATED: ",".join(MIGRATED_PLUGINS)}
    metadata: dict[str, Any] = {"name": node.name, "annotations": annotations, "ownerReferences": owners}
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": metadata, "spec": {"drivers": []}}
    try:
        await client.create(CSI_NODES, body, CSINode)
    except ApiError as error:
        if not error.already_exists:
            raise
    else:
        return
    path = f"{CSI_NODES}/{node.name}"
    found = (await client.get(path, CSINode)).metadata
    is_ours = [owner.uid for owner in found.ownerReferences] == [node.uid]
    if not is_ours or found.annotations.get(MIGRATED) != annotations[MIGRATED]:
        await client.patch(path, {"metadata": metadata}, PatchKind.MERGE, CSINode)
