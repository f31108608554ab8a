"""PersistentVolumes and claims: defaults, protection, default class, and what may change. Pure.

Source: the Kubernetes documentation "Persistent Volumes" and "Admission Control" (DefaultStorageClass, PersistentVolumeClaimResize,
StorageObjectInUseProtection).
"""

from __future__ import annotations

from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.manifests.validation.errors import Errors, forbidden, invalid
from pykubelet.base.manifests.validation.storage import SOURCES, validate_claim, validate_volume
from pykubelet_local_api.errors import forbidden as refused
from pykubelet_local_api.objects import Json, timestamp
from pykubelet_local_api.strategies.common import (
    ObjectStrategy,
    canonical_amounts,
    immutable_errors,
    shown_name,
    struct_of,
)
from pykubelet_local_api.strategies.node_restriction import restrict_claim_status
from pykubelet_local_api.strategies.strategy import Context

VOLUME_FINALIZER = "kubernetes.io/pv-protection"
CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
CLASSES = "storageclasses.storage.k8s.io"
_DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_CLAIM_FIXED = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)
_OF_REGISTRY = ("metadata.name", "metadata.namespace")


class VolumeStrategy(ObjectStrategy):
    """The strategy of PersistentVolumes."""

    def first_status(self, new: Json, context: Context) -> Json | None:
        return {"phase": "Pending", "lastPhaseTransitionTime": timestamp(context.view.now)}

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        spec = new["spec"] = new.get("spec") or {}
        canonical_amounts(spec, "capacity")
        spec["volumeMode"] = spec.get("volumeMode") or "Filesystem"
        spec["persistentVolumeReclaimPolicy"] = spec.get("persistentVolumeReclaimPolicy") or "Retain"
        if spec.get("hostPath") is not None:
            spec["hostPath"].setdefault("type", "")

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        if old is None:
            add_finalizer(new, VOLUME_FINALIZER)

    def prepare_subresource(self, new: Json, old: Json, context: Context) -> None:
        super().prepare_subresource(new, old, context)
        status, before = new.setdefault("status", {}), old.get("status") or {}
        if status.get("phase") != before.get("phase") and status.get("lastPhaseTransitionTime") == before.get(
            "lastPhaseTransitionTime"
        ):
            status["lastPhaseTransitionTime"] = timestamp(context.view.now)

    def validate(self, new: Json, context: Context) -> Errors:
        found = validate_volume(struct_of(PersistentVolume, new, self.kind))
        return [error for error in found if error.path not in _OF_REGISTRY]

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        errors = self.validate(new, context)
        spec, before = new["spec"], old["spec"]
        if any((spec.get(source) or None) != (before.get(source) or None) for source in SOURCES):
            path = "spec.persistentvolumesource"
            errors.append(forbidden(path, f"{path} is immutable after creation"))
        errors += immutable_errors(spec["volumeMode"], before.get("volumeMode"), "volumeMode")
        if before.get("nodeAffinity") and spec.get("nodeAffinity") != before["nodeAffinity"]:
            detail = "field is immutable, except for updating from beta label to GA"
            errors.append(invalid("nodeAffinity", spec.get("nodeAffinity"), detail))
        return errors


class ClaimStrategy(ObjectStrategy):
    """The strategy of PersistentVolumeClaims."""

    def first_status(self, new: Json, context: Context) -> Json | None:
        return {"phase": "Pending"}

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        spec = new["spec"] = new.get("spec") or {}
        canonical_amounts(spec.setdefault("resources", {}), "requests", "limits")
        spec["volumeMode"] = spec.get("volumeMode") or "Filesystem"
        source = spec.get("dataSource")
        if source and not spec.get("dataSourceRef"):
            spec["dataSourceRef"] = dict(source)
        elif (reference := spec.get("dataSourceRef")) and not source and not reference.get("namespace"):
            spec["dataSource"] = {key: part for key, part in reference.items() if key != "namespace"}

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        if old is not None:
            return
        add_finalizer(new, CLAIM_FINALIZER)
        annotations = new["metadata"].get("annotations") or {}
        is_open = new["spec"].get("storageClassName") is None and _CLASS_ANNOTATION not in annotations
        if is_open and (found := default_class(context)):
            new["spec"]["storageClassName"] = found

    def prepare_subresource(self, new: Json, old: Json, context: Context) -> None:
        super().prepare_subresource(new, old, context)
        canonical_amounts(new.setdefault("status", {}), "capacity", "allocatedResources")
        restrict_claim_status(self.kind, new, old, context)

    def validate(self, new: Json, context: Context) -> Errors:
        found = validate_claim(struct_of(PersistentVolumeClaim, new, self.kind))
        return [error for error in found if error.path not in _OF_REGISTRY]

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        errors = self.validate(new, context)
        spec, before = new["spec"], old["spec"]
        is_bound = (old.get("status") or {}).get("phase") == "Bound"
        kept = dict(spec)
        if is_bound:
            kept["resources"] = before.get("resources") or {}
            kept["volumeAttributesClassName"] = before.get("volumeAttributesClassName")
        if before.get("volumeName") in (None, ""):
            kept["volumeName"] = before.get("volumeName")
        if before.get("storageClassName") is None and _CLASS_ANNOTATION not in (
            old["metadata"].get("annotations") or {}
        ):
            kept["storageClassName"] = None  # a class may be added to a claim without one
        if _given(kept) != _given(before):
            errors.append(forbidden("spec", _CLAIM_FIXED))
        errors += _shrink_errors(new, old) if is_bound else []
        if not errors and is_bound and _request(spec) != _request(before):
            self._admit_growth(new, context)
        return errors + immutable_errors(spec["volumeMode"], before.get("volumeMode"), "spec.volumeMode")

    def _admit_growth(self, new: Json, context: Context) -> None:
        """A claim grows only if its class allows it. Raises `StatusError` (403)."""
        name = str(new["spec"].get("storageClassName") or "")
        found = context.view.get(CLASSES, "", name) if name else None
        if found is None or not found.get("allowVolumeExpansion"):
            why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
            raise refused(self.kind, shown_name(new), why)


def _given(spec: Json) -> Json:
    return {field: part for field, part in spec.items() if part not in (None, "", {}, [])}


def _request(spec: Json) -> object:
    return ((spec.get("resources") or {}).get("requests") or {}).get("storage")


def _shrink_errors(new: Json, old: Json) -> Errors:
    """A claim gets no smaller than what it asked for, or than what it has if an expansion failed."""
    try:
        now, before = (parse(str(_request(item["spec"]))) for item in (new, old))
        has = parse(str(((old.get("status") or {}).get("capacity") or {}).get("storage") or _request(old["spec"])))
    except QuantityError:
        return []
    if now >= before or now > has:
        return []
    return [forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")]


def default_class(context: Context) -> str:
    """The newest of the default storage classes; "" if there is none."""
    found = [
        item
        for item in context.view.list(CLASSES)
        if any((item["metadata"].get("annotations") or {}).get(key) == "true" for key in _DEFAULT_CLASS)
    ]
    found.sort(key=lambda item: str(item["metadata"]["name"]))
    newest = max(found, key=lambda item: str(item["metadata"].get("creationTimestamp") or ""), default=None)
    return str(newest["metadata"]["name"]) if newest is not None else ""


def add_finalizer(new: Json, finalizer: str) -> None:
    """Add a finalizer that is not there."""
    given = new["metadata"].get("finalizers") or []
    if finalizer not in given:
        new["metadata"]["finalizers"] = [*given, finalizer]
