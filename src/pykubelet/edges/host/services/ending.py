"""Ends the process after SIGTERM or SIGINT, whatever its threads do.

The first signal begins an orderly end. The process is gone `END_S` later, and at once at a second signal:

- The event loop handles the first signal as usual. If it does not run, the monitor thread (`monitor.py`) notices within its period
  that the kernel has delivered the signal, or takes it if the main thread does not return from the kernel.
- The kernel calls Python's handler once. After that, the default action is in place, which ends the process without Python.
- A timer of the kernel sends SIGTERM. The monitor thread keeps postponing it, so it is sent only if no Python code runs, as when C
  code keeps the interpreter's lock. Alone it changes nothing. After a first SIGTERM it is the second one.

As process 1 of a container the kernel ignores default actions; then only the monitor thread ends the process.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from functools import partial

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.signals import (
    SignalTimer,
    handle_once,
    handler_of,
    restore_default,
    take_waiting,
)

log = Log("app")
SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: The most seconds from a signal to the end of the process.
END_S = 5.0
#: The monitor thread ends the process this much earlier than the kernel's timer, so that it can log what is in the way.
LOG_S = 1.0


class Ending:
    """The signals that end the process. All methods may be called in any thread, except `install`.

    `stop`: begins the orderly end; called on the event loop.
    """

    def __init__(self, stop: Callable[[], None], clock: Clock) -> None:
        self._stop = stop
        self._clock = clock
        self._lock = threading.Lock()
        self._handlers: dict[int, int] = {}
        self._timer: SignalTimer | None = None
        self._never = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: When the monitor thread ends the process; None: no signal has come.
        self._ends_at: float | None = None
        #: The timer has sent a signal, and it is not known yet that it was delivered.
        self._is_sent = False

    @property
    def ends_at(self) -> float | None:
        """The monotonic second at which the process must be ended; None while it is not ending."""
        return self._ends_at

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle the signals from now on. Only in the main thread. `loop`: its event loop."""
        self._loop = loop
        for number in SIGNALS:
            loop.add_signal_handler(number, partial(self._handle, number))
            self._handlers[number] = handle_once(number)
        if not all(self._handlers.values()):
            log.warning("the C library cannot restore the default action of a signal; a blocked agent may not end")
            return
        try:
            self._timer = SignalTimer(signal.SIGTERM)
        except HostError as error:
            log.warning("the kernel has no timer for the agent's end", error=error)
        self._postpone()

    def begin(self, late_s: float = 0.0) -> None:
        """Begin the end of the process, for whatever reason. `late_s`: since when a signal may have waited."""
        with self._lock:
            if self._ends_at is not None:
                return
            left = END_S - late_s
            self._ends_at = self._clock.monotonic() + left - LOG_S
            for number in SIGNALS:
                restore_default(number)
            if self._timer is not None:
                self._timer.start(left)

    def watch(self, within_s: float) -> None:
        """Wait for `within_s` seconds, look for a signal, and postpone the timer. The monitor thread calls this all the time."""
        self._never.wait(within_s)
        if self._ends_at is not None:
            return
        taken = take_waiting(SIGNALS)
        self._postpone()
        if taken is not None and taken.is_timers:
            with self._lock:
                self._is_sent = False
        elif taken is not None or self._is_delivered():
            self.begin(within_s)
            if taken is not None and self._loop is not None:  # the event loop does not get it
                self._loop.call_soon_threadsafe(self._stop)

    def _handle(self, number: int) -> None:
        """Take a signal on the event loop, unless it is the timer's: then the handler is installed again."""
        self._postpone()
        if self._handlers[number] and not self._is_called(number):
            return
        self.begin()
        self._stop()

    def _postpone(self) -> None:
        """Start the timer anew. If its signal was delivered, let Python handle the next one again."""
        with self._lock:
            if self._timer is None or self._ends_at is not None:
                return
            self._is_sent = self._timer.start(END_S) or self._is_sent
            if self._is_sent and self._is_called(signal.SIGTERM):
                handle_once(signal.SIGTERM, self._handlers[signal.SIGTERM])
                self._is_sent = False

    def _is_called(self, number: int) -> bool:
        """Whether the kernel has called the handler, and has restored the default action."""
        return bool(self._handlers[number]) and handler_of(number) == signal.SIG_DFL

    def _is_delivered(self) -> bool:
        """Whether the kernel has delivered a signal that the timer has not sent. The event loop may not know it yet."""
        with self._lock:
            return any(self._is_called(n) for n in SIGNALS if not (self._is_sent and n == signal.SIGTERM))
