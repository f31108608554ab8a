"""Values: the immutable structs that components pass to each other. They are compared by content and cheap to define and copy.

    class Exit(Value):
        code: int
        reason: str = ""

    later = replace(exit, reason="Error")

A `Value` behaves like a `dataclass(frozen=True, slots=True)` but is built by msgspec. Each dataclass compiles six functions
when it is defined; with hundreds of them, that would take most of the agent's start. A copy of a dataclass also costs
twenty times as much. Fields with a default come last; use `field(default_factory=...)` for mutable defaults. An object that
changes in place is a plain `Struct`.

A new snapshot shares the values that did not change, so two snapshots are compared by the identity of their parts: a scan of a thousand
entries costs less than one comparison by content. A mapping of all pods that was made by `edited` also knows in which keys it differs from
the ones that it was made from. Each change of a pod is a new snapshot of all pods, and each of its readers asks which pods have changed:
a comparison of all values takes 20 us of CPU for 500 pods, and some forty are made for the start of a pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain, compress, filterfalse, islice
from operator import is_not
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform
from weakref import ref

import msgspec
from msgspec import Struct, field

if TYPE_CHECKING:
    from dataclasses import replace  # type checkers check the names and types of the changed fields only for this one
else:
    from msgspec.structs import replace

__all__ = [
    "PART",
    "VERSIONS",
    "Derived",
    "RedactedValue",
    "Value",
    "VersionMark",
    "VersionedMap",
    "changed_keys",
    "edited",
    "field",
    "follow_up",
    "missing_keys",
    "remember_last",
    "replace",
    "repr_without",
    "sharing_parts",
    "with_changes",
]

K = TypeVar("K")
R = TypeVar("R")
S = TypeVar("S", bound=Struct)
T = TypeVar("T")
V = TypeVar("V")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(Struct, frozen=True):
    """The base of all values."""


class RedactedValue(Value):
    """A value that keeps the fields named in `hidden` out of its repr: logs and timelines show reprs."""

    hidden: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return repr_without(self, self.hidden)


def repr_without(value: Struct, hidden: Collection[str]) -> str:
    """The repr of a struct without the fields named in `hidden`."""
    shown = (f"{name}={getattr(value, name)!r}" for name in value.__struct_fields__ if name not in hidden)
    return f"{type(value).__name__}({', '.join(shown)})"


def sharing_parts(before: S, now: S, depth: int = 2) -> S:
    """`now` with the objects of `before` wherever a field is equal, also in structs down to `depth`.

    For two versions of one object that are decoded from text: what both have is then in memory once, and compared by identity.
    """
    shared = {}
    for name in now.__struct_fields__:
        old, new = getattr(before, name), getattr(now, name)
        if old is new:
            continue
        if old == new:
            shared[name] = old
        elif depth > 1 and isinstance(new, Struct) and type(old) is type(new):
            shared[name] = sharing_parts(old, new, depth - 1)
    return msgspec.structs.replace(now, **shared) if shared else now


def changed_keys(before: Mapping[K, V], now: Mapping[K, V]) -> list[K]:
    """The keys of replaced objects, and those that only one of the two has. No value may be None.

    It runs in `itertools`, because each reader of a cell scans all pods for each snapshot, unless the snapshots know in what they differ
    (`VersionedMap`).
    """
    if before is now:
        return []
    if isinstance(now, VersionedMap) and (keys := now.changed_since(before)) is not None:
        return _changed_of(keys, before, now)
    news = list(compress(now, map(is_not, map(before.get, now), now.values())))
    stayed = len(now) - len(news) + sum(map(before.__contains__, news))
    return news if stayed == len(before) else news + missing_keys(before, now)


def _changed_of(keys: Collection[K], before: Mapping[K, V], now: Mapping[K, V]) -> list[K]:
    """Those of `keys` that have changed, in the same order as without knowing them."""
    if len(keys) == 1:
        return [key for key in keys if now.get(key) is not before.get(key)]
    news, gone = dict[K, None](), dict[K, None]()
    for key in keys:
        value, old = now.get(key), before.get(key)
        if value is not old:
            (gone if value is None else news)[key] = None
    return _in_order(news, now) + _in_order(gone, before)


def _in_order(keys: Mapping[K, None], of: Mapping[K, V]) -> list[K]:
    if len(keys) < 2:
        return list(keys)
    return of.in_order(keys) if isinstance(of, VersionedMap) else list(filter(keys.__contains__, of))


def missing_keys(keys: Iterable[K], present: Collection[K]) -> list[K]:
    """Those of `keys` that are not in `present`, in their order."""
    return list(filterfalse(present.__contains__, keys))


def remember_last(function: Callable[[T], R]) -> Callable[[T], R]:
    """The function, which computes its result once for an argument that is the same object as the last one.

    Argument and result are forgotten when nothing else has the argument: a pod that has gone, and what it contained, stay nowhere. So the
    argument's class has `weakref=True`, and the result does not refer to the argument.
    """
    last: list[tuple[ref[Any], R]] = []

    def forget(gone: ref[Any]) -> None:
        if any(known is gone for known, _ in last):
            last.clear()

    def remembered(value: T) -> R:
        for known, result in last:  # at most one; threads replace it as a whole
            if known() is value:
                return result
        result = function(value)
        last[:] = [(ref(value, forget), result)]
        return result

    return remembered


# Mappings that know in which keys they differ from the ones that they were made from

#: So many versions back the changes are known. A reader that is further behind compares all values.
VERSIONS = 64
#: So many entries of a mapping are copied for a change of one of them. Beside them, the list of parts is copied.
PART = 32


class _History(Generic[K]):
    """The newest edits of all mappings that have one origin. `edits`: by the version that an edit has made, the version before and the
    keys that differ. An edit after which a key may have another place is not in it."""

    __slots__ = ("edits", "newest")

    def __init__(self) -> None:
        self.newest = 0
        self.edits: dict[int, tuple[int, dict[K, None]]] = {}


class VersionMark(Generic[K]):
    """A version of a mapping, without what it contained: to ask later what has changed since."""

    __slots__ = ("_history", "_version")

    def __init__(self, history: _History[K], version: int) -> None:
        self._history = history
        self._version = version


class VersionedMap(Mapping[K, V]):
    """A mapping with a version, in the order in which its keys were set. It is changed before it is published, and not afterwards. No
    value may be None.

    Versions share their entries in parts: an edit copies the parts that it changes. A copy of all entries would cost as much as there are
    pods, because it counts a reference to each of them: most are not in the processor's cache.
    """

    __slots__ = ("_history", "_keys", "_length", "_own", "_parts", "_places", "_version")

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._history: _History[K] = _History()
        self._version = 0
        #: Those of the edit that makes this version.
        self._keys: dict[K, None] = {}
        self._fill(items.items() if isinstance(items, Mapping) else dict(items).items())

    def _fill(self, items: Iterable[tuple[K, V]]) -> None:
        rest = iter(items)
        self._parts: list[dict[K, V]] = [*iter(lambda: dict(islice(rest, PART)), {})]
        #: The part of each key, also of keys that only other versions have. All of them share it, and keys are only added.
        self._places = {key: place for place, part in enumerate(self._parts) for key in part}
        #: The parts that no other version has.
        self._own = set(range(len(self._parts)))
        self._length = len(self._places)

    def edited(self) -> VersionedMap[K, V]:
        """The next version, which is still the same."""
        made: VersionedMap[K, V] = VersionedMap.__new__(VersionedMap)
        made._history, made._keys = history, keys = self._history, dict[K, None]()
        made._version = history.newest = history.newest + 1
        history.edits[made._version] = self._version, keys
        history.edits.pop(made._version - VERSIONS, None)
        if len(self._places) + PART * len(self._parts) > 6 * (self._length + PART):
            made._fill(self.items())
        else:
            made._parts, made._places, made._length = [*self._parts], self._places, self._length
            made._own = set()
        return made

    if not TYPE_CHECKING:  # its types are a Mapping's

        def get(self, key, default=None):
            """The value, or `default`."""
            place = self._places.get(key)
            if place is None:
                return default
            try:
                return self._parts[place].get(key, default)
            except IndexError:
                return default

    def __getitem__(self, key: K) -> V:
        try:
            return self._parts[self._places[key]][key]
        except IndexError:
            raise KeyError(key) from None

    def __contains__(self, key: Any) -> bool:
        place = self._places.get(key)
        return place is not None and place < len(self._parts) and key in self._parts[place]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._parts)

    def values(self) -> ValuesView[V]:
        """As of a dict."""
        return _Values(self)

    def items(self) -> ItemsView[K, V]:
        """As of a dict."""
        return _Items(self)

    def __repr__(self) -> str:
        return repr(dict(self.items()))

    def in_order(self, keys: Collection[K]) -> list[K]:
        """Those of the keys that are in the mapping, in its order."""
        places = {place for key in keys if (place := self._places.get(key)) is not None and place < len(self._parts)}
        return [key for place in sorted(places) for key in self._parts[place] if key in keys]

    def __setitem__(self, key: K, value: V) -> None:
        place = self._places.get(key)
        if place is not None and place < len(self._parts) and key in self._parts[place]:
            self._own_part(place)[key] = value
        else:
            self._append(key, value)
        self._keys[key] = None

    def _append(self, key: K, value: V) -> None:
        if key in self._keys:  # it was removed in this edit
            self._history.edits.pop(self._version, None)
        place = len(self._parts) - 1
        if place < 0 or len(self._parts[place]) >= PART:
            place += 1
        if self._places.setdefault(key, place) != place:  # it is in the order of another version
            self._fill([*self.items(), (key, value)])
            return
        if place == len(self._parts):
            self._own.add(place)
            self._parts.append({})
        self._own_part(place)[key] = value
        self._length += 1

    def _own_part(self, place: int) -> dict[K, V]:
        if place not in self._own:
            self._own.add(place)
            self._parts[place] = self._parts[place].copy()
        return self._parts[place]

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        del self._own_part(self._places[key])[key]
        self._length -= 1
        self._keys[key] = None

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
        """All keys that may differ from `before`, only to be read; None: this mapping was made from it too long ago, or not at all."""
        if not isinstance(before, VersionedMap | VersionMark) or before._history is not self._history:
            return None
        at, keys, edits = self._version, dict[K, None](), self._history.edits
        while at != before._version:
            edit = edits.get(at)
            if edit is None:
                return None
            at, edited_keys = edit
            keys = {**edited_keys, **keys} if keys else edited_keys
        return keys


class _Values(ValuesView[V]):
    __slots__ = ()
    _mapping: VersionedMap[Any, V]

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(map(dict.values, self._mapping._parts))


class _Items(ItemsView[K, V]):
    __slots__ = ()
    _mapping: VersionedMap[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable(map(dict.items, self._mapping._parts))


def edited(before: Mapping[K, V]) -> VersionedMap[K, V]:
    """A copy that is to be changed and then published."""
    return before.edited() if isinstance(before, VersionedMap) else VersionedMap(before)


def with_changes(before: Mapping[K, V], news: Mapping[K, V | None]) -> Mapping[K, V]:
    """The mapping with these values, without the keys of which it is None; the same object if that changes nothing."""
    news = {key: value for key, value in news.items() if value is not before.get(key)}
    if not news:
        return before
    made = edited(before)
    for key, value in news.items():
        if value is not None:
            made[key] = value
        else:
            del made[key]
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
