"""The latest changes, from which watches and continued lists are answered. Bounded in number and bytes.

Owns: the order of changes by resource version, and which version is the oldest that can be continued from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import takewhile

from pykubelet.base.kit.values import Value
from pykubelet_local_api.objects import Json
from pykubelet_local_api.store.database import StoredKey

MAX_CHANGES = 10_000
MAX_BYTES = 16 << 20


class ChangeType(StrEnum):
    """What happened to an object, as watches state it."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class StoredChange(Value):
    """One change: the object after it (for a deletion: its last state, with the version of the deletion), and before it.

    `data`: the object's JSON text, which all watches send.
    """

    version: int
    type: ChangeType
    key: StoredKey
    object: Json
    before: Json | None
    data: bytes


class ChangeHistory:
    """The changes since `oldest`: a reader that has seen version `oldest` or a newer one gets all later changes."""

    def __init__(self, oldest: int) -> None:
        self.oldest = oldest
        self._order: deque[StoredChange] = deque()
        self._by_resource: dict[str, list[StoredChange]] = {}
        self._bytes = 0

    def add(self, change: StoredChange) -> None:
        """Add the newest change, and forget the oldest ones above the bounds."""
        self._order.append(change)
        self._by_resource.setdefault(change.key.resource, []).append(change)
        self._bytes += len(change.data)
        if len(self._order) > MAX_CHANGES or self._bytes > MAX_BYTES:
            self._forget()

    def _forget(self) -> None:
        """Forget a tenth more than needed, so that the lists are not shortened for each change."""
        touched: set[str] = set()
        while self._order and (len(self._order) > MAX_CHANGES * 0.9 or self._bytes > MAX_BYTES * 0.9):
            gone = self._order.popleft()
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

    def all_after(self, version: int) -> Iterator[StoredChange]:
        """The changes of all resources that are newer than `version`, the newest first."""
        return takewhile(lambda change: change.version > version, reversed(self._order))

    def undone(self, resource: str, version: int) -> Iterator[tuple[StoredKey, Json | None]]:
        """What was stored at `version` where it differs from now: each changed key, with its object then (None: there was none)."""
        seen: set[StoredKey] = set()
        for change in self.after(resource, version):
            if change.key not in seen:
                seen.add(change.key)
                yield change.key, change.before


def _version(change: StoredChange) -> int:
    return change.version
