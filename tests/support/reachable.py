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
from collections.abc import Iterator
from typing import Any

import msgspec

#: The agent; the packages of programs beside it begin with the same word.
PACKAGE = "pykubelet"
_INSIDE = "[]"
_LEAVES = (str, bytes, int, float, bool, type(None), type, types.ModuleType, types.CodeType, types.BuiltinFunctionType)
_COLLECTIONS = (set, frozenset, list, tuple, deque)


def container_sizes(*skipped: object) -> Counter[str]:
    """Sizes by owner. `skipped`: not walked into (what belongs to the test, not to the agent)."""
    return _Walk(skipped).sizes


class _Walk:
    def __init__(self, skipped: tuple[object, ...]) -> None:
        self.sizes: Counter[str] = Counter()
        self._seen = {id(item) for item in skipped} | {id(self.__dict__), id(self.sizes)}
        self._kept: list[object] = []  # what was made for the walk keeps its id
        self._waiting: deque[tuple[str, object]] = deque(_roots())
        while self._waiting:
            self._meet(*self._waiting.popleft())

    def _meet(self, owner: str, value: object) -> None:
        if isinstance(value, _LEAVES) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._kept.append(value)
        if owner.endswith(_INSIDE) and isinstance(value, tuple):
            self._waiting.extend((owner, item) for item in value)  # a key or a record: one entry, whatever its length
        else:
            self._visit(owner.removesuffix(_INSIDE), value)

    def _visit(self, owner: str, value: Any) -> None:
        if isinstance(value, dict):
            self._count(owner, value)
            for key, item in value.copy().items():
                self._waiting.append((owner + _INSIDE, key))
                self._waiting.append((owner + _INSIDE, item))
        elif isinstance(value, _COLLECTIONS):
            self._count(owner, value)
            self._waiting.extend((owner + _INSIDE, item) for item in list(value))
        elif isinstance(value, (types.FunctionType, types.MethodType)):
            self._follow_function(owner, value)
        elif isinstance(value, (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)):
            self._follow_frame(value)
        elif isinstance(value, asyncio.Task):
            self._waiting.append((owner, value.get_coro()))
        elif isinstance(value, asyncio.Handle):
            self._waiting.append((owner, value._callback))  # type: ignore[attr-defined]
            self._waiting.append((owner, value._args))
        else:
            self._waiting.extend(_attributes(value))

    def _count(self, owner: str, value: Any) -> None:
        self.sizes[owner] += len(value)

    def _follow_function(self, owner: str, value: Any) -> None:
        if isinstance(value, types.MethodType):
            self._waiting.append((owner, value.__self__))
            return
        for cell in value.__closure__ or ():
            try:
                self._waiting.append((f"{value.__qualname__}()", cell.cell_contents))
            except ValueError:
                continue

    def _follow_frame(self, value: Any) -> None:
        kind = {types.CoroutineType: "cr", types.GeneratorType: "gi", types.AsyncGeneratorType: "ag"}[type(value)]
        frame = getattr(value, f"{kind}_frame")
        if frame is not None:
            self._waiting.extend((f"{value.__qualname__}.{name}", local) for name, local in frame.f_locals.items())
        self._waiting.append((value.__qualname__, getattr(value, f"{kind}_await", None)))


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
