"""Limits of CPU time, time and memory for a function of foreign code in this thread."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pykubelet.edges.host.services.limited_call import CallLimits, LimitedCalls, LimitError


@pytest.fixture
def calls() -> Iterator[LimitedCalls]:
    made = LimitedCalls(CallLimits())
    yield made
    made.close()


def forever() -> None:
    while True:
        pass


def stubborn() -> None:
    """Catches the first interrupts."""
    for _ in range(3):
        try:
            forever()
        except BaseException:  # noqa: BLE001 - as a careless extension does
            continue
    forever()


def test_a_quick_function_gives_its_result(calls: LimitedCalls) -> None:
    assert calls.call(lambda a, b: a + b, 1, 2) == 3
    assert 0 < calls.cpu_s < 0.005


@pytest.mark.parametrize("function", [forever, stubborn, lambda: 7**3_000_000, lambda: sum(range(10**6))])
def test_cpu_time_is_limited(calls: LimitedCalls, function: Callable[[], Any]) -> None:
    with pytest.raises(LimitError, match=r"it used [0-9.]+ ms of CPU time, more than 5 ms"):
        calls.call(function)
    assert calls.cpu_s > 0.005


def test_time_is_limited_while_it_sleeps(calls: LimitedCalls) -> None:
    with pytest.raises(LimitError, match="more than"):
        calls.call(time.sleep, 30)


@pytest.mark.parametrize("function", [lambda: b"x" * (1 << 30), lambda: [0] * (1 << 27)])
def test_memory_is_limited(calls: LimitedCalls, function: Callable[[], Any]) -> None:
    with pytest.raises(MemoryError):
        calls.call(function)
    assert len(b"x" * (128 << 20)) == 128 << 20  # the limit is that of the call alone


def test_nothing_is_left_after_a_call(calls: LimitedCalls) -> None:
    limit = resource.getrlimit(resource.RLIMIT_DATA)
    for function in (forever, lambda: None):
        try:
            calls.call(function)
        except LimitError:
            continue
    assert resource.getrlimit(resource.RLIMIT_DATA) == limit
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    calls.close()
    calls.close()
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


@pytest.mark.parametrize("end", [lambda: None, forever])
def test_garbage_is_collected_at_no_cost_of_a_call(calls: LimitedCalls, end: Callable[[], Any]) -> None:
    collected = list[str]()

    def note(phase: str, _: object) -> None:
        collected.append(phase)

    def allocate() -> None:
        kept = [[number] for number in range(10 * gc.get_threshold()[0])]
        collected.append("allocated")
        del kept
        end()

    gc.callbacks.append(note)
    try:
        with suppress(LimitError):
            calls.call(allocate)
    finally:
        gc.callbacks.remove(note)
    assert collected[: collected.index("allocated")] == []
    assert gc.isenabled()


def test_several_calls_in_a_row_have_limits_of_their_own(calls: LimitedCalls) -> None:
    limit, kept = resource.getrlimit(resource.RLIMIT_DATA), list[bytes]()
    calls.close()
    calls = LimitedCalls(CallLimits(cpu_s=0.5, wall_s=60.0))
    with calls:
        for _ in range(2):
            with pytest.raises(LimitError, match="CPU time"):
                calls.call(forever)
            calls.call(lambda: kept.append(b"x" * (40 << 20)))
            assert resource.getrlimit(resource.RLIMIT_DATA) == limit, "what follows is the agent's own work"
            with pytest.raises(MemoryError):
                calls.call(lambda: b"x" * (1 << 30))  # more than the allocator may have free already
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
    assert len(kept) == 2 and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    calls.close()


def test_an_exception_of_the_function_is_passed_on(calls: LimitedCalls) -> None:
    with pytest.raises(SystemExit):
        calls.call(sys.exit, 3)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_kernel_aborts_a_process_that_cannot_be_interrupted(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from pykubelet.edges.host.services import limited_call
        limited_call.STUCK_S = 0.3

        def stuck():
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass

        functions = {"stuck": stuck, "native": lambda: sum(range(10**12))}
        calls = limited_call.LimitedCalls(limited_call.CallLimits())
        while True:
            try:
                calls.call(functions[sys.argv[1]])
            except limited_call.LimitError:
                continue  # an interrupt between two iterations, where nothing catches it
        """
    )
    for name in ("stuck", "native"):
        done = subprocess.run([sys.executable, "-c", script, name], cwd=tmp_path, timeout=60, check=False)
        assert done.returncode == -signal.SIGABRT


def test_several_in_a_process_do_not_disturb_each_other(calls: LimitedCalls) -> None:
    other = LimitedCalls(CallLimits())
    other.close()
    with pytest.raises(LimitError, match="CPU time"):
        calls.call(forever)


def test_the_descriptor_is_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    LimitedCalls(CallLimits()).close()
    assert len(os.listdir("/proc/self/fd")) == before
