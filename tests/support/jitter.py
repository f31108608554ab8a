"""Threads and timers that are late, as on a busy machine: tests that depend on their order fail at once, not once in a hundred runs.

`PYKUBELET_JITTER=SEED pytest ...` hands the end of each work in a thread, and each timer of a loop in real time, to the loop up to `MOST_S`
later. The order of what threads hand over stays. Loops in virtual time let iterations pass instead, up to `MOST`. The numbers follow from
the seed and the name of the test.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

from support.real_time import is_virtual

VARIABLE = "PYKUBELET_JITTER"
MOST = 12
MOST_S = 0.04

_numbers = random.Random()
_call_soon_threadsafe = asyncio.BaseEventLoop.call_soon_threadsafe
_call_at = asyncio.BaseEventLoop.call_at


def _late_call_soon_threadsafe(
    loop: asyncio.BaseEventLoop, callback: Callable[..., object], *args: Any, **words: Any
) -> asyncio.Handle:
    if is_virtual(loop):
        return _call_soon_threadsafe(loop, _after_iterations, loop, _some() * MOST, callback, args, words)
    return _call_soon_threadsafe(loop, _after_a_while, loop, _some() * MOST_S, callback, args, words)


def _after_iterations(loop: asyncio.BaseEventLoop, left: float, callback: Any, args: Any, words: Any) -> None:
    if left >= 1:
        loop.call_soon(_after_iterations, loop, left - 1, callback, args, words)
    else:
        loop.call_soon(callback, *args, **words)


def _after_a_while(loop: Any, delay_s: float, callback: Any, args: Any, words: Any) -> None:
    loop.late_until = max(loop.time() + delay_s, getattr(loop, "late_until", 0.0))
    _call_at(loop, loop.late_until, callback, *args, **words)


def _late_call_at(
    loop: asyncio.BaseEventLoop, when: float, callback: Callable[..., object], *args: Any, **words: Any
) -> asyncio.TimerHandle:
    late_s = 0.0 if is_virtual(loop) else _some() * MOST_S
    return _call_at(loop, when + late_s, callback, *args, **words)


def _some() -> float:
    return _numbers.random() if _numbers.random() < 0.5 else 0.0


def seed(test: str) -> None:
    """Begin the numbers of a test."""
    _numbers.seed(os.environ.get(VARIABLE, "") + test)


def install() -> None:
    """Make the threads and timers of all loops late, if the variable is set."""
    if VARIABLE in os.environ:
        asyncio.BaseEventLoop.call_soon_threadsafe = _late_call_soon_threadsafe  # type: ignore[assignment, method-assign]
        asyncio.BaseEventLoop.call_at = _late_call_at  # type: ignore[assignment, method-assign]
