"""OpenAPI documents: v3 for today's clients, and as much of v2 as `kubectl` before 1.27 needs.

`kubectl` takes fields and list keys for `explain`, `apply` and `diff` from the schemas, and from the parameters of PATCH whether the
server validates fields and takes dry runs. The documents have no descriptions of fields; they refer to the reference documentation.
Documents are made when they are asked for and not kept: a client keeps its copy under the hash in the index.
Source: the OpenAPI Specification 3.0; KEP-2896 (OpenAPI v3).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec

from pykubelet.base.api.protobuf import bytes_field
from pykubelet_local_api.kinds.discovery import ServedDocument, subresource_of
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import META, load_schemas
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.objects import Json

#: The media type in which `kubectl` before 1.27 asks for `/openapi/v2`, and that of the answer: the first is no valid one.
V2_ACCEPTED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_REFERENCE = "https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.37/"
_DEFINITION = "#/definitions/"
_SCHEMA = "#/components/schemas/"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_GVK = "x-kubernetes-group-version-kind"

_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_SELECT = (
    "allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "resourceVersionMatch",
    "sendInitialEvents", "timeoutSeconds", "watch",
)  # fmt: skip
_DELETE = ("dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy")
_TYPES = {
    "allowWatchBookmarks": "boolean", "sendInitialEvents": "boolean", "watch": "boolean", "force": "boolean",
    "orphanDependents": "boolean", "limit": "integer", "timeoutSeconds": "integer", "gracePeriodSeconds": "integer",
}  # fmt: skip
_PATCHES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
#: HTTP method, action and query parameters of each verb, with whether it is of one object.
_OPERATIONS = {
    "list": ("get", "list", _SELECT, False),
    "create": ("post", "post", _WRITE, False),
    "deletecollection": ("delete", "deletecollection", (*_DELETE, *_SELECT), False),
    "get": ("get", "get", (), True),
    "update": ("put", "put", _WRITE, True),
    "patch": ("patch", "patch", (*_WRITE, "force"), True),
    "delete": ("delete", "delete", _DELETE, True),
}


def _path_of(kind: ResourceKind) -> str:
    """The group version as paths have it: `api/v1`, or `apis/GROUP/VERSION`."""
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def openapi_paths() -> Iterator[str]:
    """The paths of all documents."""
    yield from ("/openapi/v2", "/openapi/v3")
    yield from (f"/openapi/v3/{name}" for name in dict.fromkeys(map(_path_of, KINDS)))


def openapi(path: str, accept: str) -> ServedDocument | None:
    """The document at a path such as `/openapi/v3`; None: there is none. `accept`: the request's header."""
    if path == "/openapi/v2":
        if V2_ACCEPTED in accept or V2_PROTOBUF in accept:
            return ServedDocument(openapi_v2_protobuf(), V2_PROTOBUF)
        return ServedDocument(msgspec.json.encode(openapi_v2()))
    if path == "/openapi/v3":
        return ServedDocument(msgspec.json.encode(openapi_index()))
    found = openapi_document(path.removeprefix("/openapi/v3/")) if path.startswith("/openapi/v3/") else None
    return None if found is None else ServedDocument(msgspec.json.encode(found))


@cache
def _hash() -> str:
    """What changes when a document changes."""
    schemas = load_schemas()
    digest = sha256(repr(KINDS).encode())
    for name in schemas.names():
        digest.update(msgspec.json.encode(schemas.raw(name)))
    return digest.hexdigest().upper()


def openapi_index() -> Json:
    """The body of `/openapi/v3`. Makes the schemas' hash the first time: 20 ms."""
    names = dict.fromkeys(_path_of(kind) for kind in KINDS)
    return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={_hash()}"} for name in names}}


def openapi_document(group_version_path: str) -> Json | None:
    """The body of `/openapi/v3/PATH`, with a path such as `apis/storage.k8s.io/v1`; None if there is no such group version."""
    kinds = [kind for kind in KINDS if _path_of(kind) == group_version_path]
    if not kinds:
        return None
    paths = dict(path for kind in kinds for path in _paths(kind))
    roots = [kind.definition for kind in kinds]
    roots += [f"{kind.definition}List" for kind in kinds if not kind.is_review]
    roots += [META + name for name in ("DeleteOptions", "Patch", "Status", "WatchEvent")]
    roots += ["io.k8s.api.policy.v1.Eviction"] if group_version_path == "api/v1" else []
    roots += ["io.k8s.api.authentication.v1.TokenRequest"] if group_version_path == "api/v1" else []
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": paths,
        "components": {"schemas": _closure(roots)},
    }


def _closure(roots: list[str]) -> Json:
    """The schemas of definitions and of all they refer to."""
    schemas = load_schemas()
    known = frozenset(schemas.names())
    found: Json = {}
    left = [root for root in roots if root in known]
    while left:
        name = left.pop()
        if name not in found:
            raw = schemas.raw(name)
            left += _references(raw)
            found[name] = _described(name, _special(name) or _v3(raw))
    return {name: found[name] for name in sorted(found)}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(_DEFINITION)
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _special(name: str) -> Json | None:
    """The types whose values may be text or a number, which v2 could not express."""
    if name == _QUANTITY:
        return {"oneOf": [{"type": "string"}, {"type": "number"}]}
    if name == _INT_OR_STRING:
        return {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}
    return None


def _v3(value: Any) -> Any:
    """A schema of v2 as v3 has it: a reference with anything beside it is one of `allOf`."""
    if isinstance(value, list):
        return [_v3(item) for item in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if not isinstance(reference, str):
        return {key: _v3(item) for key, item in value.items()}
    pointer: Json = {"$ref": reference.replace(_DEFINITION, _SCHEMA)}
    if len(value) == 1:
        return pointer
    return {"allOf": [pointer]} | {key: _v3(item) for key, item in value.items() if key != "$ref"}


def _described(name: str, schema: Json) -> Json:
    """Where people read about a type of the API."""
    package, _, kind = name.rpartition(".")
    if not package.startswith("io.k8s.api."):
        return schema
    group, version = package.removeprefix("io.k8s.api.").split(".")
    gvks = schema.get(_GVK)
    full = (gvks[0]["group"] if gvks else "") or group
    anchor = f"{kind}-{version}-{full}".lower().replace(".", "-")
    return {"description": f"Described at {_REFERENCE}#{anchor}"} | schema


def _paths(kind: ResourceKind) -> Iterator[tuple[str, Json]]:
    """The paths of a kind and its subresources."""
    start = f"/{_path_of(kind)}"
    place = f"{start}/namespaces/{{namespace}}/{kind.plural}" if kind.is_namespaced else f"{start}/{kind.plural}"
    outer = [_parameter("namespace", "path")] if kind.is_namespaced else []
    name = [_parameter("name", "path"), *outer]
    collection = dict(_operations(kind, kind.verbs, is_named=False))
    if collection:
        yield place, collection | {"parameters": outer}
    if kind.is_namespaced and "list" in kind.verbs:
        yield f"{start}/{kind.plural}", {"get": collection["get"]}
    named = dict(_operations(kind, kind.verbs, is_named=True))
    if named:
        yield f"{place}/{{name}}", named | {"parameters": name}
    for subresource in kind.subresources:
        below = subresource_of(kind, subresource)
        found = dict(_operations(kind, below.verbs, is_named=True))
        if "create" in below.verbs:
            found |= dict(_operations(kind, ("create",), is_named=False))
        if found and not below.kind:
            yield f"{place}/{{name}}/{subresource}", found | {"parameters": name}


def _operations(kind: ResourceKind, verbs: tuple[str, ...], is_named: bool) -> Iterator[tuple[str, Json]]:
    for verb in verbs:
        if verb in _OPERATIONS and _OPERATIONS[verb][3] is is_named:
            method, action, parameters, _ = _OPERATIONS[verb]
            schema = {"$ref": f"{_SCHEMA}{kind.definition}{'List' if verb == 'list' else ''}"}
            operation: Json = {"parameters": [_parameter(name, "query") for name in parameters]} if parameters else {}
            if verb in ("create", "update"):
                operation["requestBody"] = {"content": {"*/*": {"schema": schema}}, "required": True}
            elif verb == "patch":
                body = {"schema": {"$ref": f"{_SCHEMA}{META}Patch"}}
                operation["requestBody"] = {"content": dict.fromkeys(_PATCHES, body), "required": True}
            answer = {"description": "OK", "content": {"application/json": {"schema": schema}}}
            yield method, operation | {"responses": {"200": answer}, "x-kubernetes-action": action, _GVK: _gvk(kind)}


def _parameter(name: str, where: str) -> Json:
    found: Json = {"in": where, "name": name, "schema": {"type": _TYPES.get(name, "string"), "uniqueItems": True}}
    return found | ({"required": True} if where == "path" else {})


def _gvk(kind: ResourceKind) -> Json:
    return {"group": kind.group, "kind": kind.name, "version": kind.version}


def openapi_v2() -> Json:
    """The body of `/openapi/v2` as JSON: the definitions, and the PATCH operations."""
    schemas = load_schemas()
    paths: Json = {}
    for kind in KINDS:
        if "patch" in kind.verbs:
            parameters = [
                {"in": "query", "name": name, "type": _TYPES.get(name, "string")} for name in (*_WRITE, "force")
            ]
            paths[_patched_path(kind)] = {"patch": {"parameters": parameters, "responses": {}, _GVK: _gvk(kind)}}
    definitions = {name: schemas.raw(name) for name in schemas.names()}
    info = {"title": "Kubernetes", "version": "unversioned"}
    return {"swagger": "2.0", "info": info, "paths": paths, "definitions": definitions}


def _patched_path(kind: ResourceKind) -> str:
    namespace = "namespaces/{namespace}/" if kind.is_namespaced else ""
    return f"/{_path_of(kind)}/{namespace}{kind.plural}/{{name}}"


@cache
def openapi_v2_protobuf() -> bytes:
    """The body of `/openapi/v2` for `kubectl` before 1.27 (`V2_ACCEPTED`): only the PATCH operations, 10 KB.

    Without definitions, such a client leaves validation to the server and merges by the types that it knows itself; with the
    operations, it takes the server for one with dry run and field validation. The numbers are those of `OpenAPIv2.proto`.
    """
    paths = b""
    for kind in KINDS:
        if "patch" in kind.verbs:
            operation = b"".join(bytes_field(8, _v2_parameter(name)) for name in (*_WRITE, "force"))
            gvk = bytes_field(2, msgspec.json.encode(_gvk(kind)) + b"\n")
            operation += bytes_field(13, bytes_field(1, _GVK.encode()) + bytes_field(2, gvk))
            path = bytes_field(1, _patched_path(kind).encode()) + bytes_field(2, bytes_field(8, operation))
            paths += bytes_field(2, path)
    info = bytes_field(1, b"Kubernetes") + bytes_field(2, b"unversioned")
    return bytes_field(1, b"2.0") + bytes_field(2, info) + bytes_field(8, paths)


def _v2_parameter(name: str) -> bytes:
    """A ParametersItem with a parameter of the query."""
    query = (
        bytes_field(2, b"query") + bytes_field(4, name.encode()) + bytes_field(6, _TYPES.get(name, "string").encode())
    )
    return bytes_field(1, bytes_field(2, bytes_field(3, query)))
