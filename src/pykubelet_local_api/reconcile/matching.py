"""Which PersistentVolume satisfies a claim. Pure.

Rules:
- A volume that is reserved for the claim (`claimRef`) comes first, if it is large enough.
- Else the smallest available volume with the claim's storage class, volume mode, access modes, labels and size. Equal ones are taken by
  name.
Source: the Kubernetes documentation "Persistent Volumes", binding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from operator import itemgetter

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import LabelSelector, NodeSelector
from pykubelet.base.api.labels import matches_selector
from pykubelet.base.model.claim_sizes import size_of
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.node_selector import matches_node_selector
from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of
from pykubelet_local_api.reconcile.changes import annotation_of, spec_of, status_of
from pykubelet_local_api.view import View

CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
FILESYSTEM = "Filesystem"


def class_of(found: Json) -> str:
    """The name of the storage class of a claim or a volume; "" for none."""
    return annotation_of(found, CLASS_ANNOTATION) or str(spec_of(found).get("storageClassName") or "")


def mode_of(found: Json) -> str:
    """The volume mode of a claim or a volume."""
    return str(spec_of(found).get("volumeMode") or FILESYSTEM)


def requested(claim: Json) -> int:
    """The size that a claim asks for, in bytes."""
    return size_of((spec_of(claim).get("resources") or {}).get("requests") or {})


def capacity(volume: Json) -> int:
    """The size of a volume, in bytes."""
    return size_of(spec_of(volume).get("capacity") or {})


def is_reserved_for(volume: Json, claim: Json) -> bool:
    """Whether the volume's `claimRef` names the claim; without a UID, by the name alone."""
    reference = spec_of(volume).get("claimRef")
    if not reference or (reference.get("namespace"), reference.get("name")) != (namespace_of(claim), name_of(claim)):
        return False
    return not reference.get("uid") or reference["uid"] == claim["metadata"].get("uid")


def reaches(volume: Json, node: Json) -> bool:
    """Whether the volume can be used on the node, by its node affinity."""
    required = (spec_of(volume).get("nodeAffinity") or {}).get("required")
    return not required or matches_node_selector(from_object(NodeSelector, required), node_view(node))


def node_view(node: Json) -> NodeView:
    """What selectors look at."""
    return NodeView(name_of(node), name_of(node), labels=node["metadata"].get("labels") or {})


def is_delayed(view: View, claim: Json) -> bool:
    """Whether the claim gets its volume only when a pod that uses it is scheduled."""
    found = view.get("storageclasses.storage.k8s.io", "", class_of(claim)) if class_of(claim) else None
    return found is not None and found.get("volumeBindingMode") == "WaitForFirstConsumer"


class VolumeIndex:
    """All volumes, so that a claim is compared with few: those reserved for it, and the free ones of its class and mode by their size."""

    def __init__(self, volumes: Iterable[Json]) -> None:
        self._reserved: dict[tuple[str, str], list[Json]] = {}
        free: dict[tuple[str, str], list[tuple[int, str, Json]]] = {}
        for volume in volumes:
            if is_deleting(volume):
                continue
            if reference := spec_of(volume).get("claimRef"):
                key = (reference.get("namespace") or "", reference.get("name") or "")
                self._reserved.setdefault(key, []).append(volume)
            elif status_of(volume).get("phase") == "Available":
                item = (capacity(volume), name_of(volume), volume)
                free.setdefault((class_of(volume), mode_of(volume)), []).append(item)
        self._free = {key: sorted(found, key=_size_and_name) for key, found in free.items()}

    def find(
        self, claim: Json, node: Json | None = None, taken: Collection[str] = (), *, reserved_only: bool = False
    ) -> Json | None:
        """The volume for a claim that has none; None: no volume satisfies it.

        `node`: it must be reached from this node. `taken`: names of volumes that other claims get. `reserved_only`: only one that is
        reserved for the claim.
        """
        size = requested(claim)
        for volume in self._reserved.get((namespace_of(claim), name_of(claim)), ()):
            if not is_reserved_for(volume, claim) or not _agrees(volume, claim) or capacity(volume) < size:
                continue
            if node is None or reaches(volume, node):
                return volume
        if reserved_only:
            return None
        free = self._free.get((class_of(claim), mode_of(claim)), [])
        for _, name, volume in free[bisect_left(free, size, key=itemgetter(0)) :]:
            if name in taken or not _agrees(volume, claim) or not _satisfies(volume, claim):
                continue
            if node is None or reaches(volume, node):
                return volume
        return None


def _size_and_name(item: tuple[int, str, Json]) -> tuple[int, str]:
    return item[:2]


def mismatch(volume: Json, claim: Json) -> str:
    """Why a volume that the claim names cannot be its volume; "" if it can."""
    if requested(claim) > capacity(volume):
        return "requested PV is too small"
    if class_of(volume) != class_of(claim):
        return "storageClassName does not match"
    if mode_of(volume) != mode_of(claim):
        return "incompatible volumeMode"
    return "" if has_access_modes(volume, claim) else "incompatible accessMode"


def has_access_modes(volume: Json, claim: Json) -> bool:
    """Whether the volume has all access modes of the claim."""
    offered = spec_of(volume).get("accessModes") or ()
    return all(mode in offered for mode in spec_of(claim).get("accessModes") or ())


def _agrees(volume: Json, claim: Json) -> bool:
    attributes = [str(spec_of(item).get("volumeAttributesClassName") or "") for item in (volume, claim)]
    return mode_of(volume) == mode_of(claim) and attributes[0] == attributes[1]


def _satisfies(volume: Json, claim: Json) -> bool:
    selector = spec_of(claim).get("selector")
    labels = volume["metadata"].get("labels") or {}
    if selector and not matches_selector(from_object(LabelSelector, selector), labels):
        return False
    return has_access_modes(volume, claim)
