"""Mappings that know in which keys they differ from the ones that they were made from.

Each change of a pod is a new snapshot of all pods, and each of its readers asks which pods have changed. A comparison of all values takes
20 us of CPU for 500 pods; some forty are made for the start of a pod. Of a mapping that was made by `edited`, `changed_keys` looks only at
the keys that were set or removed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NoReturn, TypeVar

K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")
#: So many versions back the changes are known. A reader that is further behind compares all values.
VERSIONS = 64


class _Edit(Generic[K]):
    """What differs from the version `before`. `is_reordered`: a key may have another place."""

    __slots__ = ("before", "is_reordered", "keys")

    def __init__(self, before: int) -> None:
        self.before = before
        self.keys: dict[K, None] = {}
        self.is_reordered = False


class _History(Generic[K]):
    """The newest edits of all mappings that have one origin, by the versions that they have made."""

    __slots__ = ("edits", "newest")

    def __init__(self) -> None:
        self.newest = 0
        self.edits: dict[int, _Edit[K]] = {}

    def begin(self, before: int) -> _Edit[K]:
        """The edit that makes the next version."""
        self.newest += 1
        edit = self.edits[self.newest] = _Edit(before)
        self.edits.pop(self.newest - VERSIONS, None)
        return edit


class VersionMark(Generic[K]):
    """A version of a mapping, without what it contained: to ask later what has changed since."""

    __slots__ = ("_history", "_version")

    def __init__(self, history: _History[K], version: int) -> None:
        self._history = history
        self._version = version


class VersionedMap(dict[K, V]):
    """A mapping with a version. It is changed before it is published, and not afterwards. No value may be None."""

    __slots__ = ("_edit", "_history", "_version")

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        super().__init__(items)
        self._history: _History[K] = _History()
        self._version = 0
        self._edit: _Edit[K] = _Edit(0)

    def __setitem__(self, key: K, value: V) -> None:
        if key in self._edit.keys and key not in self:
            self._edit.is_reordered = True
        self._edit.keys[key] = None
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        super().__delitem__(key)
        self._edit.keys[key] = None

    def discard(self, key: K) -> None:
        """Remove the key, if it is there."""
        if key in self:
            del self[key]

    def put_all(self, items: Mapping[K, V]) -> None:
        """Set all of these."""
        for key, value in items.items():
            self[key] = value

    @property
    def mark(self) -> VersionMark[K]:
        """This version. What is changed in this very mapping afterwards is not seen as changed since."""
        return VersionMark(self._history, self._version)

    def changed_since(self, before: Mapping[K, V] | VersionMark[K] | None) -> dict[K, None] | None:
        """All keys that may differ from `before`; None: `before` is not one of the last that this mapping was made from."""
        if not isinstance(before, VersionedMap | VersionMark) or before._history is not self._history:
            return None
        at, keys, edits = self._version, dict[K, None](), self._history.edits
        while at != before._version:
            edit = edits.get(at)
            if edit is None or edit.is_reordered:
                return None
            at, keys = edit.before, {**edit.keys, **keys}
        return keys

    def _not_recorded(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("use [], del, discard or put_all, which record what they change")

    clear = pop = popitem = setdefault = update = __ior__ = _not_recorded


def edited(before: Mapping[K, V]) -> VersionedMap[K, V]:
    """A copy that is to be changed and then published."""
    made = VersionedMap(before)
    if isinstance(before, VersionedMap):
        made._history = before._history
        made._edit = before._history.begin(before._version)
        made._version = before._history.newest
    return made


def follow_up(before: Mapping[K, V], now: Mapping[K, V]) -> VersionedMap[K, V]:
    """A mapping that was made as a whole, as an edit of `before` where possible: readers then compare only what differs."""
    made = edited(before)
    for key in [key for key in before if key not in now]:
        del made[key]
    for key, value in now.items():
        if made.get(key) is not value:
            made[key] = value
    return made if list(made) == list(now) else VersionedMap(now)


class Derived(Generic[K, V, R]):
    """A function of a mapping, such as all pods: `derive` of each of its values, of which None is left out. It is computed again only for
    keys that have changed since the last call. `derive` depends on the value only.
    """

    def __init__(self, derive: Callable[[V], R | None]) -> None:
        self._derive = derive
        self._last: tuple[Mapping[K, V], VersionedMap[K, R]] = ({}, VersionedMap())

    def __call__(self, source: Mapping[K, V]) -> Mapping[K, R]:
        """The same object as the last time if nothing has changed. The source must not be changed afterwards."""
        before, made = self._last
        if source is before:
            return made
        keys = source.changed_since(before) if isinstance(source, VersionedMap) else None
        if keys is None:
            found = {key: result for key, value in source.items() if (result := self._derive(value)) is not None}
            made = follow_up(made, found)
        else:
            made = self._with_changes(made, source, keys)
        self._last = source, made
        return made

    def _with_changes(self, made: VersionedMap[K, R], source: Mapping[K, V], keys: Iterable[K]) -> VersionedMap[K, R]:
        now = made
        for key in keys:
            value = source.get(key)
            result = self._derive(value) if value is not None else None
            if result is made.get(key):
                continue
            now = edited(made) if now is made else now
            if result is not None:
                now[key] = result
            else:
                del now[key]
        return now
