"""The objects of the API server of tests: the local API's store and registry, in memory, and the test's own access to them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from support.api_strategies import SERVED, TEST, ServerTraits, lax_strategies

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value, replace
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.conversion import to_served
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import load_schemas
from pykubelet_local_api.objects import Json
from pykubelet_local_api.registry import ObjectRegistry
from pykubelet_local_api.rest.paths import parse_target
from pykubelet_local_api.rest.reads import read_object
from pykubelet_local_api.store.database import StoredKey
from pykubelet_local_api.store.history import ChangeHistory, StoredChange
from pykubelet_local_api.store.store import NoFile, ObjectStore, Transaction
from pykubelet_local_api.write_options import DeletionOptions, WriteOptions

load_schemas()  # from a file, so not on an event loop

T = TypeVar("T")
FIRST_VERSION = 1000
#: What a test writes has the managed fields that the test gives it.
_AS_GIVEN = WriteOptions(TEST, is_apply=True)
_STORED = {kind.storage: kind for kind in reversed(SERVED.values()) if not kind.stored_as}


class ResourcePath(Value):
    """The path of an object, a collection (`name` empty) or a subresource. `group`: `v1` or `group/version`."""

    group: str
    plural: str
    namespace: str = ""
    name: str = ""
    sub: str = ""

    @property
    def kind(self) -> ResourceKind:
        """The kind of the objects."""
        group, _, version = self.group.rpartition("/")
        return SERVED[group, version, self.plural]

    @property
    def key(self) -> StoredKey:
        """Where the object is stored."""
        return StoredKey(self.kind.storage, self.namespace, self.name)


def parse_resource_path(path: str) -> ResourcePath | None:
    """Parse an API path; None if it is none of a kind that is served."""
    found = parse_target(path, SERVED)
    if found is None:
        return None
    return ResourcePath(found.kind.api_version, found.kind.plural, found.namespace, found.name, found.subresource)


def place_of(path: str) -> ResourcePath:
    """Parse an API path that a test has written."""
    place = parse_resource_path(path)
    assert place is not None, path
    return place


class _KeptChange(StoredChange):
    """A change with its objects, which are in memory anyway: a watch with a selector decodes no text."""

    kept: Json
    kept_before: Json | None

    @property
    def object(self) -> Json:
        return self.kept

    @property
    def before(self) -> Json | None:
        return self.kept_before


class _MemoryTransaction(Transaction):
    def _add(self, change: StoredChange, new: Json | None) -> None:
        before = self.get(change.key.resource, change.key.namespace, change.key.name)
        kept = new
        if kept is None:
            assert before is not None
            kept = before | {"metadata": before["metadata"] | {"resourceVersion": str(change.version)}}
        texts = (change.data, change.data_before)
        super()._add(_KeptChange(change.version, change.type, change.key, *texts, kept, before), new)


class MemoryStore(ObjectStore):
    """Objects without a file: a write is made at once, and its caller does not wait."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(NoFile(FIRST_VERSION), clock)

    async def write(
        self,
        decide: Callable[[Transaction], T],
        *,
        is_large: bool = False,
        is_dry_run: bool = False,
        runs_ahead: bool = True,
    ) -> T:
        transaction = _MemoryTransaction(self, {})
        answer = decide(transaction)
        if transaction.changes and not is_dry_run:
            self._publish(transaction.version, transaction.written, transaction.changes)
        return answer

    def is_large(self, key: StoredKey) -> bool:
        """No decision runs in a thread."""
        return False

    def forget(self) -> None:
        """Drop the history. A watch that has not seen all of it gets an error 410."""
        self.history = ChangeHistory(self.version)

    def expire(self) -> None:
        """Drop the history, so that all watches get an error 410."""
        self.version += 1
        self.forget()
        self._wakeups.wake(self.resources())

    def all_of(self, resource: str) -> list[tuple[tuple[str, str], Json]]:
        """The objects of a resource with their namespaces and names, in the order in which they were made."""
        return [*self._objects.get(resource, {}).items()]


class ApiObjects(ServerTraits):
    """The test's access to the objects, as another client has it, but without requests. Errors are `ApiError`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.stored = MemoryStore(clock)
        self.registry = ObjectRegistry(self.stored, lax_strategies(self), SERVED)

    def forget(self) -> None:
        """Drop the history, which is kept for watches."""
        self.stored.forget()

    def expire(self) -> None:
        """Drop the history, so that all watches get an error 410."""
        self.stored.expire()

    @property
    def version(self) -> int:
        """The newest resource version."""
        return self.stored.version

    @property
    def objects(self) -> dict[ResourcePath, Json]:
        """All objects."""
        return {place: item for resource in self.stored.resources() for place, item in self._of(resource)}

    def _of(self, resource: str) -> Iterator[tuple[ResourcePath, Json]]:
        for (namespace, name), item in self.stored.all_of(resource):
            kind = _STORED[resource]
            yield ResourcePath(item["apiVersion"], kind.plural, namespace, name), item

    def of(self, plural: str) -> list[Json]:
        """The objects of a kind, in the order in which they were made."""
        resources = [resource for resource in self.stored.resources() if resource.partition(".")[0] == plural]
        return [item for resource in resources for _, item in self.stored.all_of(resource)]

    def list(self, place: ResourcePath) -> list[Json]:
        """The objects of a collection, in one namespace or in all, in the order in which they were made."""
        return [
            to_served(place.kind, item)
            for (namespace, _), item in self.stored.all_of(place.kind.storage)
            if place.namespace in ("", namespace)
        ]

    def get(self, place: ResourcePath) -> Json:
        """The object."""
        try:
            return read_object(self.stored, place.kind, place.namespace, place.name)
        except StatusError as error:
            raise as_api_error(error) from error

    def watch(self, wakeup: asyncio.Event) -> None:
        """Set `wakeup` at each change, until `unwatch`."""
        self.stored.watch("", wakeup)

    def unwatch(self, wakeup: asyncio.Event) -> None:
        """End `watch`."""
        self.stored.unwatch("", wakeup)

    def create(self, place: ResourcePath, body: Json) -> Json:
        """Store a new object and return it with its generated metadata."""
        return _made(self.registry.create(place.kind, place.namespace, copy.deepcopy(body), _AS_GIVEN))

    def update(self, place: ResourcePath, body: Json) -> Json:
        """Replace an object, or what a subresource is of it."""
        return self.edit(place, lambda _: copy.deepcopy(body))

    def edit(self, place: ResourcePath, change: Callable[[Json], Json]) -> Json:
        """Replace an object by what `change` makes of a copy."""

        def edit(old: Json | None) -> Json:
            assert old is not None
            return change(old)

        found, _ = _made(self.registry.update(place.kind, place.namespace, place.name, edit, _AS_GIVEN, place.sub))
        return found

    def put(self, place: ResourcePath, new: Json) -> Json:
        """Replace an object as it is, without a look at it. `new` and its metadata are not used afterwards."""
        return _made(self.stored.write(lambda at: at.put(replace(place, sub="").key, new)))

    def delete(self, place: ResourcePath, options: Json | None = None) -> Json:
        """Delete an object, or mark it for deletion while a grace period or finalizers hold it. `options`: `DeleteOptions`."""
        options = options or {}
        only = options.get("preconditions") or {}
        how = DeletionOptions(
            TEST,
            options.get("gracePeriodSeconds"),
            uid=only.get("uid") or "",
            resource_version=only.get("resourceVersion") or "",
        )
        return _made(self.registry.delete(place.kind, place.namespace, place.name, how)).object

    def remove(self, place: ResourcePath) -> Json:
        """Remove an object at once, as if it were removed from etcd directly."""
        self.get(place)
        return _made(self.stored.write(lambda at: at.remove(place.key)))


def as_api_error(error: StatusError) -> ApiError:
    """The error as a client has it."""
    return ApiError(error.code, error.reason, error.message, error.retry_after_s or None)


def _made(write: Coroutine[Any, Any, T]) -> T:
    """What a write returns, which has no wait in it."""
    try:
        write.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    except StatusError as error:
        raise as_api_error(error) from error
    raise AssertionError("a store in memory does not wait")
