"""Decodes what a patch has made of an object, with the errors that the API server gives for patches. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.decode import Decoded, FieldValidation, WrongType, decode, strict_text
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import Schema
from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json
from pykubelet_local_api.patch.strategic import go_text


def decode_patched(
    schema: Schema, patched: Json, validation: FieldValidation, remarks: Iterable[str] = (), strategic: Any = None
) -> Decoded:
    """Decode a patched object. Its `remarks` are warnings for the client.

    `remarks`: those about the patch itself. `strategic`: the patch, if it was a strategic one; such errors show it, and others
    the patched object. Raises StatusError 422: a wrong type; with `STRICT`, an unknown or duplicate field.
    """
    try:
        found = decode(schema, patched, (), validation is not FieldValidation.IGNORE)
    except WrongType as error:
        why = str(error) if strategic is None or not error.wanted else _restore_text(error.value, error.wanted)
        raise _invalid(patched, strategic, why) from None
    listed = (*remarks, *found.remarks)
    if listed and validation is FieldValidation.STRICT:
        raise _invalid(patched, strategic, strict_text(listed))
    return Decoded(found.object, listed if validation is FieldValidation.WARN else ())


def check_patched_type(kind: ResourceKind, found: Json, patched: Json, strategic: Any = None) -> None:
    """Refuse a patch that makes the object one of another kind. Raises StatusError 422."""
    given = (found.get("apiVersion") or "", found.get("kind") or "")
    if given == (kind.api_version, kind.name):
        return
    other = BY_TYPE.get(given)
    internal = kind.definition.split(".")[3]
    if other is not None:
        why = f"converting ({other.version}.{other.name}) to ({internal}.{kind.name}): unknown conversion"
    else:
        scheme = "pkg/api/legacyscheme/scheme.go:30"
        why = f'no kind "{given[1]}" is registered for version "{given[0]}" in scheme "{scheme}"'
    raise _invalid(patched, strategic, why)


def _invalid(patched: Json, strategic: Any, why: str) -> StatusError:
    if strategic is not None:
        shown = go_text(strategic)
    else:
        shown = msgspec.json.encode({key: patched[key] for key in sorted(patched)}).decode()
    message = f"Invalid value: {msgspec.json.encode(shown).decode()}: {why}"
    causes = [{"reason": "FieldValueInvalid", "message": message, "field": "patch"}]
    return StatusError(422, "Invalid", f' "" is invalid: patch: {message}', {"causes": causes})


def _restore_text(value: Any, wanted: str) -> str:
    """The error about a value of the wrong type in the result of a strategic merge patch."""
    kinds = {dict: "map", list: "slice", str: "string", bool: "bool", int: "int64", float: "float64"}
    kind = kinds.get(type(value), "nil")
    if wanted.startswith("[]"):
        return f"cannot restore slice from {kind}"
    if wanted.startswith("map[") or wanted == "v1.ResourceList":
        return f"cannot restore map from {kind}"
    if wanted.startswith("v1."):
        return f"cannot restore struct from: {kind}"
    return (
        f"cannot convert int64 to {wanted}"
        if kind == "int64" and wanted == "string"
        else f"unrecognized type: {wanted}"
    )
