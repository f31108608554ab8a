"""Finds text that no file name, variable, argument or call can have: with a NUL character or with half of a surrogate pair. Pure.

The API server admits NUL in many fields, and JSON may have both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

NUL = "must not have a NUL character: no file name, variable or argument can have one"
SURROGATE = "must not have half of a surrogate pair, which is no text"


def unusable_text(value: object) -> tuple[str, str] | None:
    """The path of the first such text in `value`, an API object or what JSON can have, and the reason; None if there is none."""
    try:
        if b"\\u0000" not in msgspec.json.encode(value):
            return None
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
        pass  # a surrogate, or a value that is no part of an API object: every text is looked at
    for path, text in _texts(value):
        if reason := _reason(text):
            return path.encode("utf-8", "replace").decode().replace("\0", "?"), reason
    return None


def _reason(text: str) -> str:
    if "\0" in text:
        return NUL
    try:
        text.encode()
    except UnicodeEncodeError:
        return SURROGATE
    return ""


def _texts(value: object) -> Iterator[tuple[str, str]]:
    """Every text in `value`, keys included, with its path; the first ones first."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        path, node = left.pop()
        if isinstance(node, str):
            yield path, node
        elif isinstance(node, msgspec.Struct):
            names = zip(node.__struct_fields__, node.__struct_encode_fields__, strict=True)
            left += [(f"{path}.{shown}".lstrip("."), getattr(node, name)) for name, shown in reversed([*names])]
        elif isinstance(node, dict):
            left += [
                (f"{path}.{key}".lstrip("."), text) for key, item in reversed(node.items()) for text in (item, key)
            ]
        elif isinstance(node, list | tuple):
            left += [(f"{path}[{index}]", item) for index, item in reversed([*enumerate(node)])]
