"""Decodes API structs from bytes, encodes them, and finds text in them that nothing on a host can use. Pure.

Owns: cached decoders, the encoder, and errors that name the field. The fast path decodes straight into structs. The API also
allows an explicit `null` for any field, which structs do not accept. API servers write `null` for unset times:
`lastProbeTime`, which every condition of a pod has, is always cut out of the text first; other null times are cut out after
a decoding error about a null. If another null still causes an error, all nulls are removed from the parsed object, which
takes ten times as long.

The API server admits NUL in many fields, and JSON may have halves of surrogate pairs too (`unusable_text`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_WHERE = " - at `"
# Inside a string the quotes would be escaped, so this text is never part of a string value.
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

_TYPES = {
    str: "string",
    int: "integer",
    bool: "boolean",
    float: "number",
    list: "list",
    dict: "object",
    type(None): "null",
}
#: What stands for a key of a map in the decoder's paths.
_ANY_KEY = "[...]"
#: YAML takes plain words for something else than text.
_UNQUOTED = tuple(f"expected string, got {kind}" for kind in ("integer", "number", "boolean"))
_QUOTES = ": text that looks so needs quotes"


class DecodeError(ValueError):
    """Bytes or an object do not have the expected format. `path`: the field; empty for the whole."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


_decoders: dict[object, msgspec.json.Decoder[Any]] = {}
_encoder = msgspec.json.Encoder()


def decode(kind: type[T], data: bytes | str) -> T:
    """Decode JSON text to a struct. Raises DecodeError if it is not JSON or a field has the wrong type."""
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
    """Convert plain objects (from YAML or parsed JSON) to a struct. Raises DecodeError if a field has the wrong type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if "null`" not in str(error):
            raise _translated(error, value) from error
    value = without_nulls(value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _translated(error, value) from error


def _without_null_times(data: bytes) -> bytes:
    """Remove the null times from JSON text, unless one is the last member of its object. All other members stay."""
    for member in _NO_TIMES:
        data = data.replace(member, b"")
    return data


def encode(value: object) -> bytes:
    """Encode a struct as JSON. Fields at their default are left out."""
    return _encoder.encode(value)


def to_object(value: object) -> Any:
    """Convert a struct to plain objects, as JSON has them (lists, not tuples)."""
    return msgspec.json.decode(_encoder.encode(value))


def without_nulls(value: Any) -> Any:
    """The plain object without members that are null. A null in a list stays, because removing it would shift the others."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _translated(error: msgspec.ValidationError, value: object = None) -> DecodeError:
    """The error with the field's path and plain words. `value`: the object, if it is there: it names the key in a map."""
    text = str(error)
    reason, found, place = text.rpartition(_WHERE)
    reason, place = (reason, place) if found and place.endswith("`") else (text, "`")
    path = place[:-1].removeprefix("$").removeprefix(".")
    words = re.sub(r"`([^`]*)`", lambda found: _spoken(found[1]), reason)
    words = words[:1].lower() + words[1:]
    if path.endswith(_ANY_KEY):
        path = path.removesuffix(_ANY_KEY) + f"[{_wrong_key(value, path.removesuffix(_ANY_KEY), words)}]"
    hint = _QUOTES if words in _UNQUOTED else ""
    return DecodeError(path.replace(_ANY_KEY, "[*]"), words + hint)


def _wrong_key(value: object, path: str, words: str) -> str:
    """The first key of the map at a path whose value has the type that is not the expected one; `*` if it is not found."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        try:
            value = value[int(index)] if index else value[name]  # type: ignore[index]
        except (LookupError, TypeError):
            return "*"
    if not isinstance(value, dict):
        return "*"
    wrong = words.rpartition(", got ")[2]
    return next((str(key) for key, item in value.items() if _TYPES.get(type(item)) == wrong), "*")


def _spoken(types: str) -> str:
    return " or ".join(_WORDS.get(word, word) for word in types.split(" | ") if word != "null" or types == "null")


# Text that no file name, variable, argument or call can have: with a NUL character or with half of a surrogate pair

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
