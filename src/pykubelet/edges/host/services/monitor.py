"""The monitor thread: ends the process when it does not end by itself, and reports an event loop that does not run, with the pod that it
works on. It also gives freed memory back to the system.

A daemon thread that lasts as long as the process. It needs the interpreter's lock for some 100 microseconds in a second. If it
cannot get it, the kernel's timer (`ending.py`) and the stacks that Python writes at a fatal signal remain. Nothing writes stacks
without the lock while the process is to go on: Python can crash in it, for instance after a pause of the process.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeGuard

from msgspec import Struct

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import WORK
from pykubelet.base.kit.lag import watch_lag
from pykubelet.base.kit.log import Log, flush_log
from pykubelet.base.kit.stacks import all_stacks, stack_of_thread
from pykubelet.base.model.ids import PodRef
from pykubelet.edges.host.proc.self_stats import anonymous_memory
from pykubelet.edges.host.services.allocator import give_back_memory
from pykubelet.edges.host.services.decide_blocked import (
    DUMP_S,
    SUSPECT_S,
    BlameNone,
    BlamePod,
    DumpStacks,
    MonitorSample,
    Report,
    ReportBlocked,
    ReportPause,
    ReportRunning,
    Watched,
    look,
)
from pykubelet.edges.host.services.ending import Ending
from pykubelet.edges.host.services.run_record import Blame, RunRecord
from pykubelet.edges.host.services.signals import end_process

if TYPE_CHECKING:
    from pykubelet.base.api.core import Pod

log = Log("monitor")
PERIOD_S = 1.0
#: Memory is given back when this many seconds have passed.
GIVE_BACK_S = 15.0
NOT_ENDED = 1


class Monitor:
    """Watches the event loop that calls `run`. `watchdog_s`: the service manager's watchdog interval; 0: there is none."""

    def __init__(self, ending: Ending, clock: Clock, watchdog_s: float = 0.0, record: RunRecord | None = None) -> None:
        self._ending = ending
        self._record = record
        self._clock = clock
        # the watchdog may abort the process half an interval after the event loop has begun to be blocked
        self._dump_s = min(DUMP_S, watchdog_s / 3) if watchdog_s else DUMP_S
        self._beat_at = self._gave_back_at = clock.monotonic()
        self._main = threading.get_ident()

    async def run(self) -> None:
        """Start the thread, and note regularly that the event loop runs. Never returns."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=(loop,), name="monitor", daemon=True).start()
        await watch_lag(self._note)

    def _note(self) -> None:
        self._beat_at = self._clock.monotonic()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        state = Watched(self._look())
        while True:
            ends_at = self._ending.ends_at
            left = PERIOD_S if ends_at is None else min(PERIOD_S, ends_at - self._clock.monotonic())
            if left <= 0:
                self._end(loop)
            self._ending.watch(left)
            state, reports = look(state, self._look(), self._dump_s)
            for report in reports:
                self._report(report, loop)
            if self._clock.monotonic() - self._gave_back_at >= GIVE_BACK_S:
                give_back_memory(anonymous_memory())
                self._gave_back_at = self._clock.monotonic()

    def _look(self) -> MonitorSample:
        now, beat_at = self._clock.monotonic(), self._beat_at
        pod = pod_in_work(self._main) if now - beat_at >= SUSPECT_S else ""
        if self._record is not None and WORK.is_idle:
            self._record.note_memory(anonymous_memory())
        return MonitorSample(now, beat_at, time.process_time(), pod)

    def _report(self, report: Report, loop: asyncio.AbstractEventLoop) -> None:
        """Log a report. A failure must not end the thread."""
        try:
            self._log(report, loop)
        except Exception as error:
            log.error("the event loop's state cannot be reported", exc_info=error)

    def _log(self, report: Report, loop: asyncio.AbstractEventLoop) -> None:
        match report:
            case ReportBlocked(seconds):
                pod, stack = pod_in_work(self._main) or None, stack_of_thread(self._main)
                log.error("the event loop is blocked", seconds=round(seconds, 1), key=pod, stack=stack)
            case DumpStacks(seconds):
                log.error("the event loop is still blocked", seconds=round(seconds, 1), stack=all_stacks(loop))
            case ReportRunning(seconds):
                log.warning("the event loop runs again", seconds=round(seconds, 1))
            case ReportPause(seconds, cpu_s):
                log.warning("the agent did not run", seconds=round(seconds, 1), cpu_seconds=round(cpu_s, 1))
            case BlamePod(pod, seconds) if self._record is not None:
                self._record.blame(Blame(pod, f"its event loop was blocked for {seconds:.0f} s"))
            case BlameNone() if self._record is not None:
                self._record.blame(None)
            case _:
                return

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            log.error(
                "the agent does not end by itself, so it is ended; containers keep running", stack=all_stacks(loop)
            )
            flush_log()
        finally:
            end_process(NOT_ENDED)


#: The calls that are searched, from the innermost on.
MAX_CALLS = 40


def pod_in_work(thread: int) -> str:
    """The key of the pod, or of the source of pods, that a thread works on; empty if there is none or it is not clear."""
    work = WORK.current()
    if work is not None:
        return work.key
    frame = sys._current_frames().get(thread)
    for _ in range(MAX_CALLS):
        if frame is None:
            break
        found = {uid for value in list(frame.f_locals.values()) if (uid := _uid_of(value))}
        if len(found) == 1:
            return found.pop()
        frame = frame.f_back
    return ""


def _uid_of(value: object) -> str:
    """The UID of a pod, or of a value that belongs to one pod; empty for other values."""
    if isinstance(value, PodRef):
        return value.uid
    if not isinstance(value, Struct):
        return ""
    if _is_pod(value):
        return value.metadata.uid
    inner = getattr(value, "ref", None) or getattr(value, "pod", None)
    return _uid_of(inner) if isinstance(inner, PodRef) or _is_pod(inner) else ""


def _is_pod(value: object) -> TypeGuard[Pod]:
    """Whether this is a pod. A program that has none shall not load the API's types for it, which are 0.6 MiB."""
    core = sys.modules.get("pykubelet.base.api.core")
    return core is not None and isinstance(value, core.Pod)
