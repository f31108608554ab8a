"""How large everything is that the agent holds: containers by the name of who owns them, and what the process has of the kernel.

The walk begins at the modules of the agent and at all tasks of the loop, and goes through attributes, closures, frames of
coroutines, and callbacks of timers. An owner is `Class.attribute`, `module.NAME` or `coroutine.local`; containers of all
instances of a class add up, so that one number stands for one place in the source.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import os
import sys
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from pykubelet.base.kit.values import VersionedMap

#: The agent; the packages of programs beside it begin with the same word.
PACKAGE = "pykubelet"
_INSIDE = "[]"
_LEAVES = (str, bytes, int, float, bool, type(None), type, types.ModuleType, types.CodeType, types.BuiltinFunctionType)
_COLLECTIONS = (set, frozenset, list, tuple, deque)
#: Of so many objects of one owner or type it is shown who holds them.
_SHOWN = 20


def container_sizes(*skipped: object) -> Counter[str]:
    """Sizes by owner. `skipped`: not walked into (what belongs to the test, not to the agent)."""
    return _Walk(skipped).sizes


def holders(name: str, *skipped: object) -> list[str]:
    """The shortest way from a module or a task to each container of the owner `name`, or to each object of the type `module.Class`: the
    owners on it, the outermost first, and the number of objects that have the same way. `skipped`: as above."""
    walk = _Walk(skipped)
    ways = Counter(walk.way(index) for index in walk.found(name))
    shown = [f"{count} held by {way}" for way, count in ways.most_common(_SHOWN)]
    return [*shown, f"and {len(ways) - _SHOWN} other ways"] if len(ways) > _SHOWN else shown


class _Walk:
    def __init__(self, skipped: tuple[object, ...]) -> None:
        self.sizes: Counter[str] = Counter()
        self._met: list[
            tuple[str, object, int]
        ] = []  # owner, object, the index of the one before it; they keep their ids
        self._waiting: deque[tuple[str, object, int]] = deque()
        self._seen = {id(item) for item in (*skipped, self.__dict__, self.sizes, self._met, self._waiting)}
        self._add(_roots())
        while self._waiting:
            self._meet(*self._waiting.popleft())

    def found(self, name: str) -> Iterator[int]:
        """Indices of the containers of the owner `name`, and of the objects of the type `name`."""
        for index, (owner, value, _) in enumerate(self._met):
            kind = type(value)
            is_owned = owner == name and isinstance(value, (dict, *_COLLECTIONS)) and value
            if is_owned or f"{kind.__module__}.{kind.__qualname__}" == name:
                yield index

    def way(self, index: int) -> str:
        owners: list[str] = []
        while index >= 0:
            owner, value, index = self._met[index]
            owners.append(f"{owner} ({value.get_name()})" if isinstance(value, asyncio.Task) else owner)
        return " > ".join(reversed(owners))

    def _add(self, found: Iterable[tuple[str, object]]) -> None:
        """To be met: what the object refers to that was met last."""
        self._waiting.extend((owner, value, len(self._met) - 1) for owner, value in found)

    def _meet(self, owner: str, value: object, before: int) -> None:
        if isinstance(value, _LEAVES) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._met.append((owner, value, before))
        if owner.endswith(_INSIDE) and isinstance(value, tuple):
            self._add((owner, item) for item in value)  # a key or a record: one entry, whatever its length
        else:
            self._visit(owner.removesuffix(_INSIDE), value)

    def _visit(self, owner: str, value: Any) -> None:
        if isinstance(value, dict):
            self._count(owner, value)
            for pair in value.copy().items():
                self._add((owner + _INSIDE, item) for item in pair)
        elif isinstance(value, VersionedMap):  # as a dict, and what it has beside its entries
            self._count(owner, value)
            for pair in value.items():
                self._add((owner + _INSIDE, item) for item in pair)
            self._add((name, item) for name, item in _attributes(value) if name != "VersionedMap._parts")
        elif isinstance(value, _COLLECTIONS):
            self._count(owner, value)
            self._add((owner + _INSIDE, item) for item in list(value))
        elif isinstance(value, (types.FunctionType, types.MethodType)):
            self._follow_function(owner, value)
        elif isinstance(value, (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)):
            self._follow_frame(value)
        elif isinstance(value, asyncio.Task):
            self._add([(owner, value.get_coro())])
        elif isinstance(value, asyncio.Handle):
            self._add([(owner, value._callback)])  # type: ignore[attr-defined]
            self._add([(owner, value._args)])
        else:
            self._add(_attributes(value))

    def _count(self, owner: str, value: Any) -> None:
        self.sizes[owner] += len(value)

    def _follow_function(self, owner: str, value: Any) -> None:
        if isinstance(value, types.MethodType):
            self._add([(owner, value.__self__)])
            return
        for cell in value.__closure__ or ():
            try:
                self._add([(f"{value.__qualname__}()", cell.cell_contents)])
            except ValueError:
                continue

    def _follow_frame(self, value: Any) -> None:
        kind = {types.CoroutineType: "cr", types.GeneratorType: "gi", types.AsyncGeneratorType: "ag"}[type(value)]
        frame = getattr(value, f"{kind}_frame")
        if frame is not None:
            self._add((f"{value.__qualname__}.{name}", local) for name, local in frame.f_locals.items())
        self._add([(value.__qualname__, getattr(value, f"{kind}_await", None))])


def _roots() -> Iterator[tuple[str, object]]:
    for name, module in sys.modules.copy().items():  # at once, whatever is imported meanwhile
        if name.split(".")[0].startswith(PACKAGE) and not name.endswith("_pb2"):
            for attribute, value in vars(module).copy().items():
                if not attribute.startswith("__"):
                    yield f"{name.removeprefix(PACKAGE + '.')}.{attribute}", value
    loop: Any = asyncio.get_running_loop()
    yield "loop.timers", [timer for timer in loop._scheduled if not timer.cancelled()]
    yield "loop.tasks", list(asyncio.all_tasks())


def _attributes(value: Any) -> Iterator[tuple[str, object]]:
    """Of an instance: what its dictionary and slots hold."""
    name = type(value).__name__
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield f"{name}.{field}", getattr(value, field, None)
        return
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if not slot.startswith("__") and hasattr(value, slot):
                yield f"{name}.{slot}", getattr(value, slot)
    for attribute, item in list(getattr(value, "__dict__", {}).items()):
        yield f"{name}.{attribute}", item
    if isinstance(value, collections.UserDict):
        yield f"{name}.data", value.data


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_descriptors() -> list[str]:
    """What each is, without numbers, sorted."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}").split(":[")[0])
        except FileNotFoundError:
            continue
    return sorted(found)


def live_objects() -> int:
    gc.collect()
    return len(gc.get_objects())
