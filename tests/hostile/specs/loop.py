"""A loop of virtual time that knows how long each of its iterations keeps the agent's other work waiting.

The doubles of the cluster run on the same loop: what their tasks and callbacks take does not count.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import tracemalloc
from collections import Counter, deque
from types import FrameType
from typing import TYPE_CHECKING, Any

from hostile.specs.memory import OwnMemory
from support.virtual_time import VirtualLoop

from pykubelet.base.kit.flight import SingleFlight, _settle

if TYPE_CHECKING:
    from _typeshed import TraceFunction

#: Modules whose tasks and callbacks stand for other programs.
DOUBLES = ("pykubelet.testing", "pykubelet_local_api", "support.", "aiohttp", "longlife.", "hostile.", "__main__")


#: A line that allocates more is taken to copy something.
LARGE_BYTES = 1024


class MeasuredLoop(VirtualLoop):
    """`longest_s`: the agent's CPU time in the longest iteration, most of it by `longest`. `doubles_s`: of the doubles, in all.
    `by_name`: of the agent, by the name of the task or callback. `lines`: of Python that the agent executes while `counts` is true,
    which are the same in every run: threads run between two iterations, and their outcomes come together, or one by one with `apart`,
    however busy the machine is. `copied`: bytes that single lines allocate meanwhile, of lines that allocate many, such as copies of whole
    mappings in C.
    """

    counts = False
    apart = False
    #: Measures the memory of the agent meanwhile.
    memory: OwnMemory | None = None

    def __init__(self) -> None:
        super().__init__()
        self._ready = _Handles(self, self._ready)  # type: ignore[has-type]
        self._threads_go = threading.Event()
        threading.settrace(self._hold_thread)
        self.reset()

    def _hold_thread(self, frame: FrameType, event: str, _: object) -> None:
        """Let a thread begin its work only while the loop waits for it: what it allocates is not the loop's."""
        if event == "call" and frame.f_code is SingleFlight._carry_out.__code__ and self.counts:
            self._threads_go.wait()

    def reset(self) -> None:
        self.longest_s = self.doubles_s = self._iteration_s = 0.0
        self.lines: Counter[str] = Counter()
        self.copied: Counter[str] = Counter()
        self.longest = ""
        self.by_name: Counter[str] = Counter()
        self._parts: Counter[str] = Counter()

    def spent(self, name: str, seconds: float, *, is_double: bool) -> None:
        if is_double:
            self.doubles_s += seconds
            return
        self._iteration_s += seconds
        self._parts[name] += seconds  # type: ignore[assignment]
        self.by_name[name] += seconds  # type: ignore[assignment]

    def _run_once(self) -> None:
        later = self._await_threads() if self.counts else []
        self._iteration_s = 0.0
        self._parts.clear()
        super()._run_once()
        self._ready.extendleft(reversed(later))
        if self._iteration_s > self.longest_s:
            self.longest_s = self._iteration_s
            self.longest = self._parts.most_common(1)[0][0]

    def _await_threads(self) -> list[Any]:
        """Wait until all threads have ended before the next iteration. Returns the outcomes that are kept for the iterations after it."""

        def outcomes() -> list[Any]:
            return [handle for handle in [*self._ready] if getattr(handle, "_callback", None) is _settle]

        awaited = sum(not outcome.done() for outcome in self._outcomes)
        self._threads_go.set()
        while len(found := outcomes()) < awaited:
            time.sleep(0.0001)
        self._threads_go.clear()
        later = found[1:] if self.apart else []
        for handle in later:
            self._ready.remove(handle)
        return later


class _Handles(deque[Any]):
    """The loop's queue, which hands out each handle in something that measures it."""

    def __init__(self, loop: MeasuredLoop, handles: Any) -> None:
        super().__init__(handles)
        self._loop = loop

    def popleft(self) -> Any:
        return _Measured(super().popleft(), self._loop)


class _Measured:
    __slots__ = ("_handle", "_loop")

    def __init__(self, handle: Any, loop: MeasuredLoop) -> None:
        self._handle = handle
        self._loop = loop

    @property
    def _cancelled(self) -> bool:
        return bool(self._handle._cancelled)

    def _run(self) -> None:
        name, module = _owner(self._handle._callback)
        is_double = module.startswith(DOUBLES)
        if self._loop.counts and not is_double:
            self._count(name)
            return
        if (memory := self._loop.memory) is not None:
            memory.begin()
            self._handle._run()
            memory.end(is_double=is_double)
            return
        began = time.thread_time()
        self._handle._run()
        self._loop.spent(name, time.thread_time() - began, is_double=is_double)

    def _count(self, name: str) -> None:
        lines, code, copied = 0, "", self._loop.copied
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]

        def trace(frame: FrameType, event: str, _: object) -> TraceFunction:
            nonlocal lines, code, before
            lines += event == "line"
            allocated = tracemalloc.get_traced_memory()[1] - before
            if allocated > LARGE_BYTES and code:
                copied[code] += allocated
            is_own = frame.f_globals.get("__name__", "").startswith("pykubelet")
            code = f"{frame.f_code.co_qualname} in {name}" if is_own else ""
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            return trace

        sys.settrace(trace)
        try:
            self._handle._run()
        finally:
            sys.settrace(None)
            self._loop.lines[name] += lines


def _owner(callback: Any) -> tuple[str, str]:
    """The name and the module of what a callback runs."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        frame = getattr(coroutine, "cr_frame", None)
        module = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
        return getattr(coroutine, "__qualname__", ""), module
    if owner is not None:
        target = getattr(owner, "_protocol", None) or owner  # a connection within the process delivers
        return f"{type(target).__name__}.{callback.__name__}", type(target).__module__
    return getattr(callback, "__qualname__", repr(callback)), getattr(callback, "__module__", "") or ""
