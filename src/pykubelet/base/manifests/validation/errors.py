"""Errors of fields as values, with the API server's messages. Pure.

Owns the kinds of errors, their rendering, and the rules that fields of many objects have: numbers, file paths, file
modes. Where the reference prints a Go struct, this prints the object as JSON. Paths are text: `spec.containers[0].name`, map keys as
`limits[cpu]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from pykubelet.base.api import labels as names
from pykubelet.base.kit.values import Value


class ErrorKind(StrEnum):
    """The kinds of field errors, with the text that messages show for each."""

    REQUIRED = "Required value"
    INVALID = "Invalid value"
    NOT_SUPPORTED = "Unsupported value"
    DUPLICATE = "Duplicate value"
    FORBIDDEN = "Forbidden"
    TOO_LONG = "Too long"
    TOO_MANY = "Too many"
    NOT_FOUND = "Not found"


_WITHOUT_VALUE = frozenset({ErrorKind.REQUIRED, ErrorKind.FORBIDDEN, ErrorKind.TOO_LONG})


class FieldError(Value):
    """One wrong field. `value` is already rendered as text."""

    path: str
    kind: ErrorKind
    value: str
    detail: str

    @property
    def body(self) -> str:
        """The message without the path."""
        text = str(self.kind) if self.kind in _WITHOUT_VALUE else f"{self.kind}: {self.value}"
        return f"{text}: {self.detail}" if self.detail else text

    def __str__(self) -> str:
        return f"{self.path}: {self.body}"


Errors = list[FieldError]


def show(value: object) -> str:
    """Format a value for messages: as JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str():
            return msgspec.json.encode(value).decode()
        case _:
            return msgspec.json.encode(value).decode()


def required(path: str, detail: str = "") -> FieldError:
    """A required field is missing."""
    return FieldError(path, ErrorKind.REQUIRED, "", detail)


def invalid(path: str, value: object, detail: str) -> FieldError:
    """A value that the field may not have. `detail` states what is allowed."""
    return FieldError(path, ErrorKind.INVALID, show(value), detail)


def invalid_bare(path: str, value: str, detail: str) -> FieldError:
    """Like `invalid`, for values the reference prints without quotes (quantities)."""
    return FieldError(path, ErrorKind.INVALID, value, detail)


def not_supported(path: str, value: object, supported: Iterable[str]) -> FieldError:
    """A value that is not one of `supported`, which is shown in the given order (that of the reference)."""
    listed = ", ".join(show(item) for item in supported)
    return FieldError(path, ErrorKind.NOT_SUPPORTED, show(value), f"supported values: {listed}")


def one_of(path: str, value: str, supported: Iterable[str]) -> Errors:
    """A rule: the value is not empty, and one of `supported`."""
    if not value:
        return [required(path)]
    listed = tuple(supported)
    return [] if value in listed else [not_supported(path, value, listed)]


def duplicate(path: str, value: object) -> FieldError:
    """A value that occurs twice where each must be unique."""
    return FieldError(path, ErrorKind.DUPLICATE, show(value), "")


def forbidden(path: str, detail: str) -> FieldError:
    """A field that may not be set in these circumstances."""
    return FieldError(path, ErrorKind.FORBIDDEN, "", detail)


def too_long(path: str, limit: int) -> FieldError:
    """A value longer than `limit` bytes."""
    return FieldError(path, ErrorKind.TOO_LONG, "", f"may not be more than {limit} bytes")


def too_many(path: str, count: int, limit: int) -> FieldError:
    """A list of `count` items where at most `limit` are allowed."""
    return FieldError(path, ErrorKind.TOO_MANY, str(count), f"must have at most {limit} items")


def not_found(path: str, value: object, detail: str = "") -> FieldError:
    """A reference to something that the object does not define."""
    return FieldError(path, ErrorKind.NOT_FOUND, show(value), detail)


def invalids(path: str, value: object, reasons: Iterable[str]) -> Errors:
    """One `invalid` for each reason."""
    return [invalid(path, value, reason) for reason in reasons]


def nonnegative(path: str, value: int | None) -> Errors:
    """A rule: the value is unset or not below zero."""
    return [invalid(path, value, "must be greater than or equal to 0")] if value is not None and value < 0 else []


def backstep_errors(target: str, path: str) -> Errors:
    """No `..` element."""
    return [invalid(path, target, "must not contain '..'")] if ".." in target.split("/") else []


def descending_path_errors(target: str, path: str) -> Errors:
    """Relative, without `..` elements."""
    errors: Errors = [invalid(path, target, "must be a relative path")] if target.startswith("/") else []
    return errors + backstep_errors(target, path)


def local_path_errors(target: str, path: str) -> Errors:
    """Relative, without `..` elements, and not beginning with `..` (the volume writer uses such names itself)."""
    errors = descending_path_errors(target, path)
    if target.startswith("..") and not target.startswith("../"):
        errors.append(invalid(path, target, "must not start with '..'"))
    return errors


def mode_errors(mode: int | None, path: str, highest: int = 0o777) -> Errors:
    """A file mode of at most `highest`: only the nine permission bits, unless it has more."""
    if mode is None or 0 <= mode <= highest:
        return []
    return [invalid(path, mode, f"must be a number between 0 and 0{highest:o} (octal), both inclusive")]


def owner_errors(user: int | None, path: str) -> Errors:
    """The user ID of a file's owner."""
    return [] if user is None else invalids(path, user, names.id_errors(user))
