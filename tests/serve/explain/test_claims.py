"""What `pykubelet explain node` shows of claims and volumes of manifests."""

from __future__ import annotations

from pykubelet.app.volumes_shown import claim_lines
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.model.content import Absent, Content, ContentKind, Found, ObjectKey, Present
from pykubelet.serve.explain.claims import Document, claim_documents


def test_claims_and_volumes_of_manifests_are_listed() -> None:
    claim: Document = {"spec": {"volumeName": "disk"}, "status": {"phase": "Bound", "capacity": {"storage": "5Gi"}}}
    volume: Document = {"spec": {"capacity": {"storage": "5Gi"}}, "status": {"phase": "Bound"}}
    other: Document = {"spec": {"capacity": {"storage": "9Gi"}}, "status": {"phase": "Available"}}
    objects: dict[ObjectKey, Found] = {
        ObjectKey(ContentKind.VOLUME, "", "free"): Present(from_object(PersistentVolume, other)),
        ObjectKey(ContentKind.VOLUME, "", "disk"): Present(from_object(PersistentVolume, volume)),
        ObjectKey(ContentKind.VOLUME_CLAIM, "default", "lost"): Absent("PVC is lost"),
        ObjectKey(ContentKind.VOLUME_CLAIM, "default", "data"): Present(from_object(PersistentVolumeClaim, claim)),
    }
    assert list(claim_lines(claim_documents(Content(objects=objects, has_manifests=True)))) == [
        "  default/data: PersistentVolume disk, 5Gi",
        "  default/lost: PVC is lost",
        "  PersistentVolume free, 9Gi: no claim has it",
    ]
    assert claim_documents(Content(objects=objects, available=True)) == []
