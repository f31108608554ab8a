"""Managed fields and server-side apply. Pure."""

from __future__ import annotations

from pykubelet_local_api.errors import unsupported_media_type
from pykubelet_local_api.kinds.schema import Schema
from pykubelet_local_api.objects import Json


def record_update(
    old: Json | None,  # noqa: ARG001
    new: Json,  # noqa: ARG001
    schema: Schema,  # noqa: ARG001
    manager: str,  # noqa: ARG001
    now: float,  # noqa: ARG001
    subresource: str,  # noqa: ARG001
) -> list[Json]:
    """The managed fields of an object that a client has written."""
    return []


def apply(
    old: Json | None,  # noqa: ARG001
    applied: Json,  # noqa: ARG001
    schema: Schema,  # noqa: ARG001
    manager: str,  # noqa: ARG001
    now: float,  # noqa: ARG001
    force: bool,  # noqa: ARG001
    subresource: str,  # noqa: ARG001
) -> Json:
    """The object with an applied configuration. Raises StatusError."""
    raise unsupported_media_type(
        ("application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json")
    )
