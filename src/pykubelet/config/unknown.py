"""Finds the fields of a plain document that KubeletConfiguration does not have. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from pykubelet.base.kit.nearest import nearest
from pykubelet.config.schema import ListOf, MapOf, Node, Object, config_shape, field_paths


class UnknownSetting(NamedTuple):
    """An unknown field. `near`: the path of the field that was probably meant; `known`: the fields beside it."""

    path: str
    near: str | None
    known: Collection[str]


def unknown_fields(document: dict[str, Any]) -> Iterator[UnknownSetting]:
    """The unknown fields of a document without `apiVersion` and `kind`, in its order. Values of wrong types have none."""
    return _below(config_shape(), document, "")


def _below(node: Node, value: Any, path: str) -> Iterator[UnknownSetting]:
    if isinstance(node, ListOf) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _below(node.item, item, f"{path}[{index}]")
    elif isinstance(node, MapOf) and isinstance(value, dict):
        for key, item in value.items():
            yield from _below(node.value, item, f"{path}[{key}]")
    elif isinstance(node, Object) and isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else key
            if key in node.fields:
                yield from _below(node.fields[key].node, item, here)
            else:
                yield UnknownSetting(here, _near(node, key, path), node.fields)


def _near(node: Object, key: str, path: str) -> str | None:
    """The most similar field beside it, or else anywhere."""
    if beside := nearest(key, node.fields):
        return f"{path}.{beside}" if path else beside
    everywhere = {one.rsplit(".", 1)[-1]: one for one in field_paths()}
    found = nearest(key, everywhere, cutoff=0.75)
    return everywhere[found] if found else None
