"""Makes the objects that pods refer to from manifests, for a node without an API server. Pure.

These are PersistentVolume, PersistentVolumeClaim, CSIDriver and RuntimeClass. Defaults and validation are those of the API server, and a
few rules more, because some components of a cluster are missing: nothing attaches volumes, keeps Secrets, issues tokens, copies data or
applies a RuntimeClass to pods. An object's UID depends on its kind, namespace and name alone, so an edited manifest is still the same
object. A UID in the manifest is used instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pykubelet.base.api import codec
from pykubelet.base.api import labels as names
from pykubelet.base.api.core import RuntimeClass
from pykubelet.base.api.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.manifests.defaults import default_claim, default_driver, default_volume
from pykubelet.base.manifests.validation.errors import Errors, forbidden, invalids, required
from pykubelet.base.manifests.validation.metadata import validate_metadata
from pykubelet.base.manifests.validation.storage import validate_claim, validate_driver, validate_volume
from pykubelet.base.manifests.warnings import huge_numbers
from pykubelet.base.model.content import ContentKind, ManifestObject, ObjectKey

_SECRETS = (
    *("nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"),
    *("controllerPublishSecretRef", "controllerExpandSecretRef", "secretRef"),
)
_NO_SECRETS = "a node without an API server has no Secrets"


class StorageKind(Value):
    """How manifests of one kind are read. `default` and `errors`: defaults, and all rules."""

    version: str
    type: type[Any]
    content: ContentKind
    default: Callable[[Any], Any]
    errors: Callable[[Any], Errors]


def _volume_errors(volume: PersistentVolume) -> Errors:
    errors = validate_volume(volume)
    for kind in ("csi", "iscsi", "flexVolume", "cephfs", "rbd", "cinder", "scaleIO", "storageos"):
        source = getattr(volume.spec, kind)
        errors += [
            forbidden(f"spec.{kind}.{field}", _NO_SECRETS)
            for field in _SECRETS
            if getattr(source, field, None) is not None
        ]
    return errors


def _claim_errors(claim: PersistentVolumeClaim) -> Errors:
    errors = validate_claim(claim)
    for field in ("dataSource", "dataSourceRef"):
        if getattr(claim.spec, field) is not None:
            errors.append(forbidden(f"spec.{field}", "a node without an API server fills no volumes"))
    return errors


def _default_driver(driver: CSIDriver) -> CSIDriver:
    """The driver with its defaults; no volume is attached unless that is asked for, which is refused."""
    driver = default_driver(driver)
    return replace(driver, spec=replace(driver.spec, attachRequired=bool(driver.spec.attachRequired)))


def _driver_errors(driver: CSIDriver) -> Errors:
    errors = validate_driver(driver)
    if driver.spec.attachRequired:
        errors.append(forbidden("spec.attachRequired", "a node without an API server attaches no volumes"))
    if driver.spec.tokenRequests:
        errors.append(forbidden("spec.tokenRequests", "a node without an API server has no tokens"))
    return errors


def _class_errors(found: RuntimeClass) -> Errors:
    """The rules of RuntimeClass. What the API server would copy to pods is refused, because nothing copies it here."""
    errors = validate_metadata(found.metadata, "metadata", is_namespaced=False)
    errors += (
        invalids("handler", found.handler, names.dns_label_errors(found.handler))
        if found.handler
        else [required("handler")]
    )
    if found.overhead is not None:
        errors.append(
            forbidden("overhead", "a node without an API server copies it to no pod: set spec.overhead of the pods")
        )
    if found.scheduling is not None:
        errors.append(forbidden("scheduling", "a node without an API server schedules no pods"))
    return errors


KINDS = {
    "PersistentVolume": StorageKind("v1", PersistentVolume, ContentKind.VOLUME, default_volume, _volume_errors),
    "PersistentVolumeClaim": StorageKind(
        "v1", PersistentVolumeClaim, ContentKind.VOLUME_CLAIM, default_claim, _claim_errors
    ),
    "CSIDriver": StorageKind("storage.k8s.io/v1", CSIDriver, ContentKind.CSI_DRIVER, _default_driver, _driver_errors),
    "RuntimeClass": StorageKind(
        "node.k8s.io/v1", RuntimeClass, ContentKind.RUNTIME_CLASS, lambda found: found, _class_errors
    ),
}


def object_uid(key: ObjectKey) -> str:
    """The UID of an object of a manifest: 32 hex digits."""
    return hashlib.blake2b(f"{key.kind}\0{key.namespace}\0{key.name}".encode(), digest_size=16).hexdigest()


def decode_object(manifest: dict[str, object], kind: StorageKind, origin: str) -> ManifestObject | Errors:
    """The complete and valid object, or its errors. `manifest`: without unknown fields. Raises DecodeError, RecursionError."""
    for path in huge_numbers(manifest):
        raise codec.DecodeError(path, "number out of range")
    found: Any = codec.from_object(kind.type, manifest)
    meta = found.metadata
    if kind.content is ContentKind.VOLUME_CLAIM:
        meta = replace(meta, namespace=meta.namespace or "default")
    key = ObjectKey(kind.content, meta.namespace, meta.name)
    meta = replace(meta, uid=meta.uid or object_uid(key), deletionTimestamp="")
    found = kind.default(replace(found, metadata=meta))
    return kind.errors(found) or ManifestObject(key, found, origin)
