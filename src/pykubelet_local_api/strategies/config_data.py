"""ConfigMaps and Secrets: encoding, keys by type, and immutability. Pure.

Source: the Kubernetes documentation "ConfigMaps" and "Secrets" (types, immutable).
"""

from __future__ import annotations

import re
from base64 import b64encode

from pykubelet.base.api.core import ConfigMap, Secret
from pykubelet.base.manifests.validation.data import validate_config_map, validate_secret
from pykubelet.base.manifests.validation.errors import Errors, forbidden
from pykubelet_local_api.errors import bad_request
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy, immutable_errors, struct_of
from pykubelet_local_api.strategies.strategy import Context

_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII)
_FROZEN = "field is immutable when `immutable` is set"
_OF_REGISTRY = ("metadata.name", "metadata.namespace")


class ConfigMapStrategy(ObjectStrategy):
    """The strategy of ConfigMaps."""

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        _check_base64(self.kind, new.get("binaryData") or {})

    def validate(self, new: Json, context: Context) -> Errors:
        found = validate_config_map(struct_of(ConfigMap, new, self.kind))
        return [error for error in found if error.path not in _OF_REGISTRY]

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        return _frozen_errors(new, old, ("data", "binaryData")) + self.validate(new, context)


class SecretStrategy(ObjectStrategy):
    """The strategy of Secrets."""

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        texts = new.pop("stringData", None) or {}
        if texts:
            encoded = {key: b64encode(str(text).encode()).decode() for key, text in texts.items()}
            new["data"] = (new.get("data") or {}) | encoded
        _check_base64(self.kind, new.get("data") or {})
        new["type"] = new.get("type") or "Opaque"

    def validate(self, new: Json, context: Context) -> Errors:
        found = validate_secret(struct_of(Secret, new, self.kind))
        return [error for error in found if error.path not in _OF_REGISTRY]

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        errors = immutable_errors(new["type"], old.get("type"), "type")
        return errors + _frozen_errors(new, old, ("data",)) + self.validate(new, context)


def _frozen_errors(new: Json, old: Json, fields: tuple[str, ...]) -> Errors:
    """Changes of an object that may not change."""
    if not old.get("immutable"):
        return []
    errors = [] if new.get("immutable") else [forbidden("immutable", _FROZEN)]
    return errors + [forbidden(field, _FROZEN) for field in fields if (new.get(field) or {}) != (old.get(field) or {})]


def _check_base64(kind: ResourceKind, data: Json) -> None:
    for text in data.values():
        if not isinstance(text, str) or _BASE64.fullmatch(text):
            continue
        wrong = re.search(r"[^A-Za-z0-9+/]", text, re.ASCII)
        where = wrong.start() if wrong else len(text) // 4 * 4
        raise bad_request(
            f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: '
            f"illegal base64 data at input byte {where}"
        )
