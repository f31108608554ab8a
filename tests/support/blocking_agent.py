"""The agent, which is brought into a state in which it cannot end by itself, or which ends it.

Run it as the agent itself, with the same arguments, and these variables:

PYKUBELET_BLOCK       the state: a name of `STATES`, and what it needs after a colon. Without it, the agent is as always.
PYKUBELET_BLOCK_LOOP  "asyncio": run as without uvloop.
PYKUBELET_BLOCK_AT    "FILE FUNCTION TEXT": begin when a function of the agent is called with an argument in which the text
                      occurs, as if that were the effect of a pod's spec. Otherwise SIGUSR1 begins it.

Python handles a signal in the main thread, which is that of the event loop, so the handler blocks it. A line on standard error shows that
the state has begun. The agent does not know of this program.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

#: ctypes releases the interpreter's lock for functions of CDLL, and keeps it for those of PyDLL.
_keeping, _releasing = ctypes.PyDLL(None), ctypes.CDLL(None)
_tasks: list[object] = []


def compute(_: str) -> None:
    """Python code that never ends."""
    while True:
        pass


def match(_: str) -> None:
    """A regular expression that needs ages, and keeps the interpreter's lock."""
    re.match("(a|aa)+$", "a" * 80 + "b")


def deadlock(_: str) -> None:
    """A C library that waits for a lock of its own, and keeps the interpreter's."""
    mutex = ctypes.create_string_buffer(256)
    _keeping.pthread_mutex_lock(mutex)
    _keeping.pthread_mutex_lock(mutex)


def keep(seconds: str) -> None:
    """C code that keeps the interpreter's lock for some seconds. No signal interrupts it."""
    mutex, until = ctypes.create_string_buffer(256), (ctypes.c_long * 2)(int(time.time() + float(seconds)), 0)
    _keeping.pthread_mutex_lock(mutex)
    _keeping.pthread_mutex_timedlock(mutex, until)


def compute_for(seconds: str) -> None:
    """Python code that ends after some seconds."""
    deadline = time.monotonic() + float(seconds)
    while time.monotonic() < deadline:
        pass


def wait_unlocked(_: str) -> None:
    """A C library that waits for a lock of its own, without the interpreter's."""
    mutex = ctypes.create_string_buffer(256)
    _releasing.pthread_mutex_lock(mutex)
    _releasing.pthread_mutex_lock(mutex)


def stat(path: str) -> None:
    """A file system that does not answer."""
    os.stat(path)


def hang_thread(_: str) -> None:
    """A thread for which the interpreter waits at its end, and one of asyncio's executor."""
    threading.Thread(target=threading.Event().wait).start()
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)


def keep_task(_: str) -> None:
    """A task that does not end when it is cancelled."""

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    _tasks.append(asyncio.get_running_loop().create_task(stubborn(), name="stubborn"))


def fault(_: str) -> None:
    """C code that uses memory which is not there."""
    ctypes.string_at(0)


def eat(_: str) -> None:
    """Code that takes more and more memory."""
    while True:
        _tasks.append(bytearray(b"x" * (16 << 20)))


def fail(_: str) -> None:
    """Code with a bug."""
    raise ZeroDivisionError("a bug")


STATES: dict[str, Callable[[str], None]] = {
    state.__name__: state
    for state in (
        compute,
        compute_for,
        match,
        deadlock,
        keep,
        wait_unlocked,
        stat,
        hang_thread,
        keep_task,
        fault,
        eat,
        fail,
    )
}


def begin_at(begin: Callable[[], None], file: str, function: str, text: str) -> None:
    """Call `begin` in place of a function's first line, when an argument of its call has the text."""

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == function and code.co_filename.endswith(file):
            names = code.co_varnames[: code.co_argcount]
            if any(text in repr(frame.f_locals.get(name)) for name in names):
                begin()

    sys.setprofile(watch)
    threading.setprofile(watch)


def main() -> int:
    name, _, given = os.environ.get("PYKUBELET_BLOCK", "").partition(":")

    def begin(_: int = 0, __: object = None) -> None:
        os.write(2, b"==== state begins\n")
        STATES[name](given)

    signal.signal(signal.SIGUSR1, begin)
    if at := os.environ.get("PYKUBELET_BLOCK_AT"):
        begin_at(begin, *at.split(" ", 2))
    if os.environ.get("PYKUBELET_BLOCK_LOOP") == "asyncio":
        sys.modules["uvloop"] = None  # type: ignore[assignment]
    from pykubelet.app.cli import main as agent

    return agent()


if __name__ == "__main__":
    sys.exit(main())
