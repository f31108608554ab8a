"""Finds calls of the product that may block the event loop: a disk that hangs, a program or a name server would delay everything.

A call counts if it is made on the thread of a running loop by a coroutine of the product, or by a function of the product that
the loop itself calls; not if a test makes it, or calls the function that makes it. The interpreter reports the calls (audit
events), whether they take long or not. It does not report `stat`, nor reading from an open file.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, SupportsIndex

ROOT = Path(__file__).parents[2]
#: The agent and the programs beside it.
PRODUCT = f"{ROOT}/src/"
#: The doubles are a part of the tests.
TESTS = (f"{PRODUCT}pykubelet/testing/", f"{ROOT}/tests/", f"{ROOT}/tools/", f"{ROOT}/bench/")
CALLS = frozenset(
    {
        *(
            "open",
            "os.chmod",
            "os.chown",
            "os.link",
            "os.listdir",
            "os.listxattr",
            "os.mkdir",
            "os.remove",
            "os.rename",
        ),
        *(
            "os.rmdir",
            "os.scandir",
            "os.setxattr",
            "os.symlink",
            "os.truncate",
            "os.utime",
            "fcntl.flock",
            "fcntl.lockf",
        ),
        *("os.fork", "os.posix_spawn", "os.system", "subprocess.Popen"),
        *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "time.sleep"),
    }
)
#: Files that are not on a disk.
KERNEL = ("/proc/", "/sys/", "/dev/null/", "/dev/urandom/")
#: Calls that wait for another process, which no reason makes right on the loop's thread of an agent that runs.
WAITING = frozenset(call for call in CALLS if call.startswith(("socket.", "time.")))
#: The only function that may wait for other processes.
START = "pykubelet/app/wiring.py:start"
#: Functions of the product whose calls, direct or not, are allowed on the loop's thread, with the reason.
ALLOWED = {
    START: "the start of the agent; nothing runs yet",
    "pykubelet/edges/host/services/process.py:start_program": "forks and executes; the program is on the disk of the agent's own program",
    "pykubelet/edges/host/services/unix_socket.py:_serve_socket": "makes the socket when the agent starts and removes it when it ends",
}
_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class BlockingCalls:
    """The detector. `take`: the calls since the last time, each with the stack of the product's functions."""

    def __init__(self) -> None:
        self._kinds: dict[CodeType, str] = {}
        self._found: list[str] = []
        self._is_installed = False
        self._is_on = False
        self._sleep = time.sleep

    def start(self) -> None:
        """Begin to observe this process."""
        self._is_on = True
        if not self._is_installed:
            sys.addaudithook(self._audit)
            self._is_installed = True
        self._sleep = time.sleep
        time.sleep = self._checked_sleep

    def stop(self) -> None:
        """Observe no longer; a hook cannot be removed."""
        self._is_on = False
        time.sleep = self._sleep

    def take(self) -> str:
        """The calls since the last time; empty if there were none."""
        found, self._found = self._found, []
        return "\n".join(dict.fromkeys(found))

    @contextmanager
    def observed(self) -> Iterator[list[str]]:
        """Yield the calls in the block. They do not count for `take`."""
        before, self._found = self._found, []
        try:
            yield self._found
        finally:
            self._found = before

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CALLS and self._is_on and asyncio._get_running_loop() is not None:
            self._check(event, arguments, sys._getframe(1))

    def _checked_sleep(self, seconds: float | SupportsIndex) -> None:
        if asyncio._get_running_loop() is not None:
            self._check("time.sleep", (seconds,), sys._getframe(1))
        self._sleep(seconds)

    def _check(self, event: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        if _never_waits(event, arguments):
            return
        frames = self._responsible(frame)
        allowed = {START} if event in WAITING else ALLOWED
        if frames and not any(f"{_module(caller)}:{caller.f_code.co_name}" in allowed for caller in frames):
            stack = "\n".join(f"    {_module(caller)}:{caller.f_lineno} {caller.f_code.co_name}" for caller in frames)
            self._found.append(f"{event} {arguments[0]!r} on the event loop's thread, by\n{stack}")

    def _responsible(self, frame: FrameType | None) -> list[FrameType]:
        """The product's functions that lead to a call, the innermost first; empty if a test makes it."""
        found: list[FrameType] = []
        is_coroutine = False
        while frame is not None:
            kind = self._kind(frame.f_code)
            if kind == "product":
                found.append(frame)
                is_coroutine = is_coroutine or bool(frame.f_code.co_flags & _COROUTINE)
            elif kind == "import":
                return []
            elif kind == "test":
                return found if is_coroutine else []
            elif kind == "loop":
                return found
            frame = frame.f_back
        return found

    def _kind(self, code: CodeType) -> str:
        kind = self._kinds.get(code)
        if kind is None:
            kind = self._kinds[code] = _kind_of(code)
        return kind


#: The detector of this process.
DETECTOR = BlockingCalls()


def _kind_of(code: CodeType) -> str:
    name = code.co_filename
    if name.startswith(TESTS):
        return "test"
    if name.startswith(PRODUCT):
        return "product"
    if name.startswith("<frozen importlib") or name.endswith(("/linecache.py", "/traceback.py")):
        return "import"  # the program's own files, also for a traceback in the log; since 3.13 that tries to open "<unknown>"
    return "loop" if name.endswith(("/asyncio/events.py", "/asyncio/runners.py")) else "library"


def _never_waits(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "socket.connect":
        return bool(arguments[0].gettimeout() == 0)
    if event == "open" and isinstance(arguments[0], int):
        return True  # of an open file
    return isinstance(arguments[0], str) and f"{arguments[0]}/".startswith(KERNEL)


def _module(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(PRODUCT)
