"""Measures how late the event loop runs, which shows whether anything blocks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pykubelet.base.kit.metrics import Gauge, Histogram

PERIOD_S = 1.0
LAG = Histogram(
    "pykubelet_event_loop_lag_seconds",
    "Delay of the event loop: how much later than scheduled a timer ran, measured once a second.",
    (),
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
LONGEST = Gauge(
    "pykubelet_event_loop_longest_lag_seconds",
    "The longest delay of the event loop since the start: the largest value of pykubelet_event_loop_lag_seconds.",
)


async def watch_lag(note: Callable[[], None]) -> None:
    """Observe the lag of the event loop every `PERIOD_S` seconds, and call `note`. Never returns."""
    loop = asyncio.get_running_loop()
    while True:
        note()
        due = loop.time() + PERIOD_S
        await asyncio.sleep(PERIOD_S)
        late_s = max(0.0, loop.time() - due)
        LAG.observe(late_s)
        if late_s > LONGEST.value():
            LONGEST.set(late_s)
