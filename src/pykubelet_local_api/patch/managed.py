"""Server-side apply, and `metadata.managedFields` of all other writes. Pure.

Entries of managers are kept by what identifies them: name, operation, version (of updates) and subresource. The registry calls
`record_update` for each write that is no apply, with the object as it is after defaults and before admission changes it, so that what
admission adds has no manager. Source: Kubernetes documentation, "Server-Side Apply"; KEP-555. Messages are the API server's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from pykubelet.base.kit.values import Value, replace
from pykubelet_local_api.errors import StatusError, bad_request
from pykubelet_local_api.kinds.decode import zero_object
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import Schema, schema_of
from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json, timestamp
from pykubelet_local_api.patch import fields as sets
from pykubelet_local_api.patch.fields import Fields
from pykubelet_local_api.patch.reset import owned_fields
from pykubelet_local_api.patch.typed import FieldComparison, error_text, fields_of, merge, remove, type_errors

#: The most entries of updates; the oldest are merged into one.
MAX_UPDATE_MANAGERS = 10
#: The most values of an object whose fields have managers: more would block the event loop for longer than 50 ms. A pod has hundreds.
MAX_VALUES = 5_000
#: The most bytes of all annotations.
_MAX_ANNOTATIONS = 256 * 1024
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_STRIPPED: Fields = {}
for _path in (
    ("f:apiVersion",),
    ("f:kind",),
    ("f:metadata",),
    *(
        ("f:metadata", f"f:{_name}")
        for _name in (
            "name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation", "managedFields", "resourceVersion",
        )
    ),
):  # fmt: skip
    sets.insert(_STRIPPED, _path)


class FieldManager(NamedTuple):
    """What identifies an entry. `version`: "" for apply, which has one entry for all versions."""

    name: str
    operation: str
    version: str
    subresource: str

    def shown(self) -> str:
        """As messages about conflicts show it."""
        text = msgspec.json.encode(self.name).decode()
        if self.subresource:
            text += f" with subresource {msgspec.json.encode(self.subresource).decode()}"
        return f"{text} using {self.version}" if self.operation == "Update" else text


class ManagedEntry(Value):
    """The fields of a manager. `time`: of its last change; "" if none was noted."""

    fields: Fields
    version: str
    time: str = ""


Entries = dict[FieldManager, ManagedEntry]


class _Conflict(Exception):
    """Fields that other managers have: pairs of a manager, and the path of a field with its text."""

    def __init__(self, found: list[tuple[FieldManager, tuple[str, ...], str]]) -> None:
        super().__init__()
        self.found = found

    def error(self) -> StatusError:
        causes = [
            {"reason": "FieldManagerConflict", "message": f"conflict with {manager.shown()}", "field": shown}
            for manager, _, shown in self.found
        ]
        if len(self.found) == 1:
            manager, _, shown = self.found[0]
            message = f"Apply failed with 1 conflict: conflict with {manager.shown()}: {shown}"
        else:
            by_manager = dict[FieldManager, list[str]]()
            for manager, _, shown in self.found:
                by_manager.setdefault(manager, []).append(shown)
            lines = list[str]()
            for manager in sorted(by_manager):
                lines += [f"conflicts with {manager.shown()}:", *(f"- {shown}" for shown in by_manager[manager])]
            message = f"Apply failed with {len(self.found)} conflicts: " + "\n".join(lines)
        return StatusError(409, "Conflict", message, {"causes": causes})


def _read(listed: Any) -> Entries:
    """The entries of `metadata.managedFields`. Raises ValueError if one is wrong."""
    found: Entries = {}
    for entry in listed or ():
        operation, version = entry.get("operation"), entry.get("apiVersion")
        if operation not in ("Apply", "Update"):
            raise ValueError("operation must be `Apply` or `Update`")
        if not version:
            raise ValueError("apiVersion must not be empty")
        if entry.get("fieldsType") != "FieldsV1":
            raise ValueError("fieldsType must be FieldsV1")
        manager = FieldManager(
            entry.get("manager") or "",
            operation,
            version if operation == "Update" else "",
            entry.get("subresource") or "",
        )
        found[manager] = ManagedEntry(sets.decode(entry.get("fieldsV1") or {}), version, entry.get("time") or "")
    return found


def _write(entries: Entries) -> list[Json]:
    def order(item: tuple[FieldManager, ManagedEntry]) -> tuple[str, str, str, str, str]:
        manager, entry = item
        return manager.operation, entry.time, manager.name, entry.version, manager.subresource

    found = list[Json]()
    for manager, entry in sorted(entries.items(), key=order):
        line: Json = {"manager": manager.name} if manager.name else {}
        line |= {"operation": manager.operation, "apiVersion": entry.version}
        line |= {"time": entry.time} if entry.time else {}
        line |= {"fieldsType": "FieldsV1", "fieldsV1": sets.encode(entry.fields)}
        found.append(line | ({"subresource": manager.subresource} if manager.subresource else {}))
    return found


class _Writes:
    """One write of an object of a kind."""

    def __init__(self, kind: ResourceKind, subresource: str, now: float) -> None:
        self.kind = kind
        self.schema: Schema = schema_of(kind.definition)
        self.subresource = subresource
        self.time = timestamp(now)

    def manager(self, name: str, operation: str) -> FieldManager:
        version = self.kind.api_version if operation == "Update" else ""
        return FieldManager(name or "unknown", operation, version, self.subresource)

    def owned(self, fields: Fields) -> Fields:
        """Without the fields that this way of writing resets."""
        return owned_fields(self.kind, self.subresource, fields)

    def take(
        self, entries: Entries, live: Json, new: Json, mine: FieldManager | None, force: bool
    ) -> tuple[Entries, FieldComparison]:
        """The entries after others have lost what the write changes and removes. Raises _Conflict unless `force`."""
        compared = FieldComparison(self.schema, live, new)
        changed = self.owned(sets.union(compared.modified, compared.added))
        removed = self.owned(compared.removed)
        found: Entries = {}
        conflicts = list[tuple[FieldManager, tuple[str, ...], str]]()
        for manager, entry in entries.items():
            fields = entry.fields
            if entry.version != self.kind.api_version:
                if (entry.version, self.kind.name) not in BY_TYPE:
                    continue  # a version that is not served any more
            elif manager != mine:
                lost = sets.intersection(fields, changed)
                conflicts += ((manager, way, shown) for way, shown in sets.paths(lost))
                fields = sets.difference(sets.difference(fields, lost), removed)
            if fields:
                found[manager] = entry if fields is entry.fields else replace(entry, fields=fields)
        if conflicts and not force:
            raise _Conflict(conflicts)
        return found, compared

    def update(self, entries: Entries, live: Json, new: Json, name: str) -> Entries:
        """The entries after an update."""
        found, compared = self.take(entries, live, new, None, force=True)
        fields = self.owned(sets.union(compared.modified, compared.added))
        fields = sets.difference(fields, _STRIPPED)
        if fields:
            manager = self.manager(name, "Update")
            before = found.get(manager)
            both = sets.union(before.fields, fields) if before is not None else fields
            found[manager] = ManagedEntry(both, self.kind.api_version, self.time)
        return _capped(found)

    def apply(self, entries: Entries, live: Json, applied: Json, name: str, force: bool) -> tuple[Json, Entries]:
        """The object and the entries after an apply. Raises _Conflict."""
        manager = self.manager(name, "Apply")
        merged = merge(self.schema, live, applied)
        last = entries.get(manager)
        mine = ManagedEntry(
            self.owned(fields_of(self.schema, applied)), self.kind.api_version, last.time if last is not None else ""
        )
        entries = {**entries, manager: mine}
        new = self._pruned(merged, entries, last.fields) if last is not None and last.fields else merged
        found, _ = self.take(entries, live, new, manager, force)
        is_changed = new != live
        kept = sets.difference(mine.fields, _STRIPPED)
        if kept:
            found[manager] = replace(mine, fields=kept, time=self.time if is_changed else mine.time)
        else:
            found.pop(manager, None)
        return (new if is_changed else live), found

    def _pruned(self, merged: Json, entries: Entries, last: Fields) -> Json:
        """Without the fields that the manager has applied before and no manager has any more."""
        schema = self.schema
        last = sets.with_named(last, schema)
        managed: Fields = {}
        for entry in entries.values():
            managed = sets.union(managed, entry.fields)
        managed = sets.with_named(managed, schema)
        there = sets.with_named(fields_of(schema, merged), schema)
        left = self._there(remove(schema, merged, last))
        left = self._there(remove(schema, merged, sets.difference(there, sets.union(left, managed))))
        gone = sets.intersection(sets.difference(there, left), last)
        found: Json = remove(schema, merged, gone) or {}
        return found

    def _there(self, value: Any) -> Fields:
        return sets.with_named(fields_of(self.schema, value), self.schema)

    def last_applied(self, live: Json) -> Fields:
        """The fields that `kubectl apply` without server-side apply had set, and that are still as it set them."""
        text = (live["metadata"].get("annotations") or {}).get(_LAST_APPLIED)
        try:
            applied = msgspec.json.decode(text or "")
        except (msgspec.DecodeError, UnicodeError):
            return {}
        if not isinstance(applied, dict) or applied.get("apiVersion") != self.kind.api_version:
            return {}
        if type_errors(self.schema, applied):
            return {}
        compared = FieldComparison(self.schema, applied, live)
        found = fields_of(self.schema, applied)
        for changed in (compared.modified, compared.added, compared.removed):
            found = sets.difference(found, changed)
        return found


def _capped(entries: Entries) -> Entries:
    """Merge the oldest entries of updates by version, until at most `MAX_UPDATE_MANAGERS` are left."""
    updates = sorted(
        (manager for manager in entries if manager.operation == "Update"),
        key=lambda manager: (entries[manager].time, manager),
    )
    count = len(updates)
    if count <= MAX_UPDATE_MANAGERS:
        return entries
    found = dict(entries)
    first_of = dict[str, FieldManager]()
    for manager in updates:
        if count <= MAX_UPDATE_MANAGERS:
            break
        entry = found[manager]
        first = first_of.setdefault(entry.version, manager)
        if first == manager:
            continue
        bucket = FieldManager("ancient-changes", "Update", entry.version, "")
        if bucket not in found:
            found[bucket] = found.pop(first)
        if manager != bucket:
            del found[manager]
            count -= 1
        found[bucket] = ManagedEntry(sets.union(entry.fields, found[bucket].fields), entry.version, entry.time)
    return found


def _unmanaged(found: Json) -> Json:
    """The object without its managed fields."""
    metadata = found.get("metadata") or {}
    if "managedFields" not in metadata:
        return found
    return found | {"metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def _is_large(found: Json) -> bool:
    """Whether the object has more than `MAX_VALUES` values."""
    left: list[Any] = [found]
    count = 0
    while left and count <= MAX_VALUES:
        node = left.pop()
        count += len(node)
        left += [item for item in (node.values() if isinstance(node, dict) else node) if isinstance(item, dict | list)]
    return count > MAX_VALUES


def record_update(
    kind: ResourceKind, old: Json | None, new: Json, manager: str, now: float, subresource: str = ""
) -> list[Json] | None:
    """`metadata.managedFields` of `new` after a write that is no apply. None: the object has none, because it had none or is large.

    `old`: None for a new object. `new`: decoded and defaulted; its own `managedFields` count if it is written as a whole, so that
    clients may edit them, and an empty list removes them. `subresource`: "" for the object itself.
    """
    before = None if old is None else old["metadata"].get("managedFields")
    given = None if subresource else (new.get("metadata") or {}).get("managedFields")
    entries: Entries = {}
    is_reset = given == [] or given == [{}]
    if not is_reset:
        try:
            entries = _read(given)
        except (ValueError, AttributeError, TypeError):
            entries = {}
        if not entries:
            given = before
            entries = _read_stored(before)
    bare = _unmanaged(new)
    if (not entries and old is not None) or _is_large(bare):
        return None
    writes = _Writes(kind, subresource, now)
    live = _unmanaged(old) if old is not None else _typed_zero(kind, writes.schema)
    if live == bare:
        return given
    return _write(writes.update(entries, live, bare, manager)) or None


def _read_stored(listed: Any) -> Entries:
    try:
        return _read(listed)
    except (ValueError, AttributeError, TypeError):
        return {}


def _typed_zero(kind: ResourceKind, schema: Schema) -> Json:
    return zero_object(schema) | {"apiVersion": kind.api_version, "kind": kind.name}


def apply(
    kind: ResourceKind, old: Json | None, applied: Json, manager: str, now: float, force: bool, subresource: str = ""
) -> Json:
    """The object after a server-side apply, with its managed fields renewed; not decoded again, and without defaults.

    `old`: None if there is none. If nothing but managed fields changes, the rest is that of `old`. `manager` is not "".
    Raises StatusError: 400 for another kind, 409 for conflicts, 413 for a large object, 500 (as the API server) for a body that
    contradicts the schema.
    """
    given = (applied.get("apiVersion") or "", applied.get("kind") or "")
    if given != (kind.api_version, kind.name):
        group, slash, version = str(given[0]).rpartition("/")
        raise bad_request(f"invalid object type: {group if slash else ''}/{version}, Kind={given[1]}")
    metadata = applied.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    writes = _Writes(kind, subresource, now)
    if _is_large(applied) or (old is not None and _is_large(_unmanaged(old))):
        raise StatusError(
            413,
            "RequestEntityTooLarge",
            f"Request entity too large: server-side apply takes objects of at most {MAX_VALUES} values; "
            "use kubectl create or kubectl replace, or several objects",
        )
    errors = type_errors(writes.schema, applied)
    if errors:
        raise StatusError(500, "", _typed_error(kind, applied, errors))
    zero = _typed_zero(kind, writes.schema)
    live = zero if old is None else _unmanaged(old)
    try:
        entries = {} if old is None else _read(old["metadata"].get("managedFields"))
    except (ValueError, AttributeError, TypeError) as error:
        raise StatusError(500, "", f"failed to decode managed fields: {error}") from None
    if not entries and old is not None:
        entries = writes.update({}, zero, live, "before-first-apply")
    try:
        new, entries = _apply(writes, entries, live, applied, manager, force)
    except _Conflict as conflict:
        raise conflict.error() from None
    if manager == "kubectl":
        new = _with_last_applied(new, applied)
    listed = _write(entries)
    return new | {"metadata": (new.get("metadata") or {}) | ({"managedFields": listed} if listed else {})}


def _apply(
    writes: _Writes, entries: Entries, live: Json, applied: Json, manager: str, force: bool
) -> tuple[Json, Entries]:
    """Apply; `kubectl` may take fields from what its client-side apply has set, without force."""
    try:
        return writes.apply(entries, live, applied, manager, force)
    except _Conflict as conflict:
        if manager != "kubectl":
            raise
        allowed = writes.last_applied(live)
        left = [item for item in conflict.found if not _has(allowed, item[1])]
        if left:
            raise _Conflict(left if allowed else conflict.found) from None
    return writes.apply(entries, live, applied, manager, force=True)


def _has(fields: Fields, way: tuple[str, ...]) -> bool:
    for key in way:
        if key not in fields:
            return False
        fields = fields[key]
    return sets.SELF in fields


def _with_last_applied(new: Json, applied: Json) -> Json:
    """Keep the annotation of client-side apply up to date, where there is one."""
    annotations = (new.get("metadata") or {}).get("annotations") or {}
    if not annotations.get(_LAST_APPLIED):
        return new
    bare = dict(applied)
    if isinstance(bare.get("metadata"), dict) and bare["metadata"].get("annotations"):
        rest = {key: value for key, value in bare["metadata"]["annotations"].items() if key != _LAST_APPLIED}
        bare["metadata"] = {key: value for key, value in bare["metadata"].items() if key != "annotations"}
        bare["metadata"] |= {"annotations": rest} if rest else {}
    text = msgspec.json.encode(bare, order="sorted").decode() + "\n"
    changed = annotations | {_LAST_APPLIED: text}
    if sum(len(key.encode()) + len(str(value).encode()) for key, value in changed.items()) > _MAX_ANNOTATIONS:
        del changed[_LAST_APPLIED]
    return new | {"metadata": new["metadata"] | {"annotations": changed}}


def _typed_error(kind: ResourceKind, applied: Json, errors: list[str]) -> str:
    metadata = applied.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    named = f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}"
    what = f"{named}; {kind.group}/{kind.version}, Kind={kind.name}"
    return f"failed to create typed patch object ({what}): {error_text(errors)}"


def with_kept_times(old: Json, new: Json) -> Json:
    """The object to store in the place of `old`: if only times of managed fields differ, they stay, and nothing has changed."""
    before, after = old["metadata"].get("managedFields"), new["metadata"].get("managedFields")
    if (
        before == after
        or not before
        or not after
        or _timeless(before) != _timeless(after)
        or _unmanaged(old) != _unmanaged(new)
    ):
        return new
    return new | {"metadata": new["metadata"] | {"managedFields": before}}


def _timeless(listed: list[Json]) -> list[Json]:
    found = [{key: value for key, value in entry.items() if key != "time"} for entry in listed]
    return sorted(
        found,
        key=lambda entry: tuple(str(entry.get(key)) for key in ("operation", "manager", "apiVersion", "subresource")),
    )
