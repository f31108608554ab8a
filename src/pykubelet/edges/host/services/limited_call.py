"""Calls a function of foreign code in the event loop's thread with limits of CPU time, time and memory.

- While a function runs, a timer of the kernel interrupts it every `TICK_S`. Python's handler ends it with an exception if it has used up
  its CPU time, or `wall_s` is over, as when it sleeps. A function that catches the exception gets another one at the next tick.
- The process may have `memory` bytes more than at the start of the call (RLIMIT_DATA). A function that wants more gets a MemoryError.
- Native code that does not return to Python, and a function that catches every exception, cannot be ended. After `STUCK_S` the kernel
  aborts the process. The record of the run (`run_record.py`) shows what it was at, and the next start knows.
- Garbage is not collected meanwhile: that of the agent would cost the function its time, and what interrupts a finalizer is lost.

What is not limited: memory that the function keeps, threads and processes that it starts.
Source: setitimer(2), getrlimit(2), timer_create(2).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes an enum of each answer, which takes longer than the call
import gc
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
_ALARM = int(signal.SIGALRM)
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
    """Calls functions with limits, one at a time. Only in the main thread, where Python handles signals.

    As a context manager, it has the timers run for several calls, each with limits of its own. The body must not wait.
    """

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._began: tuple[float, float] | None = None
        self._is_open = False
        self._data_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        self._handler = self._tick  # one object, which `getsignal` returns
        self._stuck: SignalTimer | None = None
        with suppress(HostError):  # without it, the service manager's watchdog remains
            self._stuck = SignalTimer(signal.SIGABRT)
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        #: The seconds of CPU time of the last call.
        self.cpu_s = 0.0

    def close(self) -> None:
        """Give back what it has of the kernel. A second time changes nothing."""
        if self._statm < 0:
            return
        os.close(self._statm)
        self._statm = -1
        if self._stuck is not None:
            self._stuck.close()
        if signal.getsignal(signal.SIGALRM) is self._handler:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def __enter__(self) -> None:
        self._data_limit = resource.getrlimit(resource.RLIMIT_DATA)
        if self._stuck is not None:
            self._stuck.start(STUCK_S)
        if _signal.getsignal(_ALARM) is not self._handler:  # at first, or another one of this process was asked last
            signal.signal(signal.SIGALRM, self._handler)
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        self._is_open = True

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._stuck is not None:
            self._stuck.start(0)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """The function's result. Raises LimitError, and what the function raises; also MemoryError."""
        if self._is_open:
            return self._call(function, args)
        with self:
            return self._call(function, args)

    def _call(self, function: Callable[..., T], args: tuple[Any, ...]) -> T:
        soft, hard = self._data_limit
        data = int(os.pread(self._statm, 256, 0).split()[_DATA_FIELD]) * _PAGE
        allowed = data + self._limits.memory
        resource.setrlimit(resource.RLIMIT_DATA, (allowed if soft < 0 else min(soft, allowed), hard))
        collects = gc.isenabled()
        gc.disable()
        began = time.thread_time()
        try:
            try:
                self._began = (began, time.monotonic())
                result = function(*args)
            finally:
                self._began = None
        except CallInterrupt as interrupt:
            self._began = None
            raise LimitError(str(interrupt)) from None
        finally:
            self.cpu_s = time.thread_time() - began
            if collects:
                gc.enable()
            resource.setrlimit(
                resource.RLIMIT_DATA, self._data_limit
            )  # what the function keeps takes nothing from the agent
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
