"""What most strategies share: namespaces, metadata, the status that clients may not write, and quantities. Pure.

Source: the Kubernetes API conventions (Metadata; Spec and Status); the Kubernetes documentation "Admission Control", NamespaceLifecycle.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from pykubelet.base.api.codec import DecodeError, from_object
from pykubelet.base.api.core import ObjectMeta
from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet.base.manifests.validation.errors import Errors, invalid, validate_metadata
from pykubelet_local_api.errors import StatusError, bad_request
from pykubelet_local_api.errors import forbidden as refused
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.strategy import Context, KindStrategy

T = TypeVar("T")
IMMUTABLE = "field is immutable"
NODE_USER = "system:node:"
NODES = "system:nodes"
#: Metadata that a write to the status may change on no kind that resets it.
_RESET_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")


def struct_of(kind: type[T], value: object, shown: ResourceKind) -> T:
    """The object as a struct. Raises `StatusError` (400) if a field has the wrong type."""
    try:
        return from_object(kind, value)
    except DecodeError as error:
        where = f'{shown.name} in version "{shown.version}" cannot be handled as a {shown.name}'
        raise bad_request(f"{where}: json: cannot unmarshal: {error}") from None


def shown_name(found: Json) -> str:
    """The name for messages: the prefix of the name, if that is not generated yet."""
    meta = found.get("metadata") or {}
    return str(meta.get("name") or meta.get("generateName") or "")


def canonical_amounts(holder: Json, *fields: str) -> None:
    """Spell quantities as the API server stores them: a field with one, or a map of them. Unreadable ones stay."""
    for field in fields:
        listed = holder.get(field)
        if isinstance(listed, dict):
            for name, amount in listed.items():
                listed[name] = _canonical(amount)
        elif listed is not None:
            holder[field] = _canonical(listed)


def _canonical(amount: object) -> object:
    try:
        return str(parse(amount).rounded_to_milli()) if isinstance(amount, str | int | float) else amount
    except QuantityError:
        return amount


def node_of(context: Context) -> str:
    """The name of the node that is the client; "" for other clients."""
    user = context.user
    return user.name.removeprefix(NODE_USER) if NODES in user.groups and user.name.startswith(NODE_USER) else ""


def distinct(errors: Errors) -> Errors:
    """The errors, each once."""
    return list(dict.fromkeys(errors))


def immutable_errors(new: object, old: object, path: str, detail: str = IMMUTABLE) -> Errors:
    """A rule: the field does not change. Absent and empty are the same."""
    return [] if (new or None) == (old or None) else [invalid(path, new, detail)]


def admit_namespace(kind: ResourceKind, new: Json, context: Context) -> None:
    """NamespaceLifecycle: no new objects in a namespace that is missing or is being deleted."""
    namespace = str(new["metadata"].get("namespace") or "")
    found = context.view.get("namespaces", "", namespace)
    if found is None:
        details = {"name": namespace, "kind": "namespaces"}
        raise StatusError(404, "NotFound", f'namespaces "{namespace}" not found', details)
    if found["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        error = refused(kind, shown_name(new), why)
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {namespace} is being terminated",
            "field": "metadata.namespace",
        }
        raise StatusError(error.code, error.reason, error.message, error.details | {"causes": [cause]})


class ObjectStrategy(KindStrategy):
    """The rules that nearly all kinds share. A kind overrides `default`, `validate` and `validate_change`.

    `resets_metadata`: a write to the status changes no labels, annotations, finalizers and owners.
    """

    resets_metadata: ClassVar[bool] = False

    def __init__(self, kind: ResourceKind) -> None:
        self.kind = kind

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        """Admission of a created or changed object, after the defaults. Raises `StatusError` (403)."""

    def validate(self, new: Json, context: Context) -> Errors:
        """The wrong fields, besides those of the metadata."""
        return []

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        """Changes that are not allowed, besides those of the metadata."""
        return self.validate(new, context)

    def first_status(self, new: Json, context: Context) -> Json | None:
        """The status of a new object; None if the kind has none."""
        return {} if self.kind.has_status else None

    def prepare_create(self, new: Json, context: Context) -> None:
        new.setdefault("metadata", {})
        if self.kind.is_namespaced:
            admit_namespace(self.kind, new, context)
        if (status := self.first_status(new, context)) is not None:
            new["status"] = status
        self.default(new, None, context)
        self.admit(new, None, context)

    def prepare_update(self, new: Json, old: Json, context: Context) -> None:
        if context.subresource:
            self.prepare_subresource(new, old, context)
            return
        if self.kind.has_status:
            keep(new, old, "status")
        self.default(new, old, context)
        self.admit(new, old, context)

    def prepare_subresource(self, new: Json, old: Json, context: Context) -> None:
        """Keep what a write to a subresource does not change. This is the rule of `status`."""
        for field in old.keys() | new.keys():
            if field not in ("status", "metadata", "kind", "apiVersion"):
                keep(new, old, field)
        if self.resets_metadata:
            for field in _RESET_METADATA:
                keep(new["metadata"], old["metadata"], field)

    def validate_create(self, new: Json, context: Context) -> Errors:
        return distinct(self.metadata_errors(new) + self.validate(new, context))

    def validate_update(self, new: Json, old: Json, context: Context) -> Errors:
        errors = self.metadata_errors(new)
        check = self.validate_subresource if context.subresource else self.validate_change
        return distinct(errors + check(new, old, context))

    def validate_subresource(self, new: Json, old: Json, context: Context) -> Errors:
        """The wrong fields of a changed status."""
        return []

    def metadata_errors(self, new: Json) -> Errors:
        """The wrong fields of the metadata, besides name and namespace, which the registry checks."""
        meta = struct_of(ObjectMeta, new["metadata"], self.kind)
        errors = validate_metadata(
            meta, "metadata", is_namespaced=self.kind.is_namespaced, name_errors=self.name_errors
        )
        return [error for error in errors if error.path not in ("metadata.name", "metadata.namespace")]


def keep(new: Json, old: Json, field: str) -> None:
    """Make a field of `new` that of `old`."""
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)
