"""JSON patches (RFC 6902) and merge patches (RFC 7386), as the API server applies them. Pure.

Where the API server departs from the RFC, so does this: `replace` and `copy` take a member that is not there for null, negative
indices count from the end, and a failed operation is answered without its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from pykubelet_local_api.errors import StatusError, bad_request
from pykubelet_local_api.objects import Json, copied, json_type

#: The most operations of a patch, as in the API server.
MAX_OPERATIONS = 10_000
#: The most bytes, as JSON, that all copies of a patch may have. That of the API server.
MAX_COPIED = 3 * 1024 * 1024
#: The most elements of lists that insertions and removals of a patch may move, which takes 10 ms: thousands of insertions into a
#: long list would block the event loop.
MAX_MOVED = 10_000_000

_INDEX = re.compile(r"[+-]?[0-9]{1,18}")
_TEXTS = ("op", "path", "from")


class _Failed(Exception):
    """An operation that cannot be done."""


def check_operations(body: Any) -> list[Json]:
    """The operations in the body of a patch. Raises StatusError 400 or 413 if it is none."""
    if not isinstance(body, list):
        raise _undecodable(f"{json_type(body)} into Go value of type []handlers.jsonPatchOp")
    if len(body) > MAX_OPERATIONS:
        raise StatusError(
            413,
            "RequestEntityTooLarge",
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{MAX_OPERATIONS}, got {len(body)}",
        )
    for operation in body:
        if not isinstance(operation, dict):
            raise _undecodable(f"{json_type(operation)} into Go value of type handlers.jsonPatchOp")
        for name in _TEXTS:
            value = operation.get(name)
            if value is not None and not isinstance(value, str):
                raise _undecodable(f"{json_type(value)} into Go struct field jsonPatchOp.{name} of type string")
    return body


def unknown_members(operations: list[Json]) -> Iterator[str]:
    """Remarks about members that operations do not have, for strict field validation."""
    for index, operation in enumerate(operations):
        for name in operation:
            if name not in _TEXTS and name != "value":
                yield f'json patch unknown field "[{index}].{name}"'


def _undecodable(why: str) -> StatusError:
    return bad_request(f"error decoding patch: json: cannot unmarshal {why}")


def json_patch(old: Json, operations: Any) -> Json:
    """The object after all operations. `old` is not changed.

    Raises StatusError: 400 if these are no operations, 413 if they are too many, 422 if one cannot be done.
    """
    document = _Document(copied(old))
    try:
        for operation in check_operations(operations):
            document.apply(operation)
        if not isinstance(document.root, dict):
            raise _Failed
    except _Failed:
        raise StatusError(
            422, "Invalid", "the server rejected our request due to an error in our request", {}
        ) from None
    return document.root


class _Document:
    """The document while it is changed, and what the operations have cost so far."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._copied = 0
        self._moved = 0

    def apply(self, operation: Json) -> None:
        path = operation.get("path")
        if path is None:
            raise _Failed
        match operation.get("op"):
            case "add":
                self._add(path, operation.get("value"))
            case "remove":
                self._remove(path)
            case "replace":
                self._replace(path, operation.get("value"))
            case "move":
                found = self._get(_source(operation))
                self._remove(_source(operation))
                self._add(path, found)
            case "copy":
                self._add(path, self._copy(self._get(_source(operation))))
            case "test":
                found = self.root if path == "" else self._get(path)
                if not _same(found, operation.get("value")):
                    raise _Failed
            case _:
                raise _Failed

    def _parent(self, path: str) -> tuple[Any, str]:
        """The map or list that has what the path names, and its key or index there."""
        parts = path.split("/")
        if len(parts) < 2:
            raise _Failed
        found = self.root
        for part in parts[1:-1]:
            found = _member(found, _unescaped(part))
            if not isinstance(found, dict | list):
                raise _Failed
        return found, _unescaped(parts[-1])

    def _get(self, path: str) -> Any:
        parent, key = self._parent(path)
        return _member(parent, key)

    def _add(self, path: str, value: Any) -> None:
        parent, key = self._parent(path)
        if isinstance(parent, dict):
            parent[key] = value
        elif key == "-":
            parent.append(value)
        else:
            index = _index(key, len(parent) + 1)
            self._count_moved(len(parent) - index)
            parent.insert(index, value)

    def _remove(self, path: str) -> None:
        parent, key = self._parent(path)
        if isinstance(parent, dict):
            if key not in parent:
                raise _Failed
            del parent[key]
        else:
            index = _index(key, len(parent))
            self._count_moved(len(parent) - index)
            del parent[index]

    def _replace(self, path: str, value: Any) -> None:
        if path == "":
            if not isinstance(value, dict | list):
                raise _Failed
            self.root = value
            return
        parent, key = self._parent(path)
        if isinstance(parent, dict):
            parent[key] = value
        else:
            parent[_index(key, len(parent))] = value

    def _copy(self, value: Any) -> Any:
        text = msgspec.json.encode(value)
        self._copied += len(text)
        if self._copied > MAX_COPIED:
            raise _Failed
        return msgspec.json.decode(text)

    def _count_moved(self, elements: int) -> None:
        self._moved += elements
        if self._moved > MAX_MOVED:
            raise _Failed


def _source(operation: Json) -> str:
    found = operation.get("from")
    if found is None:
        raise _Failed
    return str(found)


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~") if "~" in part else part


def _member(parent: Any, key: str) -> Any:
    return parent.get(key) if isinstance(parent, dict) else parent[_index(key, len(parent))]


def _index(key: str, length: int) -> int:
    if not _INDEX.fullmatch(key):
        raise _Failed
    index = int(key)
    if not -length <= index < length:
        raise _Failed
    return index + length if index < 0 else index


def _same(left: Any, right: Any) -> bool:
    """Whether two values are the same as JSON: `1` is neither `true` nor `1.0`."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return len(left) == len(right) and all(key in right and _same(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def merge_patch(old: Json, patch: Any) -> Json:
    """The object with a merge patch applied. `old` is not changed; the result shares what did not change, and parts of `patch`.

    Raises StatusError 400 if the patch is not an object.
    """
    if patch is None:
        raise bad_request("Invalid JSON Patch")
    if not isinstance(patch, dict):
        raise _undecodable(f"{json_type(patch)} into Go value of type map[string]interface {{}}")
    return _merged(old, patch)


def _merged(old: Json, patch: Json) -> Json:
    found = dict(old)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
            continue
        current = found.get(key)
        found[key] = (
            _merged(current, value) if isinstance(current, dict) and isinstance(value, dict) else _pruned(value)
        )
    return found


def _pruned(value: Any) -> Any:
    """The value without members that are null, also below lists."""
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    return value
