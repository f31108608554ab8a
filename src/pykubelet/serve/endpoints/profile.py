"""Samples where the agent spends CPU time: one sample per fixed amount of CPU time, of the thread that used most of it.

Owns: the process's profiling timer. A waiting thread uses no CPU and is not sampled. Source: setitimer(2), the Trace Event
Format of Chromium.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, TypeVar

from pykubelet.base.kit.values import Value
from pykubelet.net.http.server import JSON, Response, text

SAMPLE_S = 0.01
DEPTH = 60
MAX_TRACE = 100_000
S = TypeVar("S", bound="Samples")


class Samples(Protocol):
    """Collects samples. `add` may interrupt any code, so it must be short and must not use other state."""

    def add(self, thread: str, frame: FrameType | None) -> None:
        """Add one sample. `frame`: the top frame of `thread`."""
        ...

    def answer(self) -> Response:
        """All samples as a response."""
        ...


@contextmanager
def sampling(samples: S) -> Iterator[S]:
    """Take samples within the block. Only in the main thread, and only one block at a time."""
    spent = _SpentMost()

    def take(_: int, interrupted: FrameType | None) -> None:
        thread, ident = spent.thread()
        is_main = ident == threading.get_ident()
        samples.add(thread, interrupted if is_main else sys._current_frames().get(ident))

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGPROF, _late)  # wakes the loop also if another thread is interrupted
    signal.signal(signal.SIGPROF, take)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
    try:
        yield samples
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        loop.add_signal_handler(signal.SIGPROF, _late)  # the default action would end the process


def _late() -> None:
    """Ignore a signal that was pending when the sampling ended."""


class _SpentMost:
    """Finds the thread that used most CPU since the last sample, because a sample is of one thread."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}
        self.thread()

    def thread(self) -> tuple[str, int]:
        """The name and identity of that thread."""
        now: dict[int, float] = {}
        most, found = -1.0, ("", 0)
        for thread in threading.enumerate():
            if thread.ident is None:
                continue
            try:
                now[thread.ident] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            except OSError:
                continue  # the thread has just ended
            used = now[thread.ident] - self._before.get(thread.ident, 0.0)
            if used > most:
                most, found = used, (thread.name, thread.ident)
        self._before = now
        return found


class CpuSamples:
    """Collects folded stacks with their counts."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, thread: str, frame: FrameType | None) -> None:
        """Count the stack of `thread`."""
        self._counts[";".join((thread, *folded(frame)))] += 1

    def answer(self) -> Response:
        """The folded stacks, one per line with its count, the most frequent first."""
        return text(200, "".join(f"{stack} {number}\n" for stack, number in self._counts.most_common()))


class _Seen(Value):
    at: float
    thread: str
    stack: tuple[str, ...]


class TraceSamples:
    """Collects one event for each sample: its stack, time and thread."""

    def __init__(self) -> None:
        self._seen: list[_Seen] = []

    def add(self, thread: str, frame: FrameType | None) -> None:
        """Keep the stack with its time, up to MAX_TRACE samples."""
        if len(self._seen) < MAX_TRACE:
            self._seen.append(_Seen(time.perf_counter(), thread, tuple(folded(frame))))

    def answer(self) -> Response:
        """The samples in the JSON format of Chrome's trace viewer."""
        events = [
            {
                "name": sample.stack[-1] if sample.stack else "?",
                "ph": "X",
                "ts": sample.at * 1e6,
                "dur": SAMPLE_S * 1e6,
                "pid": 1,
                "tid": sample.thread,
                "args": {"stack": sample.stack},
            }
            for sample in self._seen
        ]
        return Response(200, json.dumps({"traceEvents": events}).encode(), JSON)


def folded(frame: FrameType | None) -> list[str]:
    """The functions of a stack, the outermost first."""
    found: list[str] = []
    while frame is not None and len(found) < DEPTH:
        code = frame.f_code
        found.append(f"{code.co_name} ({code.co_filename.rpartition('/')[2]}:{frame.f_lineno})")
        frame = frame.f_back
    found.reverse()
    return found
