"""Calls a function of foreign code in the event loop's thread with limits of CPU time, time and memory.

- While a function runs, a timer of the kernel interrupts it every `TICK_S`. Python's handler ends it with an exception if it has used up
  its CPU time, or `wall_s` is over, as when it sleeps. A function that catches the exception gets another one at the next tick.
- The process may have `memory` bytes more than at the start of the call (RLIMIT_DATA). A function that wants more gets a MemoryError.
- Native code that does not return to Python, and a function that catches every exception, cannot be ended. After `STUCK_S` the kernel
  aborts the process. The record of the run (`run_record.py`) shows what it was at, and the next start knows.

What is not limited: memory that the function keeps, threads and processes that it starts.
Source: setitimer(2), getrlimit(2), timer_create(2).
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.signals import SignalTimer

T = TypeVar("T")
TICK_S = 0.005
STUCK_S = 10.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: The field of /proc/self/statm with the pages that RLIMIT_DATA counts, and more.
_DATA_FIELD = 5


class CallLimits(Value):
    """`cpu_s`: of the calling thread. `wall_s`: also while it waits. `memory`: bytes beyond those of the process before the call."""

    cpu_s: float = 0.005
    wall_s: float = 0.25
    memory: int = 64 << 20


class LimitError(Exception):
    """A call has used more than it may; the text states what."""


class CallInterrupt(BaseException):
    """Raised in the foreign function: `except Exception` does not catch it. The text states what it has used too much of."""


class LimitedCalls:
    """Calls functions with limits, one at a time. Only in the main thread, where Python handles signals."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._began: tuple[float, float] | None = None
        self._stuck: SignalTimer | None = None
        with suppress(HostError):  # without it, the service manager's watchdog remains
            self._stuck = SignalTimer(signal.SIGABRT)
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        #: The seconds of CPU time of the last call.
        self.cpu_s = 0.0

    def close(self) -> None:
        """Give back what it has of the kernel."""
        os.close(self._statm)
        if self._stuck is not None:
            self._stuck.close()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """The function's result. Raises LimitError, and what the function raises; also MemoryError."""
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        data = int(os.pread(self._statm, 256, 0).split()[_DATA_FIELD]) * _PAGE
        allowed = data + self._limits.memory
        resource.setrlimit(resource.RLIMIT_DATA, (allowed if soft < 0 else min(soft, allowed), hard))
        if self._stuck is not None:
            self._stuck.start(STUCK_S)
        previous = signal.signal(signal.SIGALRM, self._tick)
        began = self._began = (time.thread_time(), time.monotonic())
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
                result = function(*args)
            finally:
                self._began = None
        except CallInterrupt as interrupt:
            self._began = None
            raise LimitError(str(interrupt)) from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
            self.cpu_s = time.thread_time() - began[0]
            if self._stuck is not None:
                self._stuck.start(0)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        if self.cpu_s > self._limits.cpu_s:  # it was over before the next tick, or in native code
            raise LimitError(self._over(self.cpu_s))
        return result

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        if self._began is None:
            return
        cpu_s, wall_s = time.thread_time() - self._began[0], time.monotonic() - self._began[1]
        if cpu_s > self._limits.cpu_s:
            raise CallInterrupt(self._over(cpu_s))
        if wall_s > self._limits.wall_s:
            raise CallInterrupt(f"it took {wall_s * 1000:.0f} ms, more than {self._limits.wall_s * 1000:.0f} ms")

    def _over(self, cpu_s: float) -> str:
        return f"it used {cpu_s * 1000:.1f} ms of CPU time, more than {self._limits.cpu_s * 1000:g} ms"
