"""Validates ConfigMaps and Secrets at creation, as kube-apiserver 1.36 does. Pure.

No error has a value of a Secret in it. Source: the API reference of ConfigMap and Secret, the Kubernetes documentation "Secrets", Types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import ConfigMap, Secret
from pykubelet.base.manifests.validation.errors import (
    Errors,
    invalid,
    invalids,
    required,
    too_long,
    too_many,
    validate_metadata,
)

#: Bytes of all values of one ConfigMap or Secret.
MAX_DATA_BYTES = 1 << 20
#: Keys of one ConfigMap or Secret. An API server has no such limit, but its 1 MiB of a whole request allows few more.
MAX_DATA_KEYS = 50_000

REDACTED = "<secret contents redacted>"
#: The keys that a Secret of a type must have, and of which it must have one.
_KEYS_OF_TYPE = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_BASIC_AUTH = "kubernetes.io/basic-auth"
_BASIC_AUTH_KEYS = ("username", "password")
_IN_JSON = (".dockercfg", ".dockerconfigjson")
SERVICE_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
SERVICE_ACCOUNT = "kubernetes.io/service-account.name"


def validate_config_map(found: ConfigMap) -> Errors:
    """All errors of a ConfigMap. An empty list means that the API server would accept it."""
    errors = validate_metadata(found.metadata, "metadata")
    for key in sorted(found.data):
        errors += invalids(f"data[{key}]", key, names.config_key_errors(key))
        if key in found.binaryData:
            errors.append(invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
    errors += _key_errors("binaryData", found.binaryData)
    size = sum(len(value.encode()) for value in found.data.values()) + _size(found.binaryData.values())
    return errors + _size_errors(size, len(found.data) + len(found.binaryData))


def validate_secret(found: Secret) -> Errors:
    """All errors of a Secret with its defaults. An empty list means that the API server would accept it."""
    errors = validate_metadata(found.metadata, "metadata")
    errors += _key_errors("data", found.data)
    errors += _size_errors(_size(found.data.values()), len(found.data))
    if found.type == SERVICE_ACCOUNT_TOKEN and not found.metadata.annotations.get(SERVICE_ACCOUNT):
        errors.append(required(f"metadata.annotations[{SERVICE_ACCOUNT}]"))
    if found.type == _BASIC_AUTH and not any(key in found.data for key in _BASIC_AUTH_KEYS):
        errors += [required(f"data[{key}]") for key in _BASIC_AUTH_KEYS]
    for key in _KEYS_OF_TYPE.get(found.type, ()):
        if key not in found.data or (key == "ssh-privatekey" and not found.data[key]):
            errors.append(required(f"data[{key}]"))
        elif key in _IN_JSON and not _is_json_object(found.data[key]):
            errors.append(invalid(f"data[{key}]", REDACTED, "must be a JSON object"))
    return errors


def _key_errors(field: str, data: Collection[str]) -> Errors:
    return [error for key in sorted(data) for error in invalids(f"{field}[{key}]", key, names.config_key_errors(key))]


def _size_errors(size: int, keys: int) -> Errors:
    errors = [too_long("data", MAX_DATA_BYTES)] if size > MAX_DATA_BYTES else []
    if keys > MAX_DATA_KEYS:
        errors.append(too_many("data", keys, MAX_DATA_KEYS))
    return errors


def _size(values: Iterable[bytes]) -> int:
    return sum(map(len, values))


def _is_json_object(data: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), Mapping)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
