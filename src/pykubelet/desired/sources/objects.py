"""Makes the objects that pods refer to from manifests, for a node without an API server. Pure.

These are ConfigMap, Secret, PersistentVolume, PersistentVolumeClaim, CSIDriver and RuntimeClass. Defaults and validation are those of the
API server, and a few rules more, because some components of a cluster are missing: nothing attaches volumes, issues tokens, copies data
or applies a RuntimeClass to pods. An object's UID depends on its kind, namespace and name alone, so an edited manifest is still the same
object. A UID in the manifest is used instead. No error has a value of a Secret in it.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Callable
from typing import Any

from pykubelet.base.api import codec
from pykubelet.base.api import labels as names
from pykubelet.base.api.core import ConfigMap, RuntimeClass, Secret
from pykubelet.base.api.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.manifests.defaults import default_claim, default_driver, default_secret, default_volume
from pykubelet.base.manifests.validation.data import SERVICE_ACCOUNT_TOKEN, validate_config_map, validate_secret
from pykubelet.base.manifests.validation.errors import Errors, forbidden, invalids, required, validate_metadata
from pykubelet.base.manifests.validation.storage import validate_claim, validate_driver, validate_volume
from pykubelet.base.manifests.warnings import huge_numbers
from pykubelet.base.model.content import ContentKind, ManifestObject, ObjectKey

#: The maps of base64 text by kind, and where plain text belongs.
_BASE64 = {"Secret": ("data", "stringData"), "ConfigMap": ("binaryData", "data")}
_SECRETS = (
    *("nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"),
    *("controllerPublishSecretRef", "controllerExpandSecretRef"),
)


class ObjectKind(Value):
    """How manifests of one kind are read. `default` and `errors`: defaults, and all rules."""

    version: str
    type: type[Any]
    content: ContentKind
    default: Callable[[Any], Any]
    errors: Callable[[Any], Errors]


def _volume_errors(volume: PersistentVolume) -> Errors:
    errors = validate_volume(volume)
    references = ((field, getattr(volume.spec.csi, field, None)) for field in _SECRETS)
    for field, reference in references:
        if reference is not None:
            missing = [name for name in ("name", "namespace") if not getattr(reference, name)]
            errors += [required(f"spec.csi.{field}.{name}") for name in missing]
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


def _secret_errors(secret: Secret) -> Errors:
    errors = validate_secret(secret)
    if secret.type == SERVICE_ACCOUNT_TOKEN:
        errors.append(forbidden("type", "a node without an API server issues no tokens"))
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
    "ConfigMap": ObjectKind("v1", ConfigMap, ContentKind.CONFIG_MAP, lambda found: found, validate_config_map),
    "Secret": ObjectKind("v1", Secret, ContentKind.SECRET, default_secret, _secret_errors),
    "PersistentVolume": ObjectKind("v1", PersistentVolume, ContentKind.VOLUME, default_volume, _volume_errors),
    "PersistentVolumeClaim": ObjectKind(
        "v1", PersistentVolumeClaim, ContentKind.VOLUME_CLAIM, default_claim, _claim_errors
    ),
    "CSIDriver": ObjectKind("storage.k8s.io/v1", CSIDriver, ContentKind.CSI_DRIVER, _default_driver, _driver_errors),
    "RuntimeClass": ObjectKind(
        "node.k8s.io/v1", RuntimeClass, ContentKind.RUNTIME_CLASS, lambda found: found, _class_errors
    ),
}
_NAMESPACED = (ContentKind.CONFIG_MAP, ContentKind.SECRET, ContentKind.VOLUME_CLAIM)


def object_uid(key: ObjectKey) -> str:
    """The UID of an object of a manifest: 32 hex digits."""
    return hashlib.blake2b(f"{key.kind}\0{key.namespace}\0{key.name}".encode(), digest_size=16).hexdigest()


def decode_object(manifest: dict[str, object], kind: ObjectKind, origin: str) -> ManifestObject | Errors:
    """The complete and valid object, or its errors. `manifest`: without unknown fields. Raises DecodeError, RecursionError."""
    for path in huge_numbers(manifest):
        raise codec.DecodeError(path, "number out of range")
    found: Any = codec.from_object(kind.type, _with_plain_base64(manifest))
    meta = found.metadata
    if kind.content in _NAMESPACED:
        meta = replace(meta, namespace=meta.namespace or "default")
    key = ObjectKey(kind.content, meta.namespace, meta.name)
    meta = replace(meta, uid=meta.uid or object_uid(key), deletionTimestamp="")
    found = kind.default(replace(found, metadata=meta))
    return kind.errors(found) or ManifestObject(key, found, origin, size=_size(found))


def _size(found: object) -> int:
    """Bytes of the keys and values of a ConfigMap or Secret; 0 for other objects."""
    match found:
        case ConfigMap(data=data, binaryData=binary):
            return sum(len(key) + len(value) for key, value in (*data.items(), *binary.items()))
        case Secret(data=secret):
            return sum(len(key) + len(value) for key, value in secret.items())
    return 0


def _with_plain_base64(manifest: dict[str, object]) -> dict[str, object]:
    """The manifest with base64 text without line ends, which Go's decoder skips. DecodeError names the key of text that is none."""
    field, plain = _BASE64.get(str(manifest.get("kind")), ("", ""))
    given = manifest.get(field)
    if not isinstance(given, dict):
        return manifest
    data = {key: "".join(text.split("\n")) if isinstance(text, str) else text for key, text in given.items()}
    for key, text in data.items():
        if text is not None and not _is_base64(text):
            raise codec.DecodeError(f"{field}[{key}]", f"expected base64 text; plain text belongs in {plain}")
    return {**manifest, field: data}


def _is_base64(text: object) -> bool:
    try:
        return isinstance(text, str) and binascii.a2b_base64(text.encode(), strict_mode=True) is not None
    except (binascii.Error, UnicodeError):
        return False
