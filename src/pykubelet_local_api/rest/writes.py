"""Answers to writes: create, update, patch, delete, and deletions of collections.

Owns: which body and parameters a write takes, and what it answers. What a write does is the registry's.
Source: the Kubernetes API reference; Kubernetes documentation, "Server-Side Apply" and "Update API Objects in Place Using kubectl patch".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pykubelet.base.kit.values import Value, replace
from pykubelet.net.http.server import Answer, Response
from pykubelet.net.http.wire import Request
from pykubelet_local_api.errors import StatusError, bad_request, needs_version, no_name, unsupported_patch
from pykubelet_local_api.kinds.decode import FieldValidation, check_validation, decode, decode_body
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.objects import Json, json_type
from pykubelet_local_api.patch.json_patch import check_operations, json_patch, merge_patch, unknown_members
from pykubelet_local_api.patch.managed import apply
from pykubelet_local_api.patch.patched import check_patched_type, decode_patched
from pykubelet_local_api.patch.strategic import strategic_patch
from pykubelet_local_api.registry import Deletion, ObjectRegistry
from pykubelet_local_api.rest.access import ClientAccess
from pykubelet_local_api.rest.delete_options import DELETE_OPTIONS, decode_delete_options, read_delete_options
from pykubelet_local_api.rest.formats import NOT_JSON, Accepted, ReadBody, answer, read_body, shown_object
from pykubelet_local_api.rest.json_errors import summary
from pykubelet_local_api.rest.large_bodies import LargeBodies
from pykubelet_local_api.rest.lists import list_answer, list_parts
from pykubelet_local_api.rest.options import (
    invalid_options,
    is_dry_run,
    read_bool,
    read_list_options,
    read_manager,
)
from pykubelet_local_api.rest.parts import AnswerParts
from pykubelet_local_api.rest.paths import Target
from pykubelet_local_api.rest.reads import read_list
from pykubelet_local_api.store.database import StoredKey
from pykubelet_local_api.store.sizes import LARGE_BYTES
from pykubelet_local_api.store.store import ObjectStore
from pykubelet_local_api.strategies.strategy import Context
from pykubelet_local_api.view import RequestUser
from pykubelet_local_api.write_options import WriteOptions

JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
#: So many warnings are sent at most, each with so many characters.
MAX_WARNINGS, MAX_WARNING = 10, 1000


class Write(Value):
    """One request that writes. `body`: as it was received."""

    request: Request
    body: bytes
    target: Target
    user: RequestUser
    accepted: Accepted
    parts: AnswerParts

    @property
    def kind(self) -> ResourceKind:
        """The kind of its objects."""
        return self.target.kind

    def shown(self, found: Json, code: int, now: float, warnings: Sequence[str] = ()) -> Response:
        """The answer with an object."""
        return answer(shown_object(self.accepted, self.kind, found, now), code, _warning_headers(warnings))


class Writes:
    """The writes of all kinds. All methods raise StatusError."""

    def __init__(self, store: ObjectStore, registry: ObjectRegistry, access: ClientAccess) -> None:
        self._store = store
        self._registry = registry
        self._access = access
        self._large = LargeBodies()

    async def create(self, write: Write) -> Response:
        """POST of a collection."""
        options = _options(write, "CreateOptions")
        body, warnings = await self._large.run(write.body, lambda: _read_object(write, "CreateOptions"))
        found = await self._registry.create(write.kind, write.target.namespace, body, options)
        return write.shown(found, 201, self._store.now, [*warnings, *await self._warnings(write, found, None)])

    async def update(self, write: Write) -> Response:
        """PUT of an object or a subresource."""
        options, target = _options(write, "UpdateOptions"), write.target
        body, warnings = await self._large.run(write.body, lambda: _read_object(write, "UpdateOptions"))
        if not (body.get("metadata") or {}).get("name"):
            raise no_name(target.name)
        strategy = self._registry.strategy_of(write.kind)
        old = self._store.get(write.kind.storage, target.namespace, target.name)
        if old and not strategy.allows_unconditional_update and not body["metadata"].get("resourceVersion"):
            raise needs_version(write.kind, target.name)

        def edit(stored: Json | None) -> Json:
            self._check_new(write, stored)
            return body

        found, is_new = await self._registry.update(
            write.kind,
            target.namespace,
            target.name,
            edit,
            options,
            target.subresource,
            may_create=strategy.allows_create_on_update and not target.subresource,
        )
        warnings = [*warnings, *await self._warnings(write, found, old)]
        return write.shown(found, 201 if is_new else 200, self._store.now, warnings)

    async def patch(self, write: Write) -> Response:
        """PATCH of an object or a subresource, of one of four types."""
        media_type = write.request.headers.get("content-type", "").partition(";")[0].strip()
        if media_type not in PATCHES:
            raise unsupported_patch()
        is_apply = media_type == APPLY_PATCH
        target, options = write.target, _options(write, "PatchOptions", is_apply=is_apply)
        options = replace(options, is_patch=True)
        validation = check_validation(write.request.first("fieldValidation"), "PatchOptions")
        is_forced = read_bool(write.request, "force")
        if is_forced and not is_apply:
            raise invalid_options("PatchOptions", ("force", "Forbidden: may not be specified for non-apply patch"))
        # a patch is JSON, or YAML for an apply; its media type is none of bodies
        body = await self._large.run(write.body, lambda: _read_patch(write, media_type))
        warnings: list[str] = []
        edit = (
            self._apply_edit(write, body, validation, options, is_forced, warnings)
            if is_apply
            else self._patch_edit(write, media_type, body, validation, warnings)
        )
        may_create = is_apply and not target.subresource
        found, is_new = await self._registry.update(
            write.kind, target.namespace, target.name, edit, options, target.subresource, may_create=may_create
        )
        warnings += await self._warnings(write, found, None if is_new else found)
        return write.shown(found, 201 if is_new else 200, self._store.now, warnings)

    def _check_new(self, write: Write, old: Json | None) -> None:
        """An update or an apply that makes a new object needs the verb `create` too. Raises 403."""
        if old is None:
            self._access.check_resource(write.user, "create", write.target)

    async def _warnings(self, write: Write, found: Json, old: Json | None) -> list[str]:
        context = Context(self._store, write.user, write.target.subresource)
        meta = found["metadata"]
        is_large = self._store.is_large(StoredKey(write.kind.storage, meta.get("namespace") or "", meta["name"]))
        return await self._large.run(
            write.body,
            lambda: self._registry.strategy_of(write.kind).warnings(found, old, context),
            is_large=is_large,
        )

    def _patch_edit(
        self, write: Write, media_type: str, body: ReadBody, validation: FieldValidation, warnings: list[str]
    ) -> Callable[[Json | None], Json]:
        schema = schema_of(write.kind.definition)
        remarks = [f'duplicate field "{path}"' for path in body.duplicates]
        if media_type == JSON_PATCH:
            remarks += unknown_members(check_operations(body.value))

        def edit(old: Json | None) -> Json:
            assert old is not None
            match media_type:
                case "application/json-patch+json":
                    new = json_patch(old, body.value)
                case "application/merge-patch+json":
                    new = merge_patch(old, body.value)
                case _:
                    new = strategic_patch(old, body.value, schema)
            strategic = body.value if media_type == STRATEGIC_PATCH else None
            decoded = decode_patched(schema, new, validation, remarks, strategic)
            check_patched_type(write.kind, decoded.object, new, strategic)
            if not decoded.object["metadata"].get("name"):
                raise no_name(write.target.name)
            warnings[:] = decoded.remarks
            return decoded.object

        return edit

    def _apply_edit(
        self,
        write: Write,
        body: ReadBody,
        validation: FieldValidation,
        options: WriteOptions,
        is_forced: bool,
        warnings: list[str],
    ) -> Callable[[Json | None], Json]:
        applied = body.value
        if not isinstance(applied, dict):
            raise bad_request(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal "
                f"{json_type(applied)} into Go value of type map[string]interface {{}}"
            )
        remarks = [
            *body.yaml_remarks,
            *(f'key "{path.rpartition(".")[2]}" already set in map' for path in body.duplicates),
        ]
        if remarks and validation is FieldValidation.STRICT:
            raise bad_request(f"error strict decoding YAML: error converting YAML to JSON: {_yaml_error(remarks)}")
        warnings[:] = remarks if validation is FieldValidation.WARN else ()
        meta = applied.get("metadata")
        name = meta.get("name") if isinstance(meta, dict) else None
        target = write.target
        is_kind = (applied.get("apiVersion"), applied.get("kind")) == (write.kind.api_version, write.kind.name)
        if is_kind and isinstance(name, str) and (name or target.name) != target.name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")

        def edit(old: Json | None) -> Json:
            self._check_new(write, old)
            new = apply(write.kind, old, applied, options.manager, self._store.now, is_forced, target.subresource)
            found = decode(schema_of(write.kind.definition), new, remark=False).object
            found["metadata"].setdefault("name", target.name)
            return found

        return edit

    async def delete(self, write: Write) -> Response:
        """DELETE of an object. Answers with the object, or with a Status for one that is gone."""
        target = write.target
        options = read_delete_options(write.request, _delete_body(write), write.user)
        deleted = await self._registry.delete(write.kind, target.namespace, target.name, options)
        return self._deleted(write, deleted)

    def _deleted(self, write: Write, deleted: Deletion) -> Response:
        """Pods and a few other kinds are answered with themselves, as the API server does; others with a Status once they are gone."""
        meta = deleted.object["metadata"]
        if not deleted.is_gone or write.kind.returns_deleted:
            return write.shown(deleted.object, 200, self._store.now)
        details = {
            "name": meta["name"],
            **({"group": write.kind.group} if write.kind.group else {}),
            "kind": write.kind.plural,
            "uid": meta["uid"],
        }
        return answer(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details},
        )

    async def delete_collection(self, write: Write) -> Answer:
        """DELETE of a collection: each object that the selectors take. Answers with the list of them."""
        options = read_delete_options(write.request, _delete_body(write), write.user)
        selected = read_list_options(write.request, is_watch=False)
        page = await read_list(self._store, write.kind, write.target.namespace, selected, write.parts.next_round)
        listed = list_parts(self._store, write.kind, page.items)
        for item in page.items:
            meta = item["metadata"]
            try:
                await self._registry.delete(write.kind, meta.get("namespace") or "", meta["name"], options)
            except StatusError as error:
                if error.code != 404:  # another client was faster
                    raise
        return list_answer(write.accepted, write.kind, page, listed, self._store.now, write.parts)


def _options(write: Write, options: str, *, is_apply: bool = False) -> WriteOptions:
    request = write.request
    return WriteOptions(
        write.user,
        read_manager(request, options, is_apply=is_apply),
        is_apply,
        is_dry_run(request.query.get("dryRun", []), options),
        len(write.body) > LARGE_BYTES,
    )


def _read_patch(write: Write, media_type: str) -> ReadBody:
    try:
        body = read_body(write.request, write.body, "", PATCHES)
        if body.value is None and media_type == MERGE_PATCH:
            raise bad_request("Invalid JSON Patch")
        return body if body.value is not None else replace(body, value=[] if media_type == JSON_PATCH else {})
    except StatusError as error:
        if not error.message.startswith(NOT_JSON):
            raise
        why = error.message.removeprefix(NOT_JSON)
        if media_type == APPLY_PATCH:
            raise bad_request(f"error decoding YAML: error converting YAML to JSON: yaml: {why}") from error
        raise bad_request(why if media_type == STRATEGIC_PATCH else f"error decoding patch: {why}") from error


def _read_object(write: Write, options: str) -> tuple[Json, Sequence[str]]:
    """The object in the body, and warnings about it."""
    try:
        return _decoded(write, options)
    except StatusError as error:
        # what cannot be read at all is shown
        if error.message.startswith(NOT_JSON):
            message = f"the object provided is unrecognized (must be of type {write.kind.name}): {error.message}"
            raise bad_request(f"{message} ({summary(write.body)})") from error
        if error.message.startswith("the object provided is unrecognized"):
            raise bad_request(f"{error.message} ({summary(write.body)})") from error
        raise


def _decoded(write: Write, options: str) -> tuple[Json, Sequence[str]]:
    body = read_body(write.request, write.body, write.kind.definition)
    if body.value is None and write.body.strip() == b"null":
        body = replace(body, value={})
    validation = check_validation(write.request.first("fieldValidation"), options)
    remarks = body.yaml_remarks
    if remarks and validation is FieldValidation.STRICT:
        remarks = (_yaml_error(remarks),)
    decoded = decode_body(write.kind, body.value, validation, body.duplicates, remarks)
    return decoded.object, decoded.remarks


def _yaml_error(remarks: Sequence[str]) -> str:
    return "\n  ".join(("yaml: unmarshal errors:", *remarks))


def _delete_body(write: Write) -> Json | None:
    """The DeletionOptions of a body; None without one."""
    if not write.body:
        return None
    value = read_body(write.request, write.body, DELETE_OPTIONS).value
    return decode_delete_options(value)


def _warning_headers(warnings: Sequence[str]) -> dict[str, str]:
    """The header of warnings (RFC 9111, obsoleted there but used by Kubernetes): code 299, and quoted texts."""
    texts = [text[:MAX_WARNING].replace("\\", "\\\\").replace('"', '\\"') for text in warnings[:MAX_WARNINGS]]
    return {"Warning": ", ".join(f'299 - "{text}"' for text in texts)} if texts else {}
