"""The stacks of all threads and asyncio tasks as text, for a log that shows where a process is stuck. Runs in any thread.

The innermost call is the last line of a stack. Tasks with the same stack are shown once, with their number. No source is read.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

#: The calls that are shown of a stack, from the innermost on; the lines of one text; the names of tasks with one stack.
MAX_CALLS = 60
MAX_LINES = 2000
MAX_NAMES = 5


def stack_of_thread(ident: int | None) -> str:
    """The stack of a thread, one call in a line; empty if it has ended."""
    frame = sys._current_frames().get(ident or 0)
    return "\n".join(_calls(frame)) if frame is not None else ""


def all_stacks(loop: asyncio.AbstractEventLoop | None) -> str:
    """The stacks of all threads, and of the tasks of `loop`. At most `MAX_LINES` lines."""
    lines = [*_threads(), *(_tasks(loop) if loop is not None else ())]
    left_out = len(lines) - MAX_LINES
    if left_out > 0:
        lines[MAX_LINES:] = [f"{left_out} more lines are left out"]
    return "\n".join(lines)


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {names.get(ident, ident)}"
        yield from _calls(frame)


def _tasks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    found: dict[tuple[str, ...], list[str]] = {}
    for task in asyncio.all_tasks(loop):
        found.setdefault(tuple(_awaited(task)), []).append(task.get_name())
    for stack, names in sorted(found.items(), key=lambda item: item[1][0]):
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        yield f"task {', '.join(sorted(names)[:MAX_NAMES])}{more}"
        yield from stack


def _awaited(task: asyncio.Task[Any]) -> Iterator[str]:
    """The coroutines of a task, each of which waits for the next one."""
    waiting: Any = task.get_coro()
    for _ in range(MAX_CALLS):
        frame = next((getattr(waiting, name, None) for name in ("cr_frame", "ag_frame", "gi_frame")), None)
        if not isinstance(frame, FrameType):
            return
        yield _call(frame)
        waiting = next((getattr(waiting, name) for name in _WAITS_FOR if hasattr(waiting, name)), None)


_WAITS_FOR = ("cr_await", "ag_await", "gi_yieldfrom")


def _calls(innermost: FrameType | None) -> list[str]:
    lines: list[str] = []
    frame = innermost
    while frame is not None and len(lines) < MAX_CALLS:
        lines.append(_call(frame))
        frame = frame.f_back
    lines.reverse()
    return lines


def _call(frame: FrameType) -> str:
    code = frame.f_code
    path = code.co_filename
    _, package, inner = path.rpartition("/pykubelet/")
    shown = package[1:] + inner if package else "/".join(path.rsplit("/", 2)[-2:])
    return f"    {shown}:{frame.f_lineno} {code.co_qualname}"
