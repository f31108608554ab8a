"""Create, update, patch and delete as the API server does them: the rules that all kinds have, around each kind's strategy.

Owns: names, UIDs, versions and times, conflicts and preconditions, generations, managed fields, graceful deletion, finalizers and dry
run. Each operation is one function on a transaction of the store, so nothing changes between its reads and its write.
Source: Kubernetes documentation, "Kubernetes API Concepts"; API conventions, "Metadata".
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable

from pykubelet.base.api import labels as names
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.values import Value
from pykubelet.base.manifests.validation.errors import Errors, forbidden, invalid, invalids, required, show
from pykubelet_local_api import errors
from pykubelet_local_api.access.node import NODES
from pykubelet_local_api.access.rbac import MASTERS
from pykubelet_local_api.kinds.conversion import to_served, to_stored
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import BY_PATH, STORED, KindsByPath
from pykubelet_local_api.objects import Json, copied, is_deleting, timestamp
from pykubelet_local_api.patch.managed import record_update, with_kept_times
from pykubelet_local_api.store.database import StoredKey
from pykubelet_local_api.store.sizes import MAX_OBJECT_BYTES, MAX_STORED_BYTES
from pykubelet_local_api.store.store import ObjectStore, Transaction
from pykubelet_local_api.strategies.strategy import Context, KindStrategy
from pykubelet_local_api.strategies.table import strategy_of
from pykubelet_local_api.write_options import DIRECTORY_MANAGER, DeletionOptions, WriteOptions

#: As in upstream: letters and digits that form no words.
NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
MAX_GENERATED = 63 - 5
NAME_TRIES = 8
OTHER_NAMESPACE = "the namespace of the provided object does not match the namespace sent on the request"
ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
#: Metadata that only this module sets.
_KEPT = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "generation",
    "resourceVersion",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


#: Groups that may store more than other clients: the machine must go on.
_UNBOUNDED = frozenset((MASTERS, NODES))


class Deletion(Value):
    """What a deletion did. `object`: its last or present state. `is_gone`: whether it is removed, and not only marked."""

    object: Json
    is_gone: bool


#: Makes the changed object from a private copy of the present one; None: there is none, so that it is created.
Edit = Callable[[Json | None], Json]


class ObjectRegistry:
    """The writes of all kinds. Errors are `StatusError`.

    `strategy_of`: the strategy of a kind; those of tests are laxer. `kinds`: those that are served.
    """

    def __init__(
        self,
        store: ObjectStore,
        strategy_of: Callable[[ResourceKind], KindStrategy] = strategy_of,
        kinds: KindsByPath = BY_PATH,
    ) -> None:
        self._store = store
        self.strategy_of = strategy_of
        self.kinds = kinds

    async def create(self, kind: ResourceKind, namespace: str, body: Json, options: WriteOptions) -> Json:
        """Store a new object and return it. `body` is not used afterwards by the caller."""
        return await self._store.write(
            lambda at: self._create(at, kind, namespace, copied(body) if options.is_large else body, options),
            is_large=options.is_large,
            is_dry_run=options.is_dry_run,
        )

    async def update(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        edit: Edit,
        options: WriteOptions,
        subresource: str = "",
        *,
        may_create: bool = False,
    ) -> tuple[Json, bool]:
        """Change an object; returns it, and whether it is new. With `may_create`, `edit` gets None for one that does not exist."""
        is_large = options.is_large or self._store.is_large(StoredKey(kind.storage, namespace, name))
        return await self._store.write(
            lambda at: self._update(
                at, kind, namespace, name, _again(edit) if is_large else edit, options, subresource, may_create
            ),
            is_large=is_large,
            is_dry_run=options.is_dry_run,
        )

    async def delete(self, kind: ResourceKind, namespace: str, name: str, options: DeletionOptions) -> Deletion:
        """Delete an object, or mark it for deletion while a grace period or finalizers hold it."""
        return await self._store.write(
            lambda at: self._delete(at, kind, namespace, name, options),
            is_large=self._store.is_large(StoredKey(kind.storage, namespace, name)),
            is_dry_run=options.is_dry_run,
            runs_ahead=False,  # the answer has the version of the deletion
        )

    # -- create

    def _create(self, at: Transaction, kind: ResourceKind, namespace: str, body: Json, options: WriteOptions) -> Json:
        new = to_stored(kind, body)
        meta = new["metadata"] = dict(new.get("metadata") or {})
        _check_type(kind, body)
        _place(kind, namespace, meta)
        for name in (
            "resourceVersion",
            "selfLink",
            "uid",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ):
            if meta.pop(name, None) and name == "resourceVersion":
                raise errors.bad_request("resourceVersion should not be set on objects to be created")
        _generate_name(at, kind, meta)
        meta["uid"], meta["creationTimestamp"] = str(uuid.uuid4()), timestamp(at.now)
        strategy, context = self.strategy_of(kind), Context(at, options.user)
        managers = _managers(kind, None, new, options, strategy, context)
        _check_managers(kind, None, new, managers, options)
        strategy.prepare_create(new, context)
        if strategy.has_generation:
            meta["generation"] = 1
        name = meta.get("name") or ""
        found = [*_metadata_errors(kind, strategy, meta), *strategy.validate_create(new, context)]
        if found:
            raise errors.invalid(kind, name, found)
        key = StoredKey(kind.storage, meta.get("namespace") or "", name)
        if (there := at.get(key.resource, key.namespace, name)) is not None:
            raise errors.already_exists(kind, name, is_deleting=is_deleting(there))
        _set_managers(new, managers)
        return to_served(kind, _put(at, key, new, options, ""))

    # -- update

    def _update(
        self,
        at: Transaction,
        kind: ResourceKind,
        namespace: str,
        name: str,
        edit: Edit,
        options: WriteOptions,
        subresource: str,
        may_create: bool,
    ) -> tuple[Json, bool]:
        key = StoredKey(kind.storage, namespace, name)
        stored = at.get(*_parts(key))
        if stored is None:
            if not may_create:
                raise errors.not_found(kind, name)
            made = edit(None)
            (made.get("metadata") or {}).pop("resourceVersion", None)  # of an object that is gone
            return self._create(at, kind, namespace, made, options), True
        old = to_served(kind, copied(stored))
        body = edit(copied(old))
        _check_type(kind, body)
        meta = body.get("metadata") or {}
        _check_identity(kind, namespace, name, old, meta, options)
        if wrong := _immutable_errors(old["metadata"], meta):
            raise errors.invalid(kind, name, wrong)
        new = to_stored(kind, body)
        return to_served(kind, self._replace(at, key, kind, stored, new, options, subresource)), False

    def _replace(
        self,
        at: Transaction,
        key: StoredKey,
        kind: ResourceKind,
        old: Json,
        new: Json,
        options: WriteOptions,
        subresource: str,
    ) -> Json:
        meta = new["metadata"] = dict(new.get("metadata") or {})
        for field in _KEPT:
            meta.pop(field, None)
            if field in old["metadata"]:
                meta[field] = old["metadata"][field]
        meta.pop("selfLink", None)
        strategy, context = self.strategy_of(kind), Context(at, options.user, subresource)
        managers = _managers(kind, old, new, options, strategy, context)
        _check_managers(kind, old, new, managers, options)
        strategy.prepare_update(new, old, context)
        found = [
            *(_metadata_errors(kind, strategy, meta) if not subresource else ()),
            *_finalizer_errors(old, new),
            *strategy.validate_update(new, old, context),
        ]
        if found:
            raise errors.invalid(kind, key.name, found)
        if strategy.has_generation and strategy.is_new_generation(new, old):
            meta["generation"] = int(meta.get("generation") or 0) + 1
        _set_managers(new, managers)
        if _is_same(old, new):
            return old
        if is_deleting(new) and not _holds(new) and not meta.get("deletionGracePeriodSeconds"):
            return _with_version(new, at.remove(key))
        return _put(at, key, new, options, old["metadata"]["resourceVersion"])

    # -- delete

    def _delete(
        self, at: Transaction, kind: ResourceKind, namespace: str, name: str, options: DeletionOptions
    ) -> Deletion:
        key = StoredKey(kind.storage, namespace, name)
        old = at.get(*_parts(key))
        if old is None:
            raise errors.not_found(kind, name)
        _check_preconditions(kind, old, options)
        meta = dict(old["metadata"])
        new = {**old, "metadata": meta}  # a deletion costs no more for a large object
        strategy = self.strategy_of(kind)
        strategy.prepare_delete(new, Context(at, options.user))
        _set_propagation(new, options.propagation or _marked_propagation(old) or strategy.default_propagation(old))
        was_deleting = is_deleting(old)
        before_s = int(meta.get("deletionGracePeriodSeconds") or 0)
        if not was_deleting:
            grace_s = strategy.grace_s(old, options.grace_s)
            meta["deletionTimestamp"] = timestamp(at.now + grace_s)
            meta["deletionGracePeriodSeconds"] = grace_s
            if meta.get("generation"):
                meta["generation"] += 1
        elif options.grace_s is not None:
            _shorten(meta, options.grace_s, at.now)
        if not _holds(new) and not meta.get("deletionGracePeriodSeconds"):
            if strategy.is_graceful and (before_s or not was_deleting):
                new = at.put(key, new)  # watches see the end of the grace period first
            removed = at.remove(key)
            last = new if was_deleting or strategy.is_graceful else old
            return Deletion(to_served(kind, _with_version(last, old if options.is_dry_run else removed)), True)
        if _is_same(old, new):
            return Deletion(to_served(kind, old), False)
        found = at.put(key, new)
        return Deletion(to_served(kind, _with_version(found, old) if options.is_dry_run else found), False)


def _shorten(meta: Json, asked_s: int, now: float) -> None:
    """A deletion that goes on gets the grace period that a client states, from its beginning on, if that is shorter.

    It does not end before now: then a second is left, for whoever ends what the object stands for.
    """
    before, grace_s = int(meta.get("deletionGracePeriodSeconds") or 0), 1 if asked_s < 0 else asked_s
    if grace_s < before:
        end = parse_time(meta["deletionTimestamp"]) - before + grace_s
        if end < now:
            end, grace_s = now, min(grace_s, 1)
        meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = timestamp(end), grace_s


def _again(edit: Edit) -> Edit:
    """An edit whose result is a private copy, for a write that may be decided again."""
    return lambda old: copied(edit(old))


def _parts(key: StoredKey) -> tuple[str, str, str]:
    return key.resource, key.namespace, key.name


def _check_type(kind: ResourceKind, body: Json) -> None:
    """The type in a body may be left out, but not be another one."""
    api_version, name = body.setdefault("apiVersion", kind.api_version), body.setdefault("kind", kind.name)
    if (api_version, name) != (kind.api_version, kind.name):
        raise errors.bad_request(
            f"{name} in version {str(api_version).rpartition('/')[2]!r} cannot be handled as a {kind.name}: "
            f"the API version in the data ({api_version}) does not match the expected API version ({kind.api_version})"
        )


def _place(kind: ResourceKind, namespace: str, meta: Json) -> None:
    if not kind.is_namespaced:
        meta.pop("namespace", None)
        return
    if meta.setdefault("namespace", namespace) != namespace:
        raise errors.bad_request(OTHER_NAMESPACE)


def _generate_name(at: Transaction, kind: ResourceKind, meta: Json) -> None:
    """Make a name from `generateName`, one that is free."""
    base = meta.get("generateName")
    if meta.get("name") or not isinstance(base, str) or not base:
        return
    for _ in range(NAME_TRIES):
        meta["name"] = base[:MAX_GENERATED] + "".join(secrets.choice(NAME_LETTERS) for _ in range(5))
        if at.get(kind.storage, meta.get("namespace") or "", meta["name"]) is None:
            return


def _metadata_errors(kind: ResourceKind, strategy: KindStrategy, meta: Json) -> Errors:
    name = meta.get("name")
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    if not isinstance(name, str):
        return [invalid("metadata.name", name, "must be text")]
    found = invalids("metadata.name", name, strategy.name_errors(name))
    if kind.is_namespaced:
        found += invalids("metadata.namespace", meta["namespace"], names.dns_label_errors(meta["namespace"]))
    return found


def _with_version(found: Json, removed: Json) -> Json:
    """An object in its last state, with the version of its deletion."""
    return found | {"metadata": found["metadata"] | {"resourceVersion": removed["metadata"]["resourceVersion"]}}


def _immutable_errors(old: Json, meta: Json) -> Errors:
    """Changes of metadata that a client may leave out, but not set to another value."""
    found = []
    for field in ("uid", "deletionGracePeriodSeconds"):
        value = meta.get(field)
        if value not in (None, "") and value != old.get(field):
            found.append(invalid(f"metadata.{field}", value, "field is immutable"))
    return found


def _check_identity(
    kind: ResourceKind, namespace: str, name: str, old: Json, meta: Json, options: WriteOptions
) -> None:
    """The name, namespace, UID and resource version in a body, if there, are those of the object."""
    if meta.get("name", name) != name:
        raise errors.bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
    if (meta.get("namespace") or namespace) != namespace:
        raise errors.bad_request(OTHER_NAMESPACE)
    version = meta.get("resourceVersion")
    if version not in (None, "", "0") and version != old["metadata"]["resourceVersion"]:
        raise errors.was_modified(kind, name)
    uid = meta.get("uid")
    if uid and uid != old["metadata"]["uid"] and not options.is_patch:
        key = "/".join(part for part in ("/registry", kind.plural, namespace, name) if part)
        why = (
            f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: "
            f"UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
        )
        raise errors.conflict(kind, name, why)


def _check_preconditions(kind: ResourceKind, old: Json, options: DeletionOptions) -> None:
    meta = old["metadata"]
    if options.uid and options.uid != meta["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise errors.precondition_failed(kind, meta["name"], why)
    if options.resource_version and options.resource_version != meta["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the ResourceVersion in record "
            f"({meta['resourceVersion']}). The object might have been modified"
        )
        raise errors.precondition_failed(kind, meta["name"], why)


def _finalizer_errors(old: Json, new: Json) -> Errors:
    """While an object is being deleted, no finalizer may be added."""
    if not is_deleting(old):
        return []
    added = sorted(set(new["metadata"].get("finalizers") or ()) - set(old["metadata"].get("finalizers") or ()))
    detail = "no new finalizers can be added if the object is being deleted, found new finalizers "
    listed = ", ".join(show(name) for name in added)
    return [forbidden("metadata.finalizers", f"{detail}[]string{{{listed}}}")] if added else []


def _holds(found: Json) -> bool:
    """Whether something must be done before the object may be removed. A Namespace has finalizers in its spec too."""
    spec = found.get("spec")
    in_spec = isinstance(spec, dict) and found.get("kind") == "Namespace" and bool(spec.get("finalizers"))
    return bool(found["metadata"].get("finalizers")) or in_spec


def _marked_propagation(old: Json) -> str:
    """What the object's finalizers ask for, if the client does not."""
    finalizers = old["metadata"].get("finalizers") or ()
    return "Orphan" if ORPHAN in finalizers else "Foreground" if FOREGROUND in finalizers else ""


def _set_propagation(new: Json, propagation: str) -> None:
    """What shall happen to the objects that this one owns: finalizers that the garbage collection takes away when it is done."""
    kept = [name for name in new["metadata"].get("finalizers") or () if name not in (ORPHAN, FOREGROUND)]
    match propagation:
        case "Orphan":
            kept.append(ORPHAN)
        case "Foreground":
            kept.append(FOREGROUND)
        case "Background":
            pass
        case _:
            return
    if kept or new["metadata"].get("finalizers"):
        new["metadata"]["finalizers"] = kept
    if not kept:
        new["metadata"].pop("finalizers", None)


def _managers(
    kind: ResourceKind,
    old: Json | None,
    new: Json,
    options: WriteOptions,
    strategy: KindStrategy,
    context: Context,
) -> list[Json] | None:
    """The managed fields after a write, made before admission changes the object: what admission adds has no manager.

    None: none. Those of an apply are in the object, and a binding has no manager.
    """
    kept = new if options.is_apply else old if context.subresource == "binding" else None
    if kept is not None:
        listed: list[Json] | None = kept["metadata"].get("managedFields")
        return listed
    written = new
    if not context.subresource:
        written = copied(new)
        strategy.default(written, old, context)
    stored = STORED.get(kind.storage, kind)
    return record_update(stored, old, written, options.manager, context.view.now, context.subresource)


def _check_managers(
    kind: ResourceKind, old: Json | None, new: Json, managers: list[Json] | None, options: WriteOptions
) -> None:
    """Who may change an object could otherwise have it deleted, as one that has left the folder of files. Raises StatusError 403."""
    is_reserved = any(entry.get("manager") == DIRECTORY_MANAGER for entry in managers or ())
    if not is_reserved or MASTERS in options.user.groups:
        return
    before = old["metadata"].get("managedFields") if old is not None else None
    if not any(entry.get("manager") == DIRECTORY_MANAGER for entry in before or ()):
        why = f'the field manager "{DIRECTORY_MANAGER}" is that of the files which administrators apply'
        raise errors.forbidden(kind, str(new["metadata"].get("name") or ""), why)


def _set_managers(new: Json, managers: list[Json] | None) -> None:
    new["metadata"].pop("managedFields", None)
    if managers is not None:
        new["metadata"]["managedFields"] = managers


def _put(at: Transaction, key: StoredKey, new: Json, options: WriteOptions, version: str) -> Json:
    """Store an object. A dry run answers with the resource version that there was, "" for none."""
    found = at.put(key, new)
    if at.has_grown:
        _check_size(at, key, options)
    if not options.is_dry_run:
        return found
    metadata = {name: value for name, value in found["metadata"].items() if name != "resourceVersion"}
    return found | {"metadata": metadata | ({"resourceVersion": version} if version else {})}


def _check_size(at: Transaction, key: StoredKey, options: WriteOptions) -> None:
    """Refuse an object that is too large (413), and more objects than clients may store (403)."""
    data = at.rows[-1].data or b""
    if len(data) > MAX_OBJECT_BYTES:
        raise errors.too_large(MAX_OBJECT_BYTES)
    if at.stored_bytes > MAX_STORED_BYTES and _UNBOUNDED.isdisjoint(options.user.groups):
        why = f"more than {MAX_STORED_BYTES >> 20} MiB would be stored: delete what is not needed"
        raise errors.forbidden(STORED[key.resource], key.name, why)


def _is_same(old: Json, new: Json) -> bool:
    """Whether nothing but times of managed fields differs."""
    return old == with_kept_times(old, new)
