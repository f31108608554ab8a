"""What the kernel does with a signal when Python cannot run: default actions, timers, and signals that no thread has taken.

Python's handlers run in the main thread, between two instructions, and only while that thread has the interpreter's lock. These
functions arrange what has to work without that. Source: signal(7), sysv_signal(3), sigwaitinfo(2), timer_create(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Collection
from typing import NoReturn

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import host_error

#: Functions of PyDLL keep the interpreter's lock: no other thread runs between two of these calls. None of them waits.
_libc = ctypes.PyDLL(None, use_errno=True)
_SIGEV_SIGNAL = 0
#: The code of a signal that a timer has sent.
_SI_TIMER = -2
_SIGEVENT_BYTES = 64
#: More than any architecture's struct sigaction.
_SIGACTION_BYTES = 256
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
#: Times of one timer that are kept as the kernel gets them.
_MAX_SETTINGS = 8


class _Event(ctypes.Structure):
    """struct sigevent."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_uint8 * (_SIGEVENT_BYTES - _POINTER_BYTES - 2 * ctypes.sizeof(ctypes.c_int))),
    )


class _Setting(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


class TakenSignal(Value):
    """A signal that was waiting. `is_timers`: a timer of this process has sent it."""

    number: int
    is_timers: bool


def handle_once(number: int, handler: int = 0) -> int:
    """Let the kernel call the handler of a signal once more, and restore the default action when it does.

    `handler`: the address of the handler; 0: the present one. Returns its address; 0 if there is none, or if the C library cannot do
    this. Only the kernel knows of the change: Python still reports the handler. Any thread may call this.
    """
    found = handler or handler_of(number)
    if found in (signal.SIG_DFL, signal.SIG_IGN) or not hasattr(_libc, "sysv_signal"):  # glibc has it
        return 0
    _install(number, found)
    return found


def restore_default(number: int) -> None:
    """Install the default action, in any thread. Python still reports the handler."""
    if hasattr(_libc, "sysv_signal"):
        _install(number, 0)


def handler_of(number: int) -> int:
    """The address of the handler that the kernel would call now; 0: the default action, 1: the signal is ignored."""
    present = ctypes.create_string_buffer(_SIGACTION_BYTES)
    _libc.sigaction(ctypes.c_int(number), None, present)
    return int.from_bytes(
        present.raw[:_POINTER_BYTES], sys.byteorder
    )  # the handler is the first field of struct sigaction


def take_waiting(numbers: Collection[int]) -> TakenSignal | None:
    """Take one of these signals if it waits because the thread that should handle it does not return from the kernel.

    Any thread may call this. Does not wait: then Python may return a signal that never came.
    """
    found = signal.sigtimedwait(numbers, 0)
    return TakenSignal(found.si_signo, found.si_code == _SI_TIMER) if found is not None else None


class SignalTimer:
    """A timer of the kernel that sends this process the signal `number`. The constructor raises HostError."""

    def __init__(self, number: int) -> None:
        if not hasattr(_libc, "timer_create"):
            raise host_error("timer_create", "", errno.ENOSYS)
        event = _Event(None, number, _SIGEV_SIGNAL)
        self._timer = ctypes.c_void_p()
        if _libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)) != 0:
            raise host_error("timer_create", "", ctypes.get_errno())
        self._is_running = False
        self._settings: dict[float, object] = {}
        self._before = _Setting()

    def start(self, seconds: float) -> bool:
        """Send the signal in `seconds`, and not at the time set before. Returns whether it was sent since the last start."""
        setting = self._settings.get(seconds)
        if setting is None:
            if len(self._settings) >= _MAX_SETTINGS:
                self._settings.clear()
            whole = int(seconds)
            setting = self._settings[seconds] = ctypes.byref(_Setting(0, 0, whole, int((seconds - whole) * 1e9)))
        before = self._before
        _libc.timer_settime(self._timer, 0, setting, ctypes.byref(before))
        has_expired = self._is_running and not (before.value_s or before.value_ns)
        self._is_running = True
        return has_expired

    def close(self) -> None:
        """End the timer: it sends nothing any more."""
        _libc.timer_delete(self._timer)


def _install(number: int, handler: int) -> None:
    """Install a handler as System V did: the kernel restores the default action when it calls it."""
    _libc.sysv_signal.restype = ctypes.c_void_p
    _libc.sysv_signal(ctypes.c_int(number), ctypes.c_void_p(handler))


def end_process(code: int) -> NoReturn:
    """End the process at once, whatever its threads do. Nothing is cleaned up, and no buffer is written."""
    os._exit(code)
