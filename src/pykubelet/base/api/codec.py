"""Between bytes and API structs. Pure.

Owns: cached decoders, the way back, and errors that name the field. The fast path decodes straight into structs; the API
also allows an explicit `null` for anything, which structs do not. Times without a value, which API servers write so, are
cut out of the text: that of a probe, which each condition of a pod has, before anything else, the others on a complaint.
On a complaint about another null all are taken out of the parsed object, which takes ten times as long.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_WHERE = re.compile(r"(.*?)(?: - at `\$?\.?(.*)`)?", re.DOTALL)
# Inside of a string the quotes would be escaped, so this is never a part of somebody's text.
_NO_PROBE_TIME = b'"lastProbeTime":null,'
_NO_TIMES = tuple(
    f'"{name}":null,'.encode()
    for name in ("lastTransitionTime", "creationTimestamp", "eventTime", "startedAt", "finishedAt")
)
_WORDS = {
    "str": "string",
    "int": "integer",
    "bool": "boolean",
    "float": "number",
    "array": "list",
    "object": "object",
    "null": "null",
}


class DecodeError(ValueError):
    """Bytes or an object that are not what they should be. `path`: the field, empty for the whole."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


_decoders: dict[object, msgspec.json.Decoder[Any]] = {}
_encoder = msgspec.json.Encoder()


def decode(kind: type[T], data: bytes | str) -> T:
    """JSON text as a struct. DecodeError when it is not JSON or a field has the wrong type."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    text = (data.encode() if isinstance(data, str) else data).replace(_NO_PROBE_TIME, b"")
    try:
        try:
            decoded: T = decoder.decode(text)
        except msgspec.ValidationError as error:
            if "null`" not in str(error):
                raise
            decoded = decoder.decode(_without_null_times(text))
        return decoded
    except msgspec.ValidationError as error:
        if "null`" not in str(error):
            raise _translated(error) from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise DecodeError("", str(error)) from error
    return from_object(kind, msgspec.json.decode(data))


def from_object(kind: type[T], value: object) -> T:
    """Plain objects (of YAML, or parsed JSON) as a struct. DecodeError when a field has the wrong type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if "null`" not in str(error):
            raise _translated(error) from error
    try:
        return msgspec.convert(without_nulls(value), kind)
    except msgspec.ValidationError as error:
        raise _translated(error) from error


def _without_null_times(data: bytes) -> bytes:
    """JSON text without the members that are times, null, and not the last of their object; all others stay."""
    for member in _NO_TIMES:
        data = data.replace(member, b"")
    return data


def encode(value: object) -> bytes:
    """A struct as JSON; fields at their default are left out."""
    return _encoder.encode(value)


def to_object(value: object) -> Any:
    """A struct as plain objects, the way JSON would have it (lists, not tuples)."""
    return msgspec.json.decode(_encoder.encode(value))


def without_nulls(value: object) -> object:
    """The same plain object without members that are null; a null in a list stays, because it has a place there."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _translated(error: msgspec.ValidationError) -> DecodeError:
    match = _WHERE.fullmatch(str(error))
    reason, path = (match[1], match[2] or "") if match else (str(error), "")
    words = re.sub(r"`([^`]*)`", lambda found: _spoken(found[1]), reason)
    return DecodeError(path.replace("[...]", "[*]"), words[:1].lower() + words[1:])


def _spoken(types: str) -> str:
    return " or ".join(_WORDS.get(word, word) for word in types.split(" | ") if word != "null" or types == "null")
