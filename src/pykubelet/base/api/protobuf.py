"""Encodes Pods as protobuf, in steps between which other tasks of an event loop may run. Pure.

Owns: the encoding of structs by the table of `protobuf_fields.py`. Fields with the values that a decoder assumes for absent ones are left
out: empty text, lists and maps, and times that are not set. Optional numbers and booleans are written if they are set, also 0 and
false. Fields are in the order of their numbers, the keys of small maps in that of their names, so equal pods have equal bytes.
Source: the Protocol Buffers documentation "Encoding"; `generated.proto` of Kubernetes' core/v1 and meta/v1.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import astuple

from pykubelet.base.api import core
from pykubelet.base.api.protobuf_fields import MESSAGES
from pykubelet.base.api.quantity import QuantityError, canonical
from pykubelet.base.api.times import parse_time_ns

#: Values that are encoded between two steps, about 2 ms.
STEP = 1000
#: The keys of larger maps are not sorted, because that cannot be done in steps.
MAX_SORTED = 5000
#: The largest slice of a list that is encoded without a look at the number of values.
_CHUNK = 250
_VARINT, _BYTES = 0, 2
_NANOS = 1_000_000_000
_ONE_BYTE = tuple(bytes((number,)) for number in range(128))

#: Encodes a value with its tag.
_Put = Callable[[Any], bytes]
_Steps = Generator[None, None, None]
#: Encodes a value with its tag at the end of the buffer, in steps.
_PutInSteps = Callable[[Any, bytearray, "_Left"], _Steps]


class ProtobufError(ValueError):
    """A value cannot be encoded: a quantity or a time with a wrong text."""


class _Left:
    """The number of values until the next step."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = STEP


def encode_pod(pod: core.Pod) -> Generator[None, None, bytes]:
    """Encode a pod: a generator that yields about every `STEP` values, and returns the bytes. Raises ProtobufError."""
    out = bytearray()
    try:
        yield from _message_of("Pod").put_in_steps(pod, out, _Left())
    except QuantityError as error:
        raise ProtobufError(str(error)) from error
    return bytes(out)


def encode_now(pod: core.Pod) -> bytes:
    """Encode a pod that is known to be small, in one step."""
    steps = encode_pod(pod)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: bytes = end.value
            return result


def varint(number: int) -> bytes:
    """A number as a varint; a negative one in the 10 bytes of its two's complement."""
    if 0 <= number < 128:
        return _ONE_BYTE[number]
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def bytes_head(number: int, size: int) -> bytes:
    """What goes before the bytes, text or message of a field."""
    return _tag(number, _BYTES) + varint(size)


def bytes_field(number: int, data: bytes) -> bytes:
    """A field with bytes, text or a message."""
    return bytes_head(number, len(data)) + data


def varint_field(number: int, value: int) -> bytes:
    """A field with a number."""
    return _tag(number, _VARINT) + varint(value)


def _tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


class _Row(Struct, frozen=True):
    """A row of the table. `form`: one, list, map, inline."""

    name: str
    number: int
    type: str
    form: str


@cache
def table(message: str) -> tuple[_Row, ...]:
    """The fields of a message."""
    rows = []
    for text in MESSAGES[message].split(", "):
        name, number, kind = text.split(" ")
        form = {"[": "list", "{": "map", "+": "inline"}.get(kind[0], "one")
        rows.append(_Row(name, int(number), kind.strip("[]{}+"), form))
    return tuple(rows)


def _put_text(number: int) -> _Put:
    tag = _tag(number, _BYTES)

    def put(text: str) -> bytes:
        data = text.encode("utf-8", "replace")  # a surrogate, which YAML can contain, is no reason to fail
        size = len(data)
        return tag + (_ONE_BYTE[size] if size < 128 else varint(size)) + data

    return put


def _put_int(number: int) -> _Put:
    tag = _tag(number, _VARINT)
    return lambda value: tag + varint(value)


def _put_bool(number: int) -> _Put:
    values = _tag(number, _VARINT) + b"\0", _tag(number, _VARINT) + b"\1"
    return lambda value: values[value]


def _put_bytes(number: int) -> _Put:
    return lambda value: bytes_field(number, value)


def _put_time(number: int) -> _Put:
    return lambda text: bytes_field(number, _time(text))


def _put_quantity(number: int) -> _Put:
    return lambda value: bytes_field(number, _quantity(value))


def _put_int_or_string(number: int) -> _Put:
    return lambda value: bytes_field(number, _int_or_string(value))


@lru_cache(maxsize=1024)
def _time(text: str) -> bytes:
    try:
        seconds, nanos = divmod(parse_time_ns(text), _NANOS)
    except ValueError as error:
        raise ProtobufError(str(error)) from error
    return varint_field(1, seconds) + (varint_field(2, nanos) if nanos else b"")


@lru_cache(maxsize=1024, typed=True)
def _quantity(value: core.Quantity) -> bytes:
    return bytes_field(1, canonical(value).encode())


def _int_or_string(value: core.IntOrString) -> bytes:
    return varint_field(2, value) if isinstance(value, int) else varint_field(1, 1) + _put_text(3)(value)


_SCALARS: Final[dict[str, Callable[[int], _Put]]] = {
    "string": _put_text,
    "int": _put_int,
    "bool": _put_bool,
    "bytes": _put_bytes,
    "Time": _put_time,
    "Quantity": _put_quantity,
    "IntOrString": _put_int_or_string,
}


class _Field:
    """One field of a struct. Either `put`, or `put_in_steps` if a list or a map may be in it. `index`: its place in the struct."""

    __slots__ = ("index", "put", "put_in_steps")

    def __init__(self, index: int, put: _Put | None, put_in_steps: _PutInSteps | None) -> None:
        self.index = index
        self.put = put
        self.put_in_steps = put_in_steps


class _Message:
    """Encodes the structs of one class, or those of their fields that are in a message of their own (`inline`)."""

    def __init__(self, name: str, kind: type[Struct]) -> None:
        places = {field: index for index, field in enumerate(kind.__struct_fields__)}
        self.fields = tuple(_field(row, places.get(row.name, -1), kind) for row in table(name) if _is_in(row, places))
        self._plain = tuple((field.index, field.put) for field in self.fields if field.put is not None)
        self.has_lists = len(self._plain) < len(self.fields)

    def put(self, values: tuple[Any, ...]) -> bytes:
        """Encode the values of a struct without lists and maps."""
        out = b""
        for index, put in self._plain:
            value = values[index] if index >= 0 else values
            if value or value is False or value == 0:
                out += put(value)
        return out

    def put_in_steps(self, struct: Struct | tuple[Any, ...], out: bytearray, left: _Left) -> _Steps:
        """Append a struct, or the values of one, to the buffer."""
        values = struct if isinstance(struct, tuple) else astuple(struct)
        left.values -= 1
        for field in self.fields:
            value = values[field.index] if field.index >= 0 else values
            if not value and value is not False and value != 0:
                continue
            if field.put is not None:
                out += field.put(value)
            elif field.put_in_steps is not None:
                yield from field.put_in_steps(value, out, left)


def _is_in(row: _Row, places: dict[str, int]) -> bool:
    """Whether a struct has a field, or one of those that are inline: a table has those of several releases."""
    return row.name in places or (row.form == "inline" and any(_is_in(inner, places) for inner in table(row.type)))


@cache
def _message_of(name: str, inline_in: type[Struct] | None = None) -> _Message:
    return _Message(name, inline_in or getattr(core, name))


def _field(row: _Row, index: int, kind: type[Struct]) -> _Field:
    scalar = _SCALARS.get(row.type)
    tag = _tag(row.number, _BYTES)
    if scalar is not None:
        put = scalar(row.number)
        if row.form == "one":
            return _Field(index, put, None)
        return _Field(index, None, _list(put) if row.form == "list" else _map(tag, scalar(2)))
    message = _message_of(row.type, kind if row.form == "inline" else None)
    if message.has_lists:
        return _Field(index, None, _list_in_steps(tag, message) if row.form == "list" else _one_in_steps(tag, message))

    def put_message(struct: Any) -> bytes:
        data = message.put(struct if struct.__class__ is tuple else astuple(struct))
        return tag + varint(len(data)) + data

    return _Field(index, None, _list(put_message)) if row.form == "list" else _Field(index, put_message, None)


def _list(put: _Put) -> _PutInSteps:
    def put_in_steps(values: Iterable[Any], out: bytearray, left: _Left) -> _Steps:
        rest = iter(values)
        while chunk := b"".join(map(put, islice(rest, _CHUNK))):
            out += chunk
            left.values -= _CHUNK
            if left.values <= 0:
                left.values = STEP
                yield

    return put_in_steps


def _map(tag: bytes, put_value: _Put) -> _PutInSteps:
    put_key = _put_text(1)

    def put_entry(entry: tuple[str, Any]) -> bytes:
        data = put_key(entry[0]) + put_value(entry[1])
        return tag + varint(len(data)) + data

    put_entries = _list(put_entry)

    def put_in_steps(values: dict[str, Any], out: bytearray, left: _Left) -> _Steps:
        entries = sorted(values.items()) if len(values) <= MAX_SORTED else values.items()
        left.values -= len(values) >> 3  # for sorting
        yield from put_entries(entries, out, left)

    return put_in_steps


def _one_in_steps(tag: bytes, message: _Message) -> _PutInSteps:
    def put_in_steps(value: Any, out: bytearray, left: _Left) -> _Steps:
        data = bytearray()
        yield from message.put_in_steps(value, data, left)
        out += tag + varint(len(data))
        out += data

    return put_in_steps


def _list_in_steps(tag: bytes, message: _Message) -> _PutInSteps:
    put_item = _one_in_steps(tag, message)

    def put_in_steps(values: Iterable[Any], out: bytearray, left: _Left) -> _Steps:
        for value in values:
            yield from put_item(value, out, left)
            left.values -= 5
            if left.values <= 0:
                left.values = STEP
                yield

    return put_in_steps
