"""The claims and persistent volumes of manifests as plain values for JSON, on a node without an API server. Pure."""

from __future__ import annotations

from typing import Any

from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.model.content import Content, Present

Document = dict[str, Any]


def claim_documents(content: Content) -> list[Document]:
    """`[{"claim", "volume", "size", "problem"}]`: claims by name, and after them volumes without a claim.

    `claim`: `namespace/name`, "" for a volume without one. `problem`: why a claim has no volume.
    """
    if not content.has_manifests:
        return []
    claims, free = [], []
    for key, found in sorted(content.objects.items()):
        name = f"{key.namespace}/{key.name}" if key.namespace else ""
        match found:
            case Present(PersistentVolumeClaim() as claim):
                size = claim.status.capacity.get("storage", "") if claim.status is not None else ""
                claims.append(_document(name, claim.spec.volumeName, str(size)))
            case Present(PersistentVolume() as volume):
                if volume.status is None or volume.status.phase != "Bound":
                    free.append(_document("", key.name, str(volume.spec.capacity.get("storage", ""))))
            case Present():
                pass
            case _ if key.namespace:
                claims.append(_document(name, problem=found.message))
    return [*claims, *free]


def _document(claim: str, volume: str = "", size: str = "", problem: str = "") -> Document:
    return {"claim": claim, "volume": volume, "size": size, "problem": problem}
