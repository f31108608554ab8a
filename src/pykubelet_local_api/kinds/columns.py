"""Tables, as `kubectl get` prints them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json, name_of

_NAME = {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}


def table(kind: ResourceKind, items: Sequence[Json], now: float, include: str, list_metadata: Json) -> Json:  # noqa: ARG001
    """A Table of these objects. `include`: which part of them the rows have: Metadata, Object or None."""
    rows = []
    for item in items:
        part = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]}
        shown = {"None": None, "Object": item}.get(include, part)
        rows.append({"cells": [name_of(item)], **({"object": shown} if shown else {})})
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_metadata}
    return {**head, "columnDefinitions": [_NAME], "rows": rows}
