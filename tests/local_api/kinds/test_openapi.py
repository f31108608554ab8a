"""OpenAPI documents: what kubectl looks for in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.openapi import (
    V2_ACCEPTED,
    V2_PROTOBUF,
    openapi,
    openapi_document,
    openapi_index,
    openapi_v2,
    openapi_v2_protobuf,
)
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.objects import Json

PATHS = sorted({f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}" for kind in KINDS})


def document(path: str) -> Json:
    """The document of a group version."""
    found = openapi_document(path)
    assert found is not None
    return found


def references(value: Any) -> Iterator[str]:
    """All references below a value."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_the_index_has_a_document_for_each_group_version() -> None:
    paths = openapi_index()["paths"]
    assert sorted(paths) == PATHS
    for path, entry in paths.items():
        assert entry["serverRelativeURL"].startswith(f"/openapi/v3/{path}?hash=")
    assert openapi_document("apis/apps/v1") is None


@pytest.mark.parametrize("path", PATHS)
def test_all_references_lead_somewhere(path: str) -> None:
    found = document(path)
    known = {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert set(references(found)) <= known


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource)
def test_kubectl_finds_the_kind_and_what_its_patch_takes(kind: ResourceKind) -> None:
    prefix = f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"
    found = document(prefix)
    gvk = {"group": kind.group, "kind": kind.name, "version": kind.version}
    schema = found["components"]["schemas"][kind.definition]
    assert gvk in schema["x-kubernetes-group-version-kind"]
    place = f"/{prefix}/namespaces/{{namespace}}/{kind.plural}" if kind.is_namespaced else f"/{prefix}/{kind.plural}"
    assert found["paths"][place]["post"]["x-kubernetes-group-version-kind"] == gvk
    if "patch" in kind.verbs:
        operation = found["paths"][f"{place}/{{name}}"]["patch"]
        assert operation["x-kubernetes-group-version-kind"] == gvk
        names = {parameter["name"] for parameter in operation["parameters"]}
        assert names == {"dryRun", "fieldManager", "fieldValidation", "force"}


def test_lists_keep_what_patches_need() -> None:
    schemas = document("api/v1")["components"]["schemas"]
    containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-list-map-keys"] == ["name"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert schemas["io.k8s.apimachinery.pkg.api.resource.Quantity"]["oneOf"] == [{"type": "string"}, {"type": "number"}]


def read(data: bytes) -> dict[int, list[bytes]]:
    """The fields of a protobuf message that has only lengths and bytes."""
    found: dict[int, list[bytes]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag, size = varint(), varint()
        assert tag & 7 == 2
        found.setdefault(tag >> 3, []).append(data[at : at + size])
        at += size
    return found


def test_an_old_kubectl_finds_dry_run_and_field_validation() -> None:
    """As its `SupportsDryRun` looks: paths (8), path (2), value (2), patch (8), parameters (8), name of a query parameter (1, 2, 3, 4)."""
    seen = 0
    for path in read(read(openapi_v2_protobuf())[8][0])[2]:
        operation = read(read(read(path)[2][0])[8][0])
        queries = [read(read(read(read(item)[1][0])[2][0])[3][0]) for item in operation[8]]
        assert {b"dryRun", b"fieldValidation"} <= {query[4][0] for query in queries}
        extension = read(operation[13][0])
        assert extension[1] == [b"x-kubernetes-group-version-kind"]
        assert b'"kind"' in read(extension[2][0])[2][0]
        seen += 1
    assert seen == sum("patch" in kind.verbs for kind in KINDS) == len(openapi_v2()["paths"])


def test_documents_by_their_paths() -> None:
    old = openapi("/openapi/v2", V2_ACCEPTED)
    assert old is not None
    assert (old.body, old.content_type) == (openapi_v2_protobuf(), V2_PROTOBUF)
    for path in ("/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1"):
        found = openapi(path, "application/json")
        assert found is not None
        assert found.content_type == "application/json"
    assert openapi("/openapi/v3/apis/apps/v1", "") is None
    assert openapi("/openapi/v4", "") is None
