"""What an input costs the agent: the longest pause of its event loop, and the memory that stays.

The pause is the CPU time that one iteration of the loop takes: unlike a time on the clock it does not grow when the
machine is busy with something else. The limit is for a machine on which `calibration_s` is `REFERENCE_S`; slower ones get
as much more. An input over a limit is run again, since both figures have noise upward only.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from support.allocator import allocated, of_process, trim

if TYPE_CHECKING:
    from _typeshed import TraceFunction

PAUSE_S = 0.050
KEPT_BYTES = 1 << 20
#: CPU seconds of `_calibrate` on the machine that the limit is meant for.
REFERENCE_S = 0.020
TRIES = 3

Attack = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one input: the loop's longest iteration in CPU seconds, and the bytes that stayed in use."""

    pause_s: float
    kept_bytes: int


class MeasuringLoop(asyncio.SelectorEventLoop):
    """An event loop that knows the CPU time of its longest iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest_s = max(self.longest_s, time.thread_time() - began)


def measure(attack: Attack) -> Cost:
    """Run `attack` twice on a loop of its own, and measure the second run: the first one fills caches and imports."""
    with asyncio.Runner(loop_factory=MeasuringLoop) as runner:
        runner.run(_as_coroutine(attack))
        loop = runner.get_loop()
        assert isinstance(loop, MeasuringLoop)
        before = bytes_in_use()
        loop.longest_s = 0.0
        runner.run(_as_coroutine(attack))
        pause_s = loop.longest_s
        return Cost(pause_s, bytes_in_use() - before)


async def _as_coroutine(attack: Attack) -> object:
    return await attack()


def bytes_in_use() -> int:
    """Bytes that this process has allocated and not freed: small objects of Python's own allocator, and all of malloc's.

    Far cheaper than tracemalloc, which makes Python several times slower.
    """
    gc.collect()
    return allocated().used


def pause_limit_s() -> float:
    """The longest allowed pause on this machine, now."""
    return PAUSE_S * max(1.0, calibration_s() / REFERENCE_S)


def is_short(pause_s: float) -> bool:
    """Whether a pause is allowed on this machine, now. The machine is measured only where that matters."""
    return pause_s <= PAUSE_S or pause_s <= pause_limit_s()


def is_quick(work: Callable[[], object], limit_s: float) -> bool:
    """Whether `work` takes at most so much CPU time of this thread at best, on the machine that the limit is meant for."""
    spent_s = float("inf")
    for _ in range(TRIES):
        began = time.thread_time()
        work()
        spent_s = min(spent_s, time.thread_time() - began)
        if spent_s <= limit_s or spent_s <= limit_s * pause_limit_s() / PAUSE_S:
            return True
    return False


def calibration_s() -> float:
    """CPU seconds of a fixed piece of work: the best of three."""
    return min(_calibrate() for _ in range(3))


def _calibrate() -> float:
    began = time.thread_time()
    total = 0
    for i in range(400_000):
        total += i & 7
    assert total
    return time.thread_time() - began


def peak_bytes(work: Callable[[], object]) -> int:
    """How much more memory of the machine the process has at most while `work` runs than before: its resident set."""
    gc.collect()
    trim()
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    before = of_process("VmRSS")
    work()
    return of_process("VmHWM") - before


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Without pauses for the cyclic garbage of other tests."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count_instructions(work: Callable[[], object]) -> int:
    """The instructions of Python that `work` executes: unlike times, the same in every run. What C code does counts as one."""
    executed = 0

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction:
        nonlocal executed
        frame.f_trace_opcodes = True
        executed += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return executed


def check_cost(what: str, attack: Attack) -> Cost:
    """The cost of an attack that pauses the loop for a moment and leaves little behind; AssertionError otherwise."""
    pause_s, kept = float("inf"), sys.maxsize
    for _ in range(TRIES):
        cost = measure(attack)
        pause_s, kept = min(pause_s, cost.pause_s), min(kept, cost.kept_bytes)
        if is_short(pause_s) and kept <= KEPT_BYTES:
            break
    assert is_short(pause_s), (
        f"{what}: one iteration of the event loop takes {pause_s * 1000:.0f} ms, more than {pause_limit_s() * 1000:.0f} ms"
    )
    assert kept <= KEPT_BYTES, f"{what}: {kept >> 10} KiB stay in memory, more than {KEPT_BYTES >> 10} KiB"
    return Cost(pause_s, kept)
