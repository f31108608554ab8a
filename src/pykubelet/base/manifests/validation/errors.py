"""What the validation of every object shares: errors of fields as values, rules of common fields, and metadata. Pure.

Owns the kinds of errors, their rendering with the API server's messages, and the rules that fields of many objects have: numbers, file
paths, file modes, and metadata with the annotations of pods that have their own rules. Where the reference prints a Go struct, this prints
the object as JSON. Paths are text: `spec.containers[0].name`, map keys as `limits[cpu]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

import msgspec

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import ObjectMeta, OwnerReference, PodSpec
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


# Metadata

ANNOTATIONS_LIMIT = 256 * 1024
STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
MIRROR = "kubernetes.io/config.mirror"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_DELETION_COST = re.compile(r"0|-?[1-9]\d{0,9}", re.ASCII)


def validate_labels(labels: Mapping[str, str], path: str) -> Errors:
    """Keys and values of a label map."""
    errors: Errors = []
    for key, value in sorted(labels.items()):
        errors += invalids(path, key, names.qualified_name_errors(key))
        errors += invalids(path, value, names.label_value_errors(value))
    return errors


def validate_annotations(annotations: Mapping[str, str], path: str) -> Errors:
    """Keys (upper or lower case) and the total size."""
    errors: Errors = []
    size = 0
    for key, value in sorted(annotations.items()):
        errors += invalids(path, key, names.qualified_name_errors(key.lower()))
        size += len(key.encode()) + len(value.encode())
    if size > ANNOTATIONS_LIMIT:
        errors.append(too_long(path, ANNOTATIONS_LIMIT))
    return errors


def validate_metadata(
    meta: ObjectMeta,
    path: str,
    *,
    is_namespaced: bool = True,
    name_errors: Callable[[str], list[str]] = names.dns_subdomain_errors,
) -> Errors:
    """Metadata of an object. `name_errors`: the rule of its name, by default a DNS subdomain."""
    errors: Errors = []
    if meta.generateName:
        prefix = meta.generateName
        masked = prefix[:-1] + "a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        errors += invalids(f"{path}.generateName", prefix, name_errors(masked))
    if not meta.name:
        errors.append(required(f"{path}.name", "name or generateName is required"))
    else:
        errors += invalids(f"{path}.name", meta.name, name_errors(meta.name))
    if not is_namespaced:
        if meta.namespace:
            errors.append(forbidden(f"{path}.namespace", "not allowed on this type"))
    elif not meta.namespace:
        errors.append(required(f"{path}.namespace"))
    else:
        errors += invalids(f"{path}.namespace", meta.namespace, names.dns_label_errors(meta.namespace))
    errors += nonnegative(f"{path}.generation", meta.generation)
    errors += validate_labels(meta.labels, f"{path}.labels")
    errors += validate_annotations(meta.annotations, f"{path}.annotations")
    errors += _validate_owners(meta.ownerReferences, f"{path}.ownerReferences")
    errors += _validate_finalizers(meta.finalizers, f"{path}.finalizers")
    return errors


def _validate_owners(owners: tuple[OwnerReference, ...], path: str) -> Errors:
    """The owners. As in the reference, the errors of all have the path of the list."""
    errors: Errors = []
    controller, is_reported = "", False
    for owner in owners:
        if not owner.apiVersion:
            errors.append(invalid(f"{path}.apiVersion", owner.apiVersion, "version must not be empty"))
        for field in ("kind", "name", "uid"):
            if not getattr(owner, field):
                errors.append(invalid(f"{path}.{field}", "", "must not be empty"))
        if owner.apiVersion == "v1" and owner.kind == "Event":
            errors.append(invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner"))
        if owner.controller:
            shown = f"{owner.kind}/{owner.name}"
            if controller and not is_reported:
                is_reported = True  # once: each error lists all owners
                detail = (
                    "Only one reference can have Controller set to true. "
                    f'Found "true" in references for {controller} and {shown}'
                )
                errors.append(invalid(path, owners, detail))
            controller = shown
    return errors


def _validate_finalizers(finalizers: tuple[str, ...], path: str) -> Errors:
    errors: Errors = []
    for i, name in enumerate(finalizers):
        errors += invalids(path, name, names.qualified_name_errors(name))
        if "/" not in name and name not in STANDARD_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            errors.append(invalid(f"{path}[{i}]", name, detail))
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        errors.append(invalid(path, finalizers, detail))
    return errors


def validate_pod_annotations(annotations: Mapping[str, str], spec: PodSpec, path: str) -> Errors:
    """Annotations of a pod that the node or controllers interpret."""
    errors: Errors = []
    if MIRROR in annotations and not spec.nodeName:
        detail = "must set spec.nodeName if mirror pod annotation is set"
        errors.append(invalid(f"{path}[{MIRROR}]", annotations[MIRROR], detail))
    if DELETION_COST in annotations:
        cost = annotations[DELETION_COST]
        if not _DELETION_COST.fullmatch(cost) or not -(1 << 31) <= int(cost) < 1 << 31:
            errors.append(invalid(f"{path}[{DELETION_COST}]", cost, "must be a 32bit integer"))
    return errors


def validate_template_metadata(meta: ObjectMeta, path: str) -> Errors:
    """Metadata of an embedded template: labels and annotations, nothing else."""
    errors = validate_annotations(meta.annotations, f"{path}.annotations")
    errors += validate_labels(meta.labels, f"{path}.labels")
    for field in meta.__struct_fields__:
        if field not in ("labels", "annotations") and getattr(meta, field) != getattr(_EMPTY, field):
            errors.append(forbidden(f"{path}.{field}", "cannot be set"))
    return errors


_EMPTY = ObjectMeta()
