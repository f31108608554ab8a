"""API objects as this package holds them: plain JSON values. A stored object is never changed; a change is made to a copy.

Owns the short ways to read metadata. Objects have `metadata` with `name` once they are stored; a client's body may lack anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pykubelet.base.api.times import format_time

#: An object, or a part of one: what `json` makes of it.
Json = dict[str, Any]


def copied(value: Json) -> Json:
    """A copy that may be changed, also in depth. Costs time linear in the size."""
    copy: Json = msgspec.json.decode(msgspec.json.encode(value))
    return copy


def is_longer(value: Any, most: int) -> bool:
    """Whether a value has more bytes of JSON than `most`, about. Costs time linear in `most`, however long the value is."""
    left = [value]
    while left and most >= 0:
        match left.pop():
            case str() as found:
                most -= len(found) + 2
            case dict() as found:
                most -= 2 + 2 * len(found)
                left += (*found, *found.values()) if most >= 0 else ()
            case list() as found:
                most -= 2 + len(found)
                left += found if most >= 0 else ()
            case _:
                most -= 4
    return most < 0


def name_of(found: Json) -> str:
    """`metadata.name`."""
    return str(found["metadata"]["name"])


def namespace_of(found: Json) -> str:
    """`metadata.namespace`; "" for objects of the cluster."""
    return str(found["metadata"].get("namespace") or "")


def uid_of(found: Json) -> str:
    """`metadata.uid`."""
    return str(found["metadata"]["uid"])


def is_deleting(found: Json) -> bool:
    """Whether the object's deletion has begun."""
    return bool(found["metadata"].get("deletionTimestamp"))


def owners_of(found: Json) -> Iterator[Json]:
    """`metadata.ownerReferences`."""
    yield from found["metadata"].get("ownerReferences") or ()


def timestamp(seconds: float) -> str:
    """A moment, in seconds since 1970, as a field of type Time has it."""
    return format_time(seconds)


def json_type(value: Any) -> str:
    """The name of a value's type, as in messages of the API server."""
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
    return "object"
