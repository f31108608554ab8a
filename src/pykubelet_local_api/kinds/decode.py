"""Decodes the body of a request: drops what the schema does not know, refuses wrong types, and writes values as the API server does. Pure.

The result is what the API server has after it decoded a body and encodes it again: no nulls, no zero values that do not differ
from absent ones, `resources: {}` where it is always written, amounts and times in one spelling. Defaults are not set here.
Messages are the API server's, because clients and people compare them. Cost: linear in the size.
Source: Kubernetes documentation, "API Concepts", server-side field validation (KEP-2885).
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from pykubelet.base.api.quantity import QuantityError, canonical
from pykubelet.base.api.times import format_micro_time, format_time, parse_time_ns
from pykubelet.base.kit.values import Value
from pykubelet_local_api.errors import StatusError, bad_request
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import ZEROS, Schema, Shape, schema_of
from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json, json_type

#: The most unknown and duplicate fields that are named.
MAX_REMARKS = 100
_QUANTITY_PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


class FieldValidation(StrEnum):
    """What is done about unknown and duplicate fields: the query parameter `fieldValidation`."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


class WrongType(ValueError):
    """A value that its field cannot have. The text is the API server's. `wanted`: the name of the field's type; "" if that is right."""

    def __init__(self, text: str, value: Any = None, wanted: str = "") -> None:
        super().__init__(text)
        self.value = value
        self.wanted = wanted


class Decoded(Value):
    """What was decoded. `remarks`: the unknown and duplicate fields, such as `unknown field "spec.foo"`."""

    object: Json
    remarks: tuple[str, ...] = ()


def decode_body(
    kind: ResourceKind,
    body: Json,
    validation: FieldValidation,
    duplicates: Iterable[str] = (),
    remarks: Iterable[str] = (),
) -> Decoded:
    """Decode an object of a kind. Its `remarks` are warnings for the client.

    `duplicates`: the paths of fields that the text has twice. `remarks`: what the reader of a YAML text remarked, which comes
    first. Raises StatusError 400: a wrong type; with `STRICT`, an unknown or duplicate field.
    """
    _check_type(kind, body)
    try:
        found = decode(schema_of(kind.definition), body, duplicates, validation is not FieldValidation.IGNORE)
    except WrongType as error:
        raise _cannot_be_handled(kind, str(error)) from None
    listed = (*remarks, *found.remarks)
    if listed and validation is FieldValidation.STRICT:
        raise _cannot_be_handled(kind, strict_text(listed))
    found.object.update(apiVersion=kind.api_version, kind=kind.name)
    return Decoded(found.object, listed if validation is FieldValidation.WARN else ())


def _check_type(kind: ResourceKind, body: Any) -> None:
    """Refuse an object of another kind. One that does not name its kind has that of the path."""
    if not isinstance(body, dict):
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind.name}): couldn't get version/kind; json parse error: "
            f"json: cannot unmarshal {json_type(body)} into Go value of type struct "
            '{ APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
        )
    version, name = (body.get("apiVersion") or kind.api_version), (body.get("kind") or kind.name)
    for field, value in (("apiVersion", version), ("kind", name)):
        if not isinstance(value, str):
            raise bad_request(
                f"the object provided is unrecognized (must be of type {kind.name}): couldn't get version/kind; json parse error: "
                f"json: cannot unmarshal {json_type(value)} into Go struct field .{field} of type string"
            )
    if (version, name) == (kind.api_version, kind.name):
        return
    other = BY_TYPE.get((version, name))
    if other is None:
        why = f'no kind "{name}" is registered for version "{version}" in scheme "pkg/api/legacyscheme/scheme.go:30"'
    else:
        internal = kind.definition.split(".")[3]
        why = f"converting ({other.version}.{name}) to ({internal}.{kind.name}): unknown conversion"
    raise bad_request(f'{name} in version "{version.rpartition("/")[2]}" cannot be handled as a {kind.name}: {why}')


def _cannot_be_handled(kind: ResourceKind, why: str) -> StatusError:
    return bad_request(f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {why}')


def strict_text(remarks: Iterable[str]) -> str:
    """The error that refuses remarks."""
    return f"strict decoding error: {', '.join(remarks)}"


def decode(schema: Schema, body: Json, duplicates: Iterable[str] = (), remark: bool = True) -> Decoded:
    """Decode an object. `body` is not changed; parts without a schema are shared with it. Raises WrongType."""
    decoder = _Decoder(frozenset(duplicates), remark)
    found = decoder.struct(schema, body, "", "")
    return Decoded(found, tuple(decoder.remarks))


def zero_object(schema: Schema) -> Json:
    """An object of this type without any field, as the API server writes it."""
    found: Json = _ALONE.struct(schema, {}, "", "")
    return found


def check_validation(text: str, options: str) -> FieldValidation:
    """The value of the query parameter `fieldValidation`; "" stands for Warn.

    `options`: what the message calls the parameters, such as `CreateOptions`. Raises StatusError 422.
    """
    try:
        return FieldValidation(text or "Warn")
    except ValueError:
        shown = msgspec.json.encode(text).decode()
        body = f'Unsupported value: {shown}: supported values: "", "Ignore", "Strict", "Warn"'
        cause = {"reason": "FieldValueNotSupported", "message": body, "field": "fieldValidation"}
        details = {"group": "meta.k8s.io", "kind": options, "causes": [cause]}
        message = f'{options}.meta.k8s.io "" is invalid: fieldValidation: {body}'
        raise StatusError(422, "Invalid", message, details) from None


class _Decoder:
    """One walk. `owner` is the innermost struct, and `names` the fields on the way to it without indices: both are for messages."""

    def __init__(self, duplicates: frozenset[str], remark: bool) -> None:
        self.duplicates = duplicates
        self.remark = remark
        self.remarks: list[str] = []

    def value(self, schema: Schema, value: Any, path: str, names: str, owner: str) -> Any:
        shape = schema.shape
        if shape is Shape.STRING:
            return value if type(value) is str else _refuse(value, names, owner, "string")
        if shape is Shape.STRUCT:
            if type(value) is not dict and not isinstance(value, dict):
                _refuse(value, names, owner, f"v1.{_short(schema)}")
            return self.struct(schema, value, path, names)
        if shape is Shape.LIST:
            return self.list(schema, value, path, names, owner)
        if shape is Shape.MAP:
            return self.map(schema, value, path, names, owner)
        return _SCALARS[shape](schema, value, names, owner)

    def struct(self, schema: Schema, body: Json, path: str, names: str) -> Json:
        found: Json = {}
        owner = _short(schema)
        for key, value in body.items():
            field = schema.field(key)
            below = f"{path}.{key}" if path else key
            if self.duplicates and below in self.duplicates:
                self._remark(f'duplicate field "{below}"')
            if field is None:
                self._remark(f'unknown field "{below}"')
                continue
            if value is None:
                continue
            made = self.value(field, value, below, f"{names}.{key}" if names else key, owner)
            if made or not _is_dropped(key, field, schema):
                found[key] = made
        for key in schema.always:
            if key not in found:
                field = schema.field(key)
                if field is not None:
                    found[key] = self._zero(field)
        return found

    def _zero(self, schema: Schema) -> Any:
        return self.struct(schema, {}, "", "") if schema.shape is Shape.STRUCT else ZEROS[schema.shape]

    def list(self, schema: Schema, value: Any, path: str, names: str, owner: str) -> Any:
        if not isinstance(value, list):
            _refuse(value, names, owner, _go_type(schema))
        items = schema.items
        if items.shape is Shape.STRING and not self.duplicates:
            for item in value:
                if type(item) is not str:
                    break
            else:
                return value
        return [
            self._zero(items) if item is None else self.value(items, item, f"{path}[{index}]", names, owner)
            for index, item in enumerate(value)
        ]

    def map(self, schema: Schema, value: Any, path: str, names: str, owner: str) -> Any:
        if not isinstance(value, dict):
            _refuse(value, names, owner, _go_type(schema))
        if self.duplicates:
            for key in value:
                if f"{path}.{key}" in self.duplicates:
                    self._remark(f'duplicate field "{path}.{key}"')
        values = schema.values or schema
        if values.shape is Shape.STRING:
            for item in value.values():
                if type(item) is not str:
                    break
            else:
                return value
        return {
            key: self._zero(values) if item is None else self.value(values, item, f"{path}.{key}", names, owner)
            for key, item in value.items()
        }

    def _remark(self, text: str) -> None:
        if self.remark and len(self.remarks) < MAX_REMARKS:
            self.remarks.append(text)


def _is_dropped(key: str, field: Schema, owner: Schema) -> bool:
    """Whether the zero value of a field is left out."""
    if key in owner.dropped:
        return True
    return field.shape in (Shape.LIST, Shape.MAP, Shape.BYTES) and key not in owner.always


def _refuse(value: Any, names: str, owner: str, wanted: str, number: str = "") -> Any:
    shown = f"{json_type(value)} {number}" if number else json_type(value)
    text = f"json: cannot unmarshal {shown} into Go struct field {owner}.{names} of type {wanted}"
    raise WrongType(text, value, wanted)


def _short(schema: Schema) -> str:
    return schema.name.rpartition(".")[2]


_GO_TYPES = {
    Shape.STRING: "string",
    Shape.BOOLEAN: "bool",
    Shape.NUMBER: "float64",
    Shape.BYTES: "[]uint8",
    Shape.QUANTITY: "resource.Quantity",
    Shape.INT_OR_STRING: "intstr.IntOrString",
    Shape.TIME: "v1.Time",
    Shape.MICRO_TIME: "v1.MicroTime",
    Shape.ANY: "runtime.RawExtension",
}


def _go_type(schema: Schema) -> str:
    match schema.shape:
        case Shape.LIST:
            return f"[]{_go_type(schema.items)}"
        case Shape.MAP:
            values = schema.values or schema
            return "v1.ResourceList" if values.shape is Shape.QUANTITY else f"map[string]{_go_type(values)}"
        case Shape.STRUCT:
            return f"v1.{_short(schema)}"
        case Shape.INTEGER:
            return f"int{schema.bits}"
    return _GO_TYPES[schema.shape]


def _integer(schema: Schema, value: Any, names: str, owner: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(value, names, owner, f"int{schema.bits}", str(value) if isinstance(value, float) else "")
    if not -(1 << (schema.bits - 1)) <= value < 1 << (schema.bits - 1):
        _refuse(value, names, owner, f"int{schema.bits}", str(value))
    return value


def _number(_schema: Schema, value: Any, names: str, owner: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(value, names, owner, "float64")
    return value


def _boolean(_schema: Schema, value: Any, names: str, owner: str) -> Any:
    return value if isinstance(value, bool) else _refuse(value, names, owner, "bool")


def _bytes(_schema: Schema, value: Any, names: str, owner: str) -> Any:
    if not isinstance(value, str):
        _refuse(value, names, owner, "[]uint8")
    text = value.replace("\n", "").replace("\r", "") if "\n" in value or "\r" in value else value
    try:
        a2b_base64(text, strict_mode=True)
    except (Base64Error, ValueError):
        at = next((index for index, char in enumerate(value) if char not in _BASE64), len(value) // 4 * 4)
        raise WrongType(f"illegal base64 data at input byte {at}") from None
    return text


def _quantity(_schema: Schema, value: Any, _names: str, _owner: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise WrongType(f"quantities must match the regular expression '{_QUANTITY_PATTERN}'")
    try:
        return canonical(value)
    except QuantityError as error:
        raise WrongType(str(error)) from None


def _int_or_string(_schema: Schema, value: Any, names: str, owner: str) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(value, names, owner, "int32", str(value) if isinstance(value, float) else "")
    if not -(1 << 31) <= value < 1 << 31:
        _refuse(value, names, owner, "int32", str(value))
    return value


def _time(schema: Schema, value: Any, names: str, owner: str) -> Any:
    if not isinstance(value, str):
        _refuse(value, names, owner, "string")
    is_micro = schema.shape is Shape.MICRO_TIME
    try:
        moment = parse_time_ns(value)
        return format_micro_time(moment / 1_000_000_000) if is_micro else format_time(moment // 1_000_000_000)
    except (ValueError, OverflowError):  # no date, or one outside of the years 1 to 9999
        layout = "2006-01-02T15:04:05.000000Z07:00" if is_micro else "2006-01-02T15:04:05Z07:00"
        shown = msgspec.json.encode(value).decode()
        raise WrongType(f'parsing time {shown} as "{layout}": cannot parse {shown} as "2006"') from None


def _any(_schema: Schema, value: Any, _names: str, _owner: str) -> Any:
    return value


_SCALARS = {
    Shape.INTEGER: _integer,
    Shape.NUMBER: _number,
    Shape.BOOLEAN: _boolean,
    Shape.BYTES: _bytes,
    Shape.QUANTITY: _quantity,
    Shape.INT_OR_STRING: _int_or_string,
    Shape.TIME: _time,
    Shape.MICRO_TIME: _time,
    Shape.ANY: _any,
}
_ALONE = _Decoder(frozenset(), remark=False)
