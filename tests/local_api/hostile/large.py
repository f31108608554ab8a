"""Objects of every kind with one list, map or text that is as large as a request may be: generated from the schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import Schema, Shape, schema_of
from pykubelet_local_api.objects import Json, copied

#: What kinds must have to be admitted. Kinds that are not here need only a name.
BASES: dict[str, Json] = {
    "Pod": {"spec": {"containers": [{"name": "c", "image": "i"}]}},
    "PersistentVolume": {
        "spec": {"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    },
    "PersistentVolumeClaim": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}}},
    "Service": {"spec": {"ports": [{"port": 1}]}},
    "EndpointSlice": {"addressType": "IPv4", "endpoints": [], "ports": []},
    "StorageClass": {"provisioner": "example.com/p"},
    "CSINode": {"spec": {"drivers": []}},
    "CSIDriver": {"spec": {}},
    "CSIStorageCapacity": {"storageClassName": "s"},
    "VolumeAttachment": {"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "p"}}},
    "RuntimeClass": {"handler": "h"},
    "PriorityClass": {"value": 1},
    "ResourceClaim": {"spec": {}},
    "ResourceClaimTemplate": {"spec": {"spec": {}}},
    "ResourceSlice": {
        "spec": {"driver": "d", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}
    },
    "DeviceClass": {"spec": {}},
    "RoleBinding": {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}},
    "ClusterRoleBinding": {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}},
    "Event": {"involvedObject": {"namespace": "default", "name": "x", "kind": "Pod"}},
    "Event/events.k8s.io": {
        "regarding": {"namespace": "default", "name": "x", "kind": "Pod"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Normal",
        "reason": "r",
        "action": "a",
        "reportingController": "example.com/c",
        "reportingInstance": "i",
    },
}
#: A path has so many names at most: below, fields repeat those of others.
MAX_DEPTH = 9


class LargeField(Value):
    """A list, a map or a text of a kind, by its path: `spec.containers[].env`."""

    path: str
    schema: Schema

    @property
    def is_text(self) -> bool:
        """Whether it is a text."""
        return self.schema.shape is Shape.STRING


def fields_of(kind: ResourceKind) -> Iterator[LargeField]:
    """All lists, maps and texts of a kind."""
    yield from _below(schema_of(kind.definition), "", ())


def _below(schema: Schema, path: str, names: tuple[str, ...]) -> Iterator[LargeField]:
    if len(names) > MAX_DEPTH or names.count(schema.name) > 1:
        return
    inner = (*names, schema.name or "-")
    match schema.shape:
        case Shape.STRUCT:
            for name in schema.properties:
                field = schema.field(name)
                if field is not None and name not in ("apiVersion", "kind", "managedFields"):
                    yield from _below(field, f"{path}.{name}" if path else name, inner)
        case Shape.LIST:
            yield LargeField(path, schema)
            yield from _below(schema.items, f"{path}[]", inner)
        case Shape.MAP:
            yield LargeField(path, schema)
        case Shape.STRING:
            yield LargeField(path, schema)


def body_with(kind: ResourceKind, field: LargeField, size: int, name: str = "large") -> Json:
    """An object of the kind whose field has so many bytes of JSON, about."""
    body = base_of(kind)
    body.setdefault("metadata", {})["name"] = name
    if not path_is_name(field):
        _put(body, schema_of(kind.definition), field.path.split("."), large_value(field.schema, size))
    return body


def base_of(kind: ResourceKind) -> Json:
    """What an object of the kind must have beside its name."""
    return copied(BASES.get(f"{kind.name}/{kind.group}") or BASES.get(kind.name, {}))


def path_is_name(field: LargeField) -> bool:
    """Whether it is the name or namespace, which the path of the request has."""
    return field.path in ("metadata.name", "metadata.namespace")


def large_value(schema: Schema, size: int) -> Any:
    """A value of this type with so many bytes of JSON, about."""
    if schema.shape is Shape.STRING:
        return "x" * size
    if schema.shape is Shape.MAP:
        sample = value_of(schema.values or schema, 123_456)
        count = max(1, size // (len(msgspec.json.encode(sample)) + 12))
        return {f"k{number}": value_of(schema.values or schema, number) for number in range(count)}
    sample = value_of(schema.items, 123_456)
    count = max(1, size // (len(msgspec.json.encode(sample)) + 1))
    return [value_of(schema.items, number) for number in range(count)]


def value_of(schema: Schema, number: int) -> Any:
    """A small value of this type; those of different numbers differ."""
    match schema.shape:
        case Shape.STRING:
            return f"x{number}"
        case Shape.INTEGER | Shape.NUMBER | Shape.INT_OR_STRING:
            return number % 60_000 + 1
        case Shape.BOOLEAN:
            return True
        case Shape.QUANTITY:
            return f"{number + 1}"
        case Shape.BYTES:
            return "eA=="
        case Shape.TIME | Shape.MICRO_TIME:
            return "2026-01-01T00:00:00Z"
        case Shape.LIST:
            return [value_of(schema.items, number)]
        case Shape.MAP:
            return {f"k{number}": value_of(schema.values or schema, number)}
        case Shape.STRUCT:
            wanted = [*schema.required, *(name for name in ("name", "key") if name in schema.properties)]
            found = {}
            for name in wanted:
                field = schema.field(name)
                if field is not None:
                    found[name] = value_of(field, number)
            return found
    return {}


def _put(body: Json, schema: Schema, parts: list[str], value: Any) -> None:
    """Set a field; structs and lists on the way to it get what they must have."""
    name, *rest = parts
    is_list = name.endswith("[]")
    name = name.removesuffix("[]")
    field = schema.field(name)
    assert field is not None
    if not rest and not is_list:
        body[name] = value
        return
    if is_list:
        listed = body.setdefault(name, [])
        if not listed:
            listed.append(value_of(field.items, 0))
        if not rest:
            listed[0] = value
            return
        _put(listed[0], field.items, rest, value)
        return
    if not isinstance(body.get(name), dict):
        body[name] = value_of(field, 0)
    _put(body[name], field, rest, value)
