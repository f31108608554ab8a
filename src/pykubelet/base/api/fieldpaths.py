"""Takes the paths of pod fields apart, such as `metadata.labels['app']`. Pure."""

from __future__ import annotations


def split_subscript(path: str) -> tuple[str, str] | None:
    """`metadata.labels['app']` as its two parts; None for a path without a subscript."""
    field, found, rest = path.partition("['")
    return (field, rest[:-2]) if found and field and rest.endswith("']") else None
