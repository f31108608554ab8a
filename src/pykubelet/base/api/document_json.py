"""Reads a JSON document (`documents.py`). A duplicate key is merged as Go's decoder does it, and noted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pykubelet.base.api.document import (
    LONG_KEY,
    MAX_DEPTH,
    MAX_DUPLICATES,
    MAX_KEY,
    MAX_NODES,
    TOO_DEEP,
    TOO_MANY,
    Document,
    DocumentError,
    Place,
)


class NotJSON(ValueError):
    """The text is not JSON."""


def read_json(text: str, number: Callable[[str], Any]) -> Document:
    """The document in `text`. `number`: the value of a number. Raises NotJSON, DocumentError."""
    import json

    repeated = False

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        found = dict(pairs)
        if len(found) < len(pairs):
            repeated = True
            found = _merged(pairs)
        if any(len(key) > MAX_KEY for key in found):
            raise DocumentError(LONG_KEY)
        return found

    try:
        value = json.loads(
            text,
            object_pairs_hook=make_object,
            parse_int=number,
            parse_float=number,
            parse_constant=_no_json_constant,
        )
    except DocumentError:
        raise
    except RecursionError as error:
        raise DocumentError(TOO_DEEP) from error
    except ValueError as error:
        raise NotJSON from error
    nodes = _check_size(value)
    return Document(value, tuple(_repeated(value)) if repeated else (), nodes=nodes, is_json=True)


class _Merged(dict[str, Any]):
    """An object with duplicate keys, which are `again`."""

    again: tuple[str, ...] = ()


def _merged(pairs: list[tuple[str, Any]]) -> _Merged:
    found, again = _Merged(), dict[str, None]()
    for key, value in pairs:
        if key in found:
            again[key] = None
            value = _over(found[key], value)
        found[key] = value
    found.again = tuple(again)[:MAX_DUPLICATES]
    return found


def _over(old: Any, new: Any) -> Any:
    """What Go's decoder makes of a field that has the value `old` and gets another one: objects are merged, lists by position."""
    if new is None:
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in new.items():
            old[key] = _over(old[key], value) if key in old else value
        return old
    if isinstance(old, list) and isinstance(new, list):
        return [_over(old[index], value) if index < len(old) else value for index, value in enumerate(new)]
    return new


def _repeated(value: Any) -> list[Place]:
    """Where objects have duplicate keys, in the order of the document."""
    found: list[Place] = []
    left: list[tuple[str, Any]] = [("", value)]
    while left and len(found) < MAX_DUPLICATES:
        path, node = left.pop()
        if isinstance(node, dict):
            found += [Place(f"{path}.{key}".removeprefix("."), 0) for key in getattr(node, "again", ())]
            left += [(f"{path}.{key}", item) for key, item in reversed(node.items()) if isinstance(item, dict | list)]
        elif isinstance(node, list):
            left += [(f"{path}[{index}]", node[index]) for index in reversed(range(len(node)))]
    return found[:MAX_DUPLICATES]


def _no_json_constant(name: str) -> None:
    raise NotJSON(name)


def _check_size(value: Any) -> int:
    """The number of values. DocumentError if they are nested too deeply or are too many. For values without aliases."""
    count = 0
    depth = 0
    level = [value]
    while level:
        depth += 1
        if depth > MAX_DEPTH and any(isinstance(node, dict | list) for node in level):
            raise DocumentError(TOO_DEEP)
        count += len(level)
        if count > MAX_NODES:
            raise DocumentError(TOO_MANY)
        level = [item for node in level if isinstance(node, dict | list) for item in _items(node)]
    return count


def _items(node: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return iter(node.values()) if isinstance(node, dict) else iter(node)
