"""Converts objects between the kind that a client uses and the kind that is stored: Events of two groups. Pure.

Source: the Kubernetes API reference, Event v1 and Event v1 events.k8s.io (the fields `deprecated*`).
"""

from __future__ import annotations

from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json

#: Fields of Events: in events.k8s.io, and in the core group.
_FIELDS = (
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("reportingController", "reportingComponent"),
)
_TO_STORED = dict(_FIELDS)
_TO_SERVED = {stored: served for served, stored in _FIELDS}


def to_stored(kind: ResourceKind, body: Json) -> Json:
    """The object as it is stored. A shallow copy if anything differs."""
    if not kind.stored_as:
        return body
    renamed = {_TO_STORED.get(name, name): value for name, value in body.items()}
    return renamed | {"apiVersion": "v1", "kind": "Event"}


def to_served(kind: ResourceKind, stored: Json) -> Json:
    """The stored object as a client of `kind` sees it. A shallow copy if anything differs."""
    if not kind.stored_as:
        return stored
    renamed = {_TO_SERVED.get(name, name): value for name, value in stored.items()}
    return renamed | {"apiVersion": kind.api_version, "kind": kind.name}
