"""The latest changes, from which watches and continued lists are answered. Bounded in number, bytes and age.

Owns: the order of changes by resource version, and which version is the oldest that can be continued from. Objects are kept as text,
which takes a fifth of the memory: most watches send it as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import takewhile

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet_local_api.objects import Json
from pykubelet_local_api.store.database import StoredKey

MAX_CHANGES = 10_000
MAX_BYTES = 16 << 20
#: Seconds after which changes are forgotten: a machine where nothing but leases is renewed keeps few of them.
MAX_AGE_S = 3600.0
#: So many objects, each with so many bytes of text at most, are kept as read last: several watches look at one.
_READ_KEPT, _READ_BYTES = 8, 32 << 10


class ChangeType(StrEnum):
    """What happened to an object, as watches state it."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class StoredChange(Value):
    """One change. `data`: the JSON text of the object after it (for a deletion: of its last state, with the version of the deletion),
    which all watches send; `data_before`: of the object before it.
    """

    version: int
    type: ChangeType
    key: StoredKey
    data: bytes
    data_before: bytes | None

    @property
    def object(self) -> Json:
        """The object after it. Shared: nothing may change it."""
        return _read(self.data)

    @property
    def before(self) -> Json | None:
        """The object before it; None if there was none. Shared, too."""
        return None if self.data_before is None else _read(self.data_before)


def _read(data: bytes) -> Json:
    return _read_small(data) if len(data) <= _READ_BYTES else _decode(data)


def _decode(data: bytes) -> Json:
    found: Json = msgspec.json.decode(data)
    return found


_read_small = lru_cache(maxsize=_READ_KEPT)(_decode)


class ChangeHistory:
    """The changes since `oldest`: a reader that has seen version `oldest` or a newer one gets all later changes."""

    def __init__(self, oldest: int) -> None:
        self.oldest = oldest
        self._order: deque[StoredChange] = deque()
        self._added: deque[float] = deque()
        self._by_resource: dict[str, list[StoredChange]] = {}
        self._newest: dict[StoredKey, StoredChange] = {}
        self._bytes = 0

    def text_of(self, key: StoredKey) -> bytes | None:
        """The text of an object, if its newest change is known and left it there."""
        newest = self._newest.get(key)
        return None if newest is None or newest.type is ChangeType.DELETED else newest.data

    def add(self, change: StoredChange, now: float) -> None:
        """Add the newest change, and forget the oldest ones above the bounds. `now`: monotonic seconds."""
        self._order.append(change)
        self._added.append(now)
        self._newest[change.key] = change
        self._by_resource.setdefault(change.key.resource, []).append(change)
        self._bytes += len(change.data)
        if len(self._order) > MAX_CHANGES or self._bytes > MAX_BYTES or self._added[0] < now - MAX_AGE_S:
            self._forget(now)

    def _forget(self, now: float) -> None:
        """Forget a tenth more than needed, so that the lists are not shortened for each change."""
        touched: set[str] = set()
        while self._order and (
            len(self._order) > MAX_CHANGES * 0.9
            or self._bytes > MAX_BYTES * 0.9
            or self._added[0] < now - MAX_AGE_S * 0.9
        ):
            gone = self._order.popleft()
            self._added.popleft()
            if self._newest.get(gone.key) is gone:
                del self._newest[gone.key]
            self._bytes -= len(gone.data)
            self.oldest = gone.version
            touched.add(gone.key.resource)
        for resource in touched:
            changes = self._by_resource[resource]
            del changes[: bisect_right(changes, self.oldest, key=_version)]

    def after(self, resource: str, version: int) -> Sequence[StoredChange]:
        """The changes of a resource that are newer than `version`, which is at least `oldest`, in their order."""
        changes = self._by_resource.get(resource, [])
        return changes[bisect_right(changes, version, key=_version) :]

    def next_after(self, resource: str, version: int) -> StoredChange | None:
        """The first change of a resource that is newer than `version`."""
        changes = self._by_resource.get(resource, [])
        at = bisect_right(changes, version, key=_version)
        return changes[at] if at < len(changes) else None

    def all_after(self, version: int) -> Iterator[StoredChange]:
        """The changes of all resources that are newer than `version`, the newest first."""
        return takewhile(lambda change: change.version > version, reversed(self._order))

    def undone(self, resource: str, version: int) -> Sequence[StoredChange]:
        """The first change since `version` of each key that has changed: what was `before` it was stored then."""
        first: dict[StoredKey, StoredChange] = {}
        for change in self.after(resource, version):
            first.setdefault(change.key, change)
        return list(first.values())


def _version(change: StoredChange) -> int:
    return change.version
