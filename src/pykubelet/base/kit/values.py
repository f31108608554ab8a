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
entries costs less than one comparison by content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import compress, filterfalse
from operator import is_not
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform
from weakref import ref

import msgspec
from msgspec import Struct, field

from pykubelet.base.kit.versions import VersionedMap

if TYPE_CHECKING:
    from dataclasses import replace  # type checkers check the names and types of the changed fields only for this one
else:
    from msgspec.structs import replace

__all__ = [
    "RedactedValue",
    "Value",
    "changed_keys",
    "field",
    "missing_keys",
    "remember_last",
    "replace",
    "repr_without",
    "sharing_parts",
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
    (`versions.py`).
    """
    if before is now:
        return []
    if isinstance(now, VersionedMap) and (keys := now.changed_since(before)) is not None:
        return _changed_of(keys, before, now)
    news = list(compress(now, map(is_not, map(before.get, now), now.values())))
    stayed = len(now) - len(news) + sum(map(before.__contains__, news))
    return news if stayed == len(before) else news + missing_keys(before, now)


def _changed_of(keys: Iterable[K], before: Mapping[K, V], now: Mapping[K, V]) -> list[K]:
    """Those of `keys` that have changed, in the same order as without knowing them."""
    news, gone = dict[K, None](), dict[K, None]()
    for key in keys:
        value, old = now.get(key), before.get(key)
        if value is not old:
            (gone if value is None else news)[key] = None
    return _in_order(news, now) + _in_order(gone, before)


def _in_order(keys: Mapping[K, None], of: Mapping[K, V]) -> list[K]:
    return list(keys) if len(keys) < 2 else list(filter(keys.__contains__, of))


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
