"""Records which functions of the agent run, and which piece of work led to which.

A segment is work without a wait: one step of a task, one callback of the event loop, or one piece of work in a thread. Its causes are
the segments that made it run: the one that scheduled it, all that have set the `asyncio.Event` that it waited for, the one that handed
it to a thread, and the step before it of the same task. Snapshots are causes too where a task of a pod reads them: it would have waited
for the component that published them. Nothing else that a segment reads is a cause.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVarTuple, Unpack
from weakref import WeakKeyDictionary

from lifecycle.loop import OrderedLoop

import pykubelet
from pykubelet.base.kit.cells import Cell

Ts = TypeVarTuple("Ts")
SOURCE = Path(pykubelet.__file__).parent
_DOUBLES = SOURCE / "testing"
_UID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The part of a key of blocking work that is the same for all pods and folders.
_NAME = re.compile(r"[^:/ ]*")
#: A piece of blocking work, in `pykubelet.base.kit.flight`.
_JOB = "SingleFlight._carry_out"


class Kind(Enum):
    """What a segment is a part of."""

    TASK = auto()
    CALLBACK = auto()
    THREAD = auto()


@dataclass(eq=False, slots=True)
class Segment:
    """A piece of work without a wait.

    `owner`: the name of the task, of the callback or of the work in a thread. `part_of`: the task or the callback.
    `is_double`: it stands for another program. `is_of_pod`: the task has a UID in its name, or a task of a pod has started it.
    `read`: the segments that published what a task of a pod read. `calls`: how often each function of the agent was called or
    continued. `waited_in`: the function of the agent that waited before this step of a task.
    """

    number: int
    kind: Kind
    owner: str
    part_of: object
    is_double: bool = False
    is_of_pod: bool = False
    waited_in: str = ""
    causes: list[Segment] = field(default_factory=list)
    read: list[Segment] = field(default_factory=list)
    calls: Counter[CodeType] = field(default_factory=Counter)


class _Role(Enum):
    """What a function is to the recorder."""

    NONE = auto()
    AGENT = auto()
    IMPORT = auto()
    SET = auto()
    CLEAR = auto()
    WAIT = auto()
    JOB = auto()
    GET = auto()
    PUBLISH = auto()


_ROLES = {
    asyncio.Event.set.__code__: _Role.SET,
    asyncio.Event.clear.__code__: _Role.CLEAR,
    asyncio.Event.wait.__code__: _Role.WAIT,
    Cell.get.__code__: _Role.GET,
    Cell._publish.__code__: _Role.PUBLISH,
}


class _Thread(threading.local):
    """`segment`: the work of this thread now. `imports`: how many modules are being loaded."""

    segment: Segment | None = None
    imports = 0


class Recorder:
    """`begin` forgets what was recorded; `end` stops. `segments`: in the order in which they began. `last`: in which `end` was called."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.last: Segment | None = None
        self._is_on = False
        self._numbers = itertools.count()
        self._thread = _Thread()
        self._roles: dict[CodeType, _Role] = dict(_ROLES)
        self._scheduled: dict[int, tuple[asyncio.Handle, Segment]] = {}
        self._previous: WeakKeyDictionary[Any, Segment] = WeakKeyDictionary()  # by task, or by callback of many futures
        self._publishers: WeakKeyDictionary[Cell[Any], Segment] = WeakKeyDictionary()
        self._setters: WeakKeyDictionary[asyncio.Event, list[Segment]] = WeakKeyDictionary()
        self._makers: WeakKeyDictionary[asyncio.Future[Any], Segment] = WeakKeyDictionary()

    def install(self) -> None:
        """See the calls of this thread, and of all threads that start from now on."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def begin(self) -> None:
        """Forget everything. What was scheduled before has no cause."""
        for known in (self._scheduled, self._previous, self._setters, self._makers, self._publishers):
            known.clear()
        self.segments = []
        self._is_on = True

    def end(self) -> None:
        """Record no more. Only the first call counts."""
        if self._is_on:
            self._is_on, self.last = False, self._thread.segment
        threading.setprofile(None)
        sys.setprofile(None)

    # The event loop

    def scheduled(self, handle: asyncio.Handle) -> None:
        """The work that is under way leads to the call of this handle."""
        if (segment := self._thread.segment) is not None:
            self._scheduled[id(handle)] = handle, segment

    def made(self, future: asyncio.Future[Any]) -> None:
        """The work that is under way has made this future."""
        if (segment := self._thread.segment) is not None:
            self._makers[future] = segment

    def run(self, handle: asyncio.Handle) -> None:
        """Call a handle, as a segment."""
        _, cause = self._scheduled.pop(id(handle), (None, None))
        if self._is_on:
            self._thread.segment = self._segment_of(handle._callback, cause)  # type: ignore[attr-defined]
        try:
            handle._run()
        finally:
            self._thread.segment = None

    def _segment_of(self, callback: Any, cause: Segment | None) -> Segment:
        task = getattr(callback, "__self__", None)
        if isinstance(task, asyncio.Task):
            segment = self._begin(Kind.TASK, _name_of(task), task)
            coroutine: Any = task.get_coro()
            segment.is_double = not _is_agent(coroutine.cr_code)
            segment.waited_in = _waited_in(coroutine)
            is_new = inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
        else:
            segment = self._begin(Kind.CALLBACK, getattr(callback, "__qualname__", repr(callback)), callback)
            is_new = False
        if cause is not None:
            segment.causes.append(cause)
        # a callback of several futures, as that of `asyncio.gather`, has all of them as causes
        is_chained = segment.kind is Kind.TASK or (isinstance(callback, FunctionType) and callback.__closure__)
        previous = self._previous.get(segment.part_of) if is_chained and not segment.is_double else None
        if previous is not None:
            segment.causes.append(previous)
        if is_chained:
            self._previous[segment.part_of] = segment
        maker = cause if is_new else previous
        segment.is_of_pod = "UID" in segment.owner or (maker is not None and maker.is_of_pod)
        return segment

    def _begin(self, kind: Kind, owner: str, part_of: object) -> Segment:
        segment = Segment(next(self._numbers), kind, owner, part_of)
        self.segments.append(segment)
        return segment

    # Functions

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            role = self._role(frame.f_code)
            if role is not _Role.NONE:
                self._called(role, frame)
        elif event == "return":
            role = self._role(frame.f_code)
            if role is _Role.IMPORT:
                self._thread.imports -= 1
            elif role is _Role.JOB:
                self._thread.segment = None
            elif role is _Role.WAIT and arg is True:
                self._read(frame.f_locals["self"])

    def _called(self, role: _Role, frame: FrameType) -> None:
        thread = self._thread
        if role is _Role.IMPORT:
            thread.imports += 1
            return
        if not self._is_on:
            return
        if role is _Role.JOB:
            thread.segment = self._begin(Kind.THREAD, _NAME.findall(frame.f_locals["key"])[0], None)
            if (maker := self._makers.get(frame.f_locals["future"])) is not None:
                thread.segment.causes.append(maker)
        if (segment := thread.segment) is None:
            return
        match role:
            case _Role.SET:
                self._setters.setdefault(frame.f_locals["self"], []).append(segment)
            case _Role.CLEAR:
                self._read(frame.f_locals["self"])
            case _Role.PUBLISH:
                self._publishers[frame.f_locals["self"]] = segment
            case _Role.GET if segment.is_of_pod:
                publisher = self._publishers.get(frame.f_locals["self"])
                if publisher is not None and publisher is not segment:
                    segment.read.append(publisher)
        if not thread.imports and _is_agent(frame.f_code):
            segment.calls[frame.f_code] += 1

    def _read(self, event: asyncio.Event) -> None:
        """The work that is under way has waited for an event, or looks at what the event is about."""
        setters = self._setters.pop(event, None)
        if setters is not None and (segment := self._thread.segment) is not None:
            segment.causes += [setter for setter in setters if setter is not segment]

    def _role(self, code: CodeType) -> _Role:
        role = self._roles.get(code)
        if role is None:
            role = self._roles[code] = _role_of(code)
        return role


def _role_of(code: CodeType) -> _Role:
    if code.co_name == "<module>":
        return _Role.IMPORT
    if code.co_qualname == _JOB:
        return _Role.JOB
    return _Role.AGENT if _is_agent(code) else _Role.NONE


@cache
def _is_agent(code: CodeType) -> bool:
    path = Path(code.co_filename)
    return path.is_relative_to(SOURCE) and not path.is_relative_to(_DOUBLES)


def _name_of(task: asyncio.Task[Any]) -> str:
    """The name that the agent has given to a task, without a UID, else that of its function."""
    name = task.get_name()
    coroutine: Any = task.get_coro()
    return _UID.sub("UID", name) if not name.startswith("Task-") else str(coroutine.__qualname__)


def _waited_in(coroutine: Any) -> str:
    """The innermost function of the agent in which a task waits. `coroutine`: that of the task."""
    found = ""
    while coroutine is not None:
        code = getattr(coroutine, "cr_code", None) or getattr(coroutine, "ag_code", None)
        if code is not None and _is_agent(code):
            found = f"{file_of(code)} {code.co_qualname}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return found


def file_of(code: CodeType) -> str:
    """The path of a function's file below `src/pykubelet`."""
    return str(Path(code.co_filename).relative_to(SOURCE))


class RecordingLoop(OrderedLoop):
    """A loop of virtual time that reports to `recorder` which work schedules which."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        super().__init__()
        self._ready: deque[Any] = _Handles(recorder, self._ready)

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle: asyncio.Handle = super()._call_soon(callback, args, context)  # type: ignore[misc]
        self._recorder.scheduled(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        self._recorder.scheduled(timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        future = super().create_future()
        self._recorder.made(future)
        return future


class _Handles(deque[Any]):
    """The loop's queue, which hands out handles that the recorder calls."""

    def __init__(self, recorder: Recorder, handles: Any) -> None:
        super().__init__(handles)
        self._recorder = recorder

    def popleft(self) -> Any:
        return _Recorded(super().popleft(), self._recorder)


class _Recorded:
    __slots__ = ("_handle", "_recorder")

    def __init__(self, handle: Any, recorder: Recorder) -> None:
        self._handle = handle
        self._recorder = recorder

    @property
    def _cancelled(self) -> bool:
        return bool(self._handle._cancelled)

    def _run(self) -> None:
        self._recorder.run(self._handle)
