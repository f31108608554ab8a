"""The schemas of all types: fields, list types, keys, and how the API server writes zero values.

They lie in one JSON document in this package (`tools/api/README.md` describes it). A definition is decoded when it is first
asked for: of the about 500, a node's API uses half. `load_schemas` reads the file, once: call it before the event loop starts.
Source: Kubernetes API conventions; KEP-555 (server-side apply) for list and map types.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from pykubelet_local_api.objects import Json

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
DOCUMENT = "kubernetes-1.37-types.json"
#: Defaults of fields that are keys of lists, where they are not the zero values of required fields.
_KEY_DEFAULTS = {
    "io.k8s.api.core.v1.ContainerPort": {"protocol": "TCP"},
    "io.k8s.api.core.v1.LocalObjectReference": {"name": ""},
    "io.k8s.api.core.v1.ServicePort": {"protocol": "TCP"},
}


class Shape(StrEnum):
    """What a value is. `ANY`: without a schema."""

    STRUCT = "struct"
    MAP = "map"
    LIST = "list"
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    BYTES = "bytes"
    TIME = "time"
    MICRO_TIME = "micro-time"
    QUANTITY = "quantity"
    INT_OR_STRING = "int-or-string"
    ANY = "any"


#: What a field has that is always written, if the object does not have it.
ZEROS = {
    Shape.STRING: "",
    Shape.INTEGER: 0,
    Shape.NUMBER: 0,
    Shape.BOOLEAN: False,
    Shape.QUANTITY: "0",
    Shape.INT_OR_STRING: 0,
    Shape.BYTES: None,
    Shape.LIST: None,
    Shape.MAP: None,
    Shape.TIME: None,
    Shape.MICRO_TIME: None,
    Shape.ANY: None,
}

_SPECIAL = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": Shape.QUANTITY,
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": Shape.INT_OR_STRING,
    "io.k8s.apimachinery.pkg.runtime.RawExtension": Shape.ANY,
    META + "FieldsV1": Shape.ANY,
    META + "Time": Shape.TIME,
    META + "MicroTime": Shape.MICRO_TIME,
}
_SCALARS = {
    "string": Shape.STRING,
    "integer": Shape.INTEGER,
    "number": Shape.NUMBER,
    "boolean": Shape.BOOLEAN,
}


class Schema:
    """The type of a value. Not changed once made, except that fields and elements are made when they are first asked for.

    `name`: its definition; "" if it has none. `is_atomic`: one client owns it as a whole. `is_set`: a list of different
    scalars. `map_keys`: the fields that identify an element of a list; () if the list has no keys. `merge_key` and
    `merge_strategies`: those of strategic merge patches. `required`, `always`, `dropped`: names of fields; see `read_zeros`
    in `tools/gen_api.py` for the last two. `bits`: of an integer.
    """

    def __init__(self, schemas: Schemas, name: str, raw: Json, zeros: Json) -> None:
        self._schemas = schemas
        self._made: dict[str, Schema] = {}
        self.name = name
        self.raw = raw
        self.shape = _shape(name, raw)
        self.properties: Json = raw.get("properties", {})
        list_type = raw.get("x-kubernetes-list-type", "atomic")
        self.map_keys: tuple[str, ...] = tuple(raw.get("x-kubernetes-list-map-keys", ())) if list_type == "map" else ()
        self.is_set = list_type == "set"
        self.is_atomic = raw.get("x-kubernetes-map-type") == "atomic" or (
            self.shape is Shape.LIST and not self.is_set and not self.map_keys
        )
        self.merge_key: str = raw.get("x-kubernetes-patch-merge-key", "")
        self.merge_strategies = frozenset(str(raw.get("x-kubernetes-patch-strategy", "")).split(",")) - {""}
        self.required = frozenset(raw.get("required", ()))
        self.always: tuple[str, ...] = tuple(zeros.get("always", ()))
        self.dropped = frozenset(zeros.get("dropped", ()))
        self.bits = 32 if raw.get("format") == "int32" else 64

    def field(self, name: str) -> Schema | None:
        """The type of a field of a struct, or of a value of a map; None if there is no such field."""
        found = self._made.get(name)
        if found is None:
            if self.shape is Shape.ANY:
                return self
            raw = self.properties.get(name)
            if raw is None:
                return self.values
            found = self._made[name] = self._schemas.inline(raw)
        return found

    @property
    def values(self) -> Schema | None:
        """The type of the values of a map; None for a struct."""
        extra = self.raw.get("additionalProperties")
        if extra is None:
            return None
        found = self._made.get("")
        if found is None:
            found = self._made[""] = self._schemas.inline(extra)
        return found

    @property
    def items(self) -> Schema:
        """The type of the elements of a list. Of what is no list, itself."""
        raw = self.raw.get("items")
        if raw is None:
            return self
        found = self._made.get("")
        if found is None:
            found = self._made[""] = self._schemas.inline(raw)
        return found

    def key_default(self, key: str) -> Any:
        """What an element of this list has as a key that it lacks; None: an element without it is another one."""
        element = self.items
        defaults = _KEY_DEFAULTS.get(element.name, {})
        if key in defaults or key not in element.required:
            return defaults.get(key)
        found = element.field(key)
        return None if found is None else ZEROS[found.shape]


def _shape(name: str, raw: Json) -> Shape:
    special = _SPECIAL.get(name)
    if special is not None:
        return special
    kind = raw.get("type", "object")
    if kind == "array":
        return Shape.LIST
    if kind == "object":
        if "properties" in raw:
            return Shape.STRUCT
        return Shape.MAP if "additionalProperties" in raw else Shape.ANY if not name else Shape.STRUCT
    if raw.get("format") == "byte":
        return Shape.BYTES
    return _SCALARS[kind]


class _Document(msgspec.Struct):
    definitions: dict[str, msgspec.Raw]
    zeros: dict[str, msgspec.Raw]


class Schemas:
    """All types, by the names of their definitions, such as `io.k8s.api.core.v1.Pod`."""

    def __init__(self, document: bytes) -> None:
        self._document = msgspec.json.decode(document, type=_Document)
        self._made: dict[str, Schema] = {}

    def names(self) -> Iterable[str]:
        """The names of all definitions."""
        return self._document.definitions.keys()

    def raw(self, name: str) -> Json:
        """The definition as it is in the document. KeyError if there is none. The caller may change it."""
        found: Json = msgspec.json.decode(self._document.definitions[name])
        return found

    def of(self, name: str) -> Schema:
        """The type of a definition. KeyError if there is none."""
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = Schema(self, name, self.raw(name), self._zeros(name))
        return found

    def _zeros(self, name: str) -> Json:
        raw = self._document.zeros.get(name)
        found: Json = {} if raw is None else msgspec.json.decode(raw)
        return found

    def inline(self, raw: Json) -> Schema:
        """The type of a field or an element: that of the definition it refers to, with what the field adds to it."""
        reference = raw.get("$ref")
        if reference is None:
            return Schema(self, "", raw, {})
        name = reference.rpartition("/")[2]
        if len(raw) == 1:
            return self.of(name)
        return Schema(self, name, self.of(name).raw | raw, self._zeros(name))


@cache
def load_schemas() -> Schemas:
    """The schemas of this package. Reads a file the first time."""
    return Schemas(Path(__file__).with_name(DOCUMENT).read_bytes())


def schema_of(definition: str) -> Schema:
    """The type of a definition. KeyError if there is none."""
    return load_schemas().of(definition)
