"""Finds sleeps of real time in unit tests: a test that sleeps is slow, and its result may depend on the machine's speed.

A sleep counts if a test or a double makes it, for longer than nothing, on an event loop in real time or on the thread of the
test. Tests that need a real container, control plane or machine are left alone (`LARGER`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, SupportsIndex

from support.virtual_time import VirtualLoop

ROOT = Path(__file__).parents[2]
TESTS = f"{ROOT}/tests/"
#: Its function stands between `time.sleep` and the caller.
DETECTOR = f"{TESTS}support/blocking_calls.py"
DOUBLES = f"{ROOT}/src/pykubelet/testing/"
#: The markers of tests that wait for a real part.
LARGER = frozenset({"integration", "cluster", "ten", "vm", "crash"})
#: Files that may sleep in unit tests, with the reason.
ALLOWED = {
    "csi_local/test_crashes.py": "mount(8) may outlive the driver that was killed",
    "desired/sources/test_file.py": "the kernel's dates and notifications of files",
    "edges/cri/test_contract.py": "the same test polls a real containerd",
    "edges/host/test_dead_sockets.py": "the kernel has no event for a thread that waits for a disk",
    "edges/otlp/test_exporter.py": "a grpcio server with threads of its own",
    "edges/probing/test_grpc_health.py": "a grpcio server, and descriptors whose closing has no event",
    "edges/probing/test_http.py": "descriptors whose closing has no event, and an event loop that does not go on for two seconds",
    "hostile/test_container_output.py": "measures the iterations of a real event loop",
    "hostile/test_drivers.py": "measures the iterations of a real event loop",
    "longlife/test_measures.py": "a thread that misses its deadline",
    "net/http/test_dial.py": "descriptors whose closing has no event, also on uvloop",
    "report/status/test_memory.py": "a disk that is slow, in a thread",
    "serve/test_debug.py": "profiles of an event loop that does not go on",
    "serve/test_health.py": "ports and sockets of other programs are tried again in real time",
    "src/pykubelet/testing/cri/fake_answers.py": "a program that runs for some time, on a grpcio server",
    "support/drivers.py": "the log of a driver that is a process of its own",
    "support/fake_systemd.py": "a bus that is busy for a moment, in a thread",
}


def is_virtual(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether time passes on this loop without being waited for. `looptime` gives its class to all loops, and activates it for some."""
    return isinstance(loop, VirtualLoop) or bool(getattr(loop, "looptime_on", False))


class RealSleeps:
    """The detector. `take`: the sleeps since the last time, each with its place and its seconds."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._sleep = asyncio.sleep
        self._blocking_sleep = time.sleep

    def start(self) -> None:
        """Begin to observe this process."""
        self._blocking_sleep = time.sleep
        asyncio.sleep = asyncio.tasks.sleep = self._checked_sleep
        time.sleep = self._checked_blocking_sleep

    def stop(self) -> None:
        """Observe no longer."""
        asyncio.sleep = asyncio.tasks.sleep = self._sleep
        time.sleep = self._blocking_sleep

    def take(self) -> str:
        """The sleeps since the last time; empty if there were none."""
        found, self._found = self._found, []
        return "\n".join(dict.fromkeys(found))

    @contextmanager
    def observed(self) -> Iterator[list[str]]:
        """Yield the sleeps in the block. They do not count for `take`."""
        before, self._found = self._found, []
        try:
            yield self._found
        finally:
            self._found = before

    def _checked_sleep(self, delay: float, result: Any = None) -> Coroutine[Any, Any, Any]:
        loop = asyncio._get_running_loop()
        if delay > 0 and loop is not None and not is_virtual(loop):
            self._note("asyncio.sleep", delay, sys._getframe(1))
        return self._sleep(delay, result)

    def _checked_blocking_sleep(self, seconds: float | SupportsIndex) -> None:
        if seconds:
            self._note("time.sleep", seconds, sys._getframe(1))
        self._blocking_sleep(seconds)

    def _note(self, call: str, seconds: object, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename == DETECTOR:
            frame = frame.f_back
        file = _test_file(frame.f_code.co_filename) if frame is not None else ""
        if frame is not None and file and file not in ALLOWED:
            self._found.append(f"{file}:{frame.f_lineno} {call}({seconds})")


def _test_file(name: str) -> str:
    """The path below `tests`, or of a double below the repository; empty for other files."""
    if name.startswith(TESTS):
        return name.removeprefix(TESTS)
    return name.removeprefix(f"{ROOT}/") if name.startswith(DOUBLES) else ""


#: The detector of this process.
SLEEPS = RealSleeps()
