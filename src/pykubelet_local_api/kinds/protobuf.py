"""Decodes the protobuf form of objects to JSON values. Pure; the cost is linear in the size.

Clients of client-go send objects in this form; answers are JSON, which all of them read. The result has the fields that were sent, also
empty ones: `decode` drops what JSON would not have.
Source: the Protocol Buffers documentation "Encoding"; Kubernetes documentation, "Kubernetes API Concepts", "Kubernetes Protobuf encoding".
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec

from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import Value
from pykubelet_local_api.kinds.protobuf_fields import MESSAGES
from pykubelet_local_api.objects import Json

#: The first bytes of an object.
MAGIC = b"k8s\x00"
#: The deepest messages; those of a Pod are at about level 15.
MAX_DEPTH = 64
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ProtobufDecodeError(ValueError):
    """The bytes are no object of this kind. The text has the reason."""


class _Field(Value):
    """A field of a message. `form`: one, list, map or inline."""

    name: str
    type: str
    form: str


def decode_object(data: bytes, message: str) -> Json:
    """The object in an envelope. `message`: such as `core.v1.Pod`. Raises ProtobufDecodeError."""
    if not data.startswith(MAGIC):
        raise ProtobufDecodeError("the body does not begin with the mark of Kubernetes' protobuf form")
    api_version = kind = ""
    raw = memoryview(b"")
    for number, value in _fields(memoryview(data)[len(MAGIC) :]):
        if number == 1:
            for part, text in _fields(_bytes(value)):
                if part == 1:
                    api_version = _text(text)
                elif part == 2:
                    kind = _text(text)
        elif number == 2:
            raw = _bytes(value)
        elif number == 3 and _text(value):
            raise ProtobufDecodeError(f"unknown encoding {_text(value)!r}")
    found = decode_message(raw, message)
    return {"kind": kind, "apiVersion": api_version, **found}


def decode_message(data: memoryview, message: str, depth: int = 0) -> Json:
    """The JSON object of one message. Unknown fields are skipped, as protobuf wants it. Raises ProtobufDecodeError."""
    if depth > MAX_DEPTH:
        raise ProtobufDecodeError(f"messages are nested too deeply: at most {MAX_DEPTH} levels are allowed")
    table, found = _table(message), {}
    for number, value in _fields(data):
        field = table.get(number)
        if field is None:
            continue
        match field.form:
            case "inline":
                found.update(decode_message(_bytes(value), field.type, depth + 1))
            case "list":
                found.setdefault(field.name, []).append(_value(value, field.type, depth))
            case "map":
                key, item = _entry(_bytes(value), field.type, depth)
                found.setdefault(field.name, {})[key] = item
            case _:
                found[field.name] = _value(value, field.type, depth)
    return {name: value for name, value in found.items() if value is not None}


@cache
def _table(message: str) -> dict[int, _Field]:
    found = {}
    for text in MESSAGES[message].split(", ") if MESSAGES[message] else ():
        name, number, kind = text.split(" ")
        form = {"[": "list", "{": "map", "+": "inline"}.get(kind[0], "one")
        found[int(number)] = _Field(name, kind.strip("[]{}+"), form)
    return found


def _entry(data: memoryview, kind: str, depth: int) -> tuple[str, Any]:
    """The key and value of an entry of a map."""
    key, value = "", None
    for number, part in _fields(data):
        if number == 1:
            key = _text(part)
        elif number == 2:
            value = _value(part, kind, depth)
    if value is None and "." not in kind:
        value = "" if kind in ("string", "bytes", "Quantity") else value
    return key, value


def _value(value: int | memoryview, kind: str, depth: int) -> Any:
    if "." in kind:
        return decode_message(_bytes(value), kind, depth + 1)
    return _READERS[kind](value)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The numbers and values of the fields of a message."""
    at, size = 0, len(data)
    while at < size:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
        elif wire == _BYTES:
            length, at = _varint(data, at)
            if length > size - at:
                raise ProtobufDecodeError("a field is longer than the message")
            yield number, data[at : at + length]
            at += length
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
            if length > size - at:
                raise ProtobufDecodeError("a field is longer than the message")
            at += length
        else:
            raise ProtobufDecodeError(f"unknown wire type {wire}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ProtobufDecodeError("a number is cut off or too long")
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at
        shift += 7


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ProtobufDecodeError("a number where bytes are expected")
    return value


def _text(value: int | memoryview) -> str:
    try:
        return str(_bytes(value), "utf-8")
    except UnicodeDecodeError as error:
        raise ProtobufDecodeError(f"text is not UTF-8: {error.reason}") from error


def _int(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ProtobufDecodeError("bytes where a number is expected")
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _moment(value: int | memoryview) -> tuple[int, int] | None:
    """Seconds and nanoseconds; None for a time that is not set."""
    parts = {number: _int(part) for number, part in _fields(_bytes(value))}
    return (parts.get(1, 0), parts.get(2, 0)) if parts else None


def _time(value: int | memoryview) -> str | None:
    moment = _moment(value)
    return None if moment is None else _checked_time(moment[0])


def _micro_time(value: int | memoryview) -> str | None:
    moment = _moment(value)
    return None if moment is None else f"{_checked_time(moment[0])[:-1]}.{abs(moment[1]) // 1000:06}Z"


def _checked_time(seconds: int) -> str:
    try:
        return format_time(seconds)
    except (ValueError, OverflowError, OSError) as error:
        raise ProtobufDecodeError(f"a time is out of range: {seconds}") from error


def _quantity(value: int | memoryview) -> str:
    return next((_text(part) for number, part in _fields(_bytes(value)) if number == 1), "0")


def _int_or_string(value: int | memoryview) -> int | str:
    parts = dict(_fields(_bytes(value)))
    if parts.get(1, 0) == 1:
        return _text(parts.get(3, memoryview(b"")))
    return _int(parts.get(2, 0))


def _json(value: int | memoryview) -> Any:
    raw = next((_bytes(part) for number, part in _fields(_bytes(value)) if number == 1), None)
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except msgspec.MsgspecError as error:
        raise ProtobufDecodeError(f"a part that must be JSON is none: {error}") from error


def _texts(value: int | memoryview) -> list[str]:
    return [_text(part) for number, part in _fields(_bytes(value)) if number == 1]


def _duration(value: int | memoryview) -> str:
    parts = dict(_fields(_bytes(value)))
    return f"{_int(parts.get(1, 0)) / 1e9:g}s"


_READERS: dict[str, Callable[[int | memoryview], Any]] = {
    "string": _text,
    "int": _int,
    "bool": lambda value: bool(_int(value)),
    "bytes": lambda value: base64.b64encode(_bytes(value)).decode(),
    "Time": _time,
    "MicroTime": _micro_time,
    "Quantity": _quantity,
    "IntOrString": _int_or_string,
    "JSON": _json,
    "Texts": _texts,
    "Duration": _duration,
}
