"""All objects, in memory and in the file, and their only writer.

Writes are functions that run one after the other on the event loop and see all writes before them. Those that come while the file is
being written are committed together. Memory changes only after the commit, so what was read or watched is never lost. An object
that is stored is shared by all readers: nothing may change it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, SingleFlight, value_of
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet_local_api.errors import StatusError, unavailable
from pykubelet_local_api.objects import Json
from pykubelet_local_api.store.database import Row, StoredKey
from pykubelet_local_api.store.history import ChangeHistory, ChangeType, StoredChange
from pykubelet_local_api.store.sizes import StoredSizes, counted
from pykubelet_local_api.store.snapshot import ObjectSnapshot
from pykubelet_local_api.store.wakeups import Wakeups

log = Log("store")
T = TypeVar("T")
#: So many writes may wait; further ones are refused.
MAX_WAITING = 2000
#: So many are committed together at most, so that the event loop is not held for long.
MAX_BATCH = 50
NO_LIMIT_S = 1e8
#: So many bytes of objects of former versions are read before other tasks run.
UNDONE_AT_ONCE = 256 << 10
#: A large write is decided beside the others so often; then it is decided while they wait.
TRIES = 3
#: The file is copied after so many seconds with changes.
COPY_S = 3600.0
_Objects = dict[tuple[str, str], Json]


async def let_others_run() -> None:
    """Let other tasks run."""
    await asyncio.sleep(0)


class ObjectFile(Protocol):
    """What the store needs of a `Database`. All of it blocks, except `version`."""

    version: int

    def rows(self) -> Iterable[tuple[StoredKey, bytes]]:
        """All objects, at the start."""

    def commit(self, rows: Sequence[Row], version: int) -> None:
        """Write all rows or none. Raises an error with the former content kept."""

    def copy(self) -> None:
        """Make a copy that can replace a damaged file."""


class NoFile:
    """A file for stores that are in memory only."""

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def rows(self) -> Iterable[tuple[StoredKey, bytes]]:
        """None."""
        return ()

    def commit(self, rows: Sequence[Row], version: int) -> None:  # noqa: ARG002 - as in a file
        """Keep only the version."""
        self.version = version

    def copy(self) -> None:
        """Do nothing."""


class StaleDecision(Exception):
    """What a decision has read has changed since."""


class _Waiting(Value):
    decide: Callable[[Transaction], Any]
    future: asyncio.Future[Any]
    is_large: bool
    is_dry_run: bool


class _Batch(msgspec.Struct):
    """What is committed together. `pending`: the objects that differ from the stored ones (None: removed)."""

    version: int
    growth: int = 0
    pending: dict[StoredKey, Json | None] = msgspec.field(default_factory=dict)
    changes: list[StoredChange] = msgspec.field(default_factory=list)
    rows: list[Row] = msgspec.field(default_factory=list)
    answers: list[tuple[_Waiting, Any]] = msgspec.field(default_factory=list)
    errors: list[tuple[_Waiting, Exception]] = msgspec.field(default_factory=list)


class ObjectStore:
    """The objects. `version`: the newest resource version that readers see. Implements `View`.

    Run `keep_writing` in a task; `changed(resource)` wakes readers.
    """

    def __init__(self, file: ObjectFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._objects: dict[str, _Objects] = {}
        self._sorted: dict[str, list[tuple[str, str]]] = {}
        self.sizes = StoredSizes()
        self.version = file.version
        for key, data in file.rows():
            self._objects.setdefault(key.resource, {})[(key.namespace, key.name)] = msgspec.json.decode(data)
            self.sizes.note(key, len(data))
        self.history = ChangeHistory(self.version)
        self._waiting: deque[_Waiting] = deque()
        self._wanted = asyncio.Event()
        self._flight = SingleFlight("store", workers=1)
        self._wakeups = Wakeups()
        self._ahead = SingleFlight("decisions", workers=1)
        self._decisions = 0
        self._copied_at = clock.monotonic()
        self._copied_version = self.version

    # -- reading

    @property
    def now(self) -> float:
        """The wall-clock time, in seconds since 1970."""
        return self._clock.wall()

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        """The object; None if there is none."""
        return self._objects.get(resource, {}).get((namespace, name))

    def list(self, resource: str, namespace: str = "") -> Iterator[Json]:
        """The objects of a namespace, or of all, in the order of their namespaces and names."""
        objects = self._objects.get(resource, {})
        for key in self._order(resource):
            if not namespace or key[0] == namespace:
                yield objects[key]

    async def items(
        self, resource: str, version: int, next_round: Callable[[], Awaitable[None]] = let_others_run
    ) -> Sequence[tuple[tuple[str, str], Json]]:
        """All objects as they were at `version`, in their order. The history must reach back to it.

        Changes are undone in rounds of the event loop that `next_round` waits for: the answer is that of the moment of the call.
        """
        objects = self._objects.get(resource, {})
        if version >= self.version:
            return [(key, objects[key]) for key in self._order(resource)]
        then, size = dict(objects), 0
        for change in self.history.undone(resource, version):
            where, before = (change.key.namespace, change.key.name), change.before
            if before is None:
                then.pop(where, None)
            else:
                then[where] = before
            size += counted(len(change.data_before or b""))
            if size > UNDONE_AT_ONCE:
                await next_round()
                size = 0
        return sorted(then.items(), key=lambda item: item[0])

    def is_large(self, key: StoredKey) -> bool:
        """Whether decisions about this object take so long that they run in a thread."""
        return self.sizes.is_large(key)

    def count(self, resource: str) -> int:
        """The number of objects of a resource."""
        return len(self._objects.get(resource, {}))

    def resources(self) -> Sequence[str]:
        """The resources that have or had objects."""
        return list(self._objects)

    def present(self, resource: str) -> Sequence[tuple[tuple[str, str], Json]]:
        """The objects of a resource by namespace and name, in their order. May be called in any thread."""
        return sorted(self._objects.get(resource, {}).copy().items(), key=_where)

    def bytes_of(self, resources: frozenset[str]) -> int:
        """The bytes of JSON that the objects of these resources have, and a few for each."""
        return sum(map(self.sizes.of_resource, resources))

    def snapshot(self) -> ObjectSnapshot:
        """The objects as they are now, for another thread."""
        return ObjectSnapshot({resource: objects.copy() for resource, objects in self._objects.items()}, self.now)

    def _order(self, resource: str) -> Sequence[tuple[str, str]]:
        order = self._sorted.get(resource)
        if order is None:
            order = self._sorted[resource] = sorted(self._objects.get(resource, {}))
        return order

    def watch(self, resource: str, wakeup: asyncio.Event) -> None:
        """Set `wakeup` after changes of the resource ("": of any), until `unwatch`."""
        self._wakeups.add(resource, wakeup)

    def unwatch(self, resource: str, wakeup: asyncio.Event) -> None:
        """End `watch`."""
        self._wakeups.discard(resource, wakeup)

    def watchers(self, resource: str) -> int:
        """The number of watches of a resource."""
        return self._wakeups.count(resource)

    # -- writing

    async def write(
        self,
        decide: Callable[[Transaction], T],
        *,
        is_large: bool = False,
        is_dry_run: bool = False,
        runs_ahead: bool = True,
    ) -> T:
        """Run `decide`, and return what it returned once its writes are in the file. Raises its error, or StatusError 503.

        `decide` does not wait and writes nothing else. If it raises, its own writes are dropped. With `is_large` it runs in a thread,
        because it takes long. If it `runs_ahead`, other writes go on meanwhile: when one of them changes what it has read, it runs
        again; else they wait. With `is_dry_run`, nothing is stored.
        """
        for _ in range(TRIES if is_large and runs_ahead else 0):
            ahead = AheadTransaction(self)
            try:
                answer = await self._run_ahead(partial(decide, ahead))
            except StatusError:
                if ahead.is_current(Transaction(self, {})):
                    raise
                continue
            try:
                return await self._enqueue(partial(ahead.adopt, answer), is_large=False, is_dry_run=is_dry_run)
            except StaleDecision:
                continue
        return await self._enqueue(decide, is_large=is_large, is_dry_run=is_dry_run)

    async def _run_ahead(self, decide: Callable[[], T]) -> T:
        self._decisions += 1
        return value_of(await self._ahead.run(str(self._decisions), decide, NO_LIMIT_S), _never)

    async def _enqueue(self, decide: Callable[[Transaction], T], *, is_large: bool, is_dry_run: bool) -> T:
        if len(self._waiting) >= MAX_WAITING:
            raise StatusError(
                429, "TooManyRequests", "too many writes are waiting, please try again later", retry_after_s=1
            )
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(decide, future, is_large, is_dry_run))
        self._wanted.set()
        return await future

    async def keep_writing(self) -> None:
        """Commit what is asked of `write`, until cancelled."""
        try:
            while True:
                self._wanted.clear()
                while self._waiting:
                    await self._commit_batch()
                    await asyncio.sleep(0)
                await self._wanted.wait()
        finally:
            for waiting in self._waiting:
                waiting.future.cancel()
            self._waiting.clear()

    async def _commit_batch(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
        if any(waiting.is_large for waiting in taken):
            decided = await self._flight.run("decide", partial(self._decide, taken), NO_LIMIT_S)
            batch = value_of(decided, _never)
        else:
            batch = self._decide(taken)
        for waiting, error in batch.errors:
            if not waiting.future.done():
                waiting.future.set_exception(error)
        batch.errors.clear()
        if batch.rows:
            # without a limit: whether a commit that hangs was done is not known before it ends
            outcome = await self._flight.run(
                "commit", partial(self._file.commit, batch.rows, batch.version), NO_LIMIT_S
            )
            if not isinstance(outcome, Done):
                self._refuse(batch, str(getattr(outcome, "error", "")))
                return
            self._publish(batch.version, batch.pending, batch.changes)
        for waiting, answer in batch.answers:
            if not waiting.future.done():
                waiting.future.set_result(answer)
        if self.version != self._copied_version and self._clock.monotonic() >= self._copied_at + COPY_S:
            await self.copy()

    def _decide(self, taken: Sequence[_Waiting]) -> _Batch:
        """Run what waits, each with the writes before it in view. An error belongs to the one who asked."""
        batch = _Batch(self.version)
        for waiting in taken:
            if waiting.future.cancelled():
                continue
            transaction = Transaction(self, batch.pending, batch.version, batch.growth)
            try:
                answer = waiting.decide(transaction)
            except Exception as error:  # noqa: BLE001 - it belongs to the one who asked
                batch.errors.append((waiting, error))
                continue
            batch.answers.append((waiting, answer))
            if waiting.is_dry_run:
                continue
            batch.version, batch.growth = transaction.version, transaction.growth
            batch.pending.update(transaction.written)
            batch.changes += transaction.changes
            batch.rows += transaction.rows
        return batch

    def _refuse(self, batch: _Batch, error: str) -> None:
        log.error("cannot write objects; they are as before", error=error)
        for waiting, _ in batch.answers:
            if not waiting.future.done():
                waiting.future.set_exception(unavailable(f"the object cannot be stored: {error}"))

    def _publish(self, version: int, written: Mapping[StoredKey, Json | None], changes: Sequence[StoredChange]) -> None:
        self.version = version
        touched: set[str] = set()
        for key, found in written.items():
            objects = self._objects.setdefault(key.resource, {})
            if found is not None:
                objects[(key.namespace, key.name)] = found
            else:
                objects.pop((key.namespace, key.name), None)
        now = self._clock.monotonic()
        for change in changes:
            key = change.key
            if change.type is not ChangeType.MODIFIED:
                self._sorted.pop(key.resource, None)
            self.sizes.note(key, None if change.type is ChangeType.DELETED else len(change.data))
            self.history.add(change, now)
            touched.add(key.resource)
        self._wakeups.wake(touched)

    async def copy(self) -> None:
        """Renew the copy of the file, which replaces it if it is damaged at a later start. A failure is only logged."""
        self._copied_at, self._copied_version = self._clock.monotonic(), self.version
        outcome = await self._flight.run("commit", self._file.copy, NO_LIMIT_S)
        if not isinstance(outcome, Done):
            log.error("cannot copy the objects", error=str(getattr(outcome, "error", "")))


def _where(item: tuple[tuple[str, str], Json]) -> tuple[str, str]:
    return item[0]


def _never(_: float) -> Exception:
    return AssertionError("this work has no deadline")


class Transaction:
    """What one write sees and does: the stored objects with the writes before it in its batch, and its own. Implements `View`."""

    def __init__(
        self, store: ObjectStore, pending: dict[StoredKey, Json | None], version: int = 0, growth: int = 0
    ) -> None:
        self._store = store
        #: By how much what is stored grows: with the writes before this one in its batch.
        self.growth = growth
        self._growth_before = growth
        self._pending = pending
        self.version = version or store.version
        self.written: dict[StoredKey, Json | None] = {}
        self.changes: list[StoredChange] = []
        self.rows: list[Row] = []

    @property
    def now(self) -> float:
        """The wall-clock time, in seconds since 1970."""
        return self._store.now

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        """The object; None if there is none."""
        if not self._pending and not self.written:
            return self._store.get(resource, namespace, name)
        key = StoredKey(resource, namespace, name)
        if key in self.written:
            return self.written[key]
        return self._pending[key] if key in self._pending else self._store.get(resource, namespace, name)

    def list(self, resource: str, namespace: str = "") -> Iterable[Json]:
        """The objects of a namespace, or of all. Those that are not committed yet come last."""
        fresh = {
            (key.namespace, key.name): found
            for key, found in (self._pending | self.written).items()
            if key.resource == resource and (not namespace or key.namespace == namespace)
        }
        for found in self._store.list(resource, namespace):
            where = (found["metadata"].get("namespace") or "", found["metadata"]["name"])
            if where in fresh:
                now = fresh.pop(where)
                if now is not None:
                    yield now
            else:
                yield found
        yield from (found for found in fresh.values() if found is not None)

    def has_changed(self, resource: str, version: int) -> bool:
        """Whether a resource may have other objects than at a version."""
        if any(key.resource == resource for key in (*self._pending, *self.written)):
            return True
        history = self._store.history
        return history.oldest > version or bool(history.after(resource, version))

    def put(self, key: StoredKey, new: Json) -> Json:
        """ObjectStore `new`, which must not be changed from now on, with a new resource version, and return it."""
        before = self.get(key.resource, key.namespace, key.name)
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        data = msgspec.json.encode(new)
        self.growth += counted(len(data)) - self._store.sizes.of(key)
        kind = ChangeType.ADDED if before is None else ChangeType.MODIFIED
        self._add(StoredChange(self.version, kind, key, data, self._text_of(key, before)), new)
        return new

    def remove(self, key: StoredKey) -> Json:
        """Remove an object. Returns what was stored, with the version of the deletion."""
        before = self.get(key.resource, key.namespace, key.name)
        assert before is not None
        self.version += 1
        last = before | {"metadata": before["metadata"] | {"resourceVersion": str(self.version)}}
        change = StoredChange(
            self.version, ChangeType.DELETED, key, msgspec.json.encode(last), self._text_of(key, before)
        )
        self._add(change, None)
        return last

    @property
    def has_grown(self) -> bool:
        """Whether more is stored with this write."""
        return self.growth > self._growth_before

    @property
    def stored_bytes(self) -> int:
        """What is stored with this write and those before it in its batch, as `MAX_STORED_BYTES` counts."""
        return self._store.sizes.total + self.growth

    def _text_of(self, key: StoredKey, before: Json | None) -> bytes | None:
        """The text of the object before a change: the one of the change before, so that the history has it once."""
        if before is None:
            return None
        known = None if key in self.written or key in self._pending else self._store.history.text_of(key)
        return known or msgspec.json.encode(before)

    def _add(self, change: StoredChange, new: Json | None) -> None:
        self.written[change.key] = new
        self.changes.append(change)
        self.rows.append(Row(change.key, None if new is None else change.data))


class AheadTransaction(Transaction):
    """A transaction of a decision that runs beside other writes, in a thread. It notes what was read, and sees what is committed."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store, {})
        self._began = self.version
        self._read: dict[StoredKey, Json | None] = {}
        self._listed: set[str] = set()

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        """The object; None if there is none."""
        key = StoredKey(resource, namespace, name)
        if key in self.written:
            return self.written[key]
        found = self._store.get(resource, namespace, name)
        return self._read.setdefault(key, found)

    def list(self, resource: str, namespace: str = "") -> Iterable[Json]:
        """The objects of a namespace, or of all. Those that it has written itself come last."""
        self._listed.add(resource)
        fresh = {
            (key.namespace, key.name): found
            for key, found in self.written.items()
            if key.resource == resource and (not namespace or key.namespace == namespace)
        }
        for where, found in self._store.present(resource):
            if (not namespace or where[0] == namespace) and where not in fresh:
                yield found
        yield from (found for found in fresh.values() if found is not None)

    def is_current(self, now: Transaction) -> bool:
        """Whether all that was read is as it was then."""
        if any(now.get(key.resource, key.namespace, key.name) is not found for key, found in self._read.items()):
            return False
        return not any(now.has_changed(resource, self._began) for resource in self._listed)

    def adopt(self, answer: T, now: Transaction) -> T:
        """Write what was decided. Raises StaleDecision."""
        if not self.is_current(now):
            raise StaleDecision
        for key, found in self.written.items():
            if found is None:
                now.remove(key)
            else:
                now.put(key, found)
        return answer

    def _text_of(self, key: StoredKey, before: Json | None) -> bytes | None:  # noqa: ARG002 - as in the base
        """None: the history may be read on the loop's thread only, and `adopt` asks again."""
        return None
