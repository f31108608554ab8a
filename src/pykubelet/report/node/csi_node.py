"""Creates the node's CSINode object and keeps its owner and annotation.

Owns: the object, its owner and the annotation; its drivers are not changed. Reads: `ApiNode`. It is created when the Node
is registered, and checked again for every new Node of the name.
Source: the Kubernetes documentation "CSINode"; KEP-625 (in-tree storage plugins to CSI) for the annotation.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pykubelet.base.api.storage import CSINode
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.log import Log
from pykubelet.base.model.node import ApiNode
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError

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


async def keep_csi_node(client: ApiClient, name: str, node: Cell[ApiNode]) -> None:
    """Keep the CSINode of the node `name`. Never returns."""
    owner, failures = "", 0
    while True:
        found = await _other_node(node, owner)
        try:
            await _ensure(client, name, found.uid)
        except ApiError as error:
            if not failures:
                log.warning("the node's CSINode cannot be made", error=error, status=error.status or None)
            failures += 1
            await asyncio.sleep(max(_BACKOFF.delay_s(failures), error.retry_after_s or 0.0))
        else:
            owner, failures = found.uid, 0


async def _other_node(node: Cell[ApiNode], known: str) -> ApiNode:
    return await node.wait_for(lambda now: now.registered and now.uid != known)


async def _ensure(client: ApiClient, name: str, uid: str) -> None:
    owners = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]
    annotations = {MIGRATED: ",".join(MIGRATED_PLUGINS)}
    metadata: dict[str, Any] = {"name": name, "annotations": annotations, "ownerReferences": owners}
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": metadata, "spec": {"drivers": []}}
    try:
        await client.create(CSI_NODES, body, CSINode)
    except ApiError as error:
        if not error.already_exists:
            raise
    else:
        return
    path = f"{CSI_NODES}/{name}"
    found = (await client.get(path, CSINode)).metadata
    is_ours = [owner.uid for owner in found.ownerReferences] == [uid]
    if not is_ours or found.annotations.get(MIGRATED) != annotations[MIGRATED]:
        await client.patch(path, {"metadata": metadata}, PatchKind.MERGE, CSINode)
