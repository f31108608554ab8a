"""Measures how late the event loop runs, which shows whether anything blocks it."""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.metrics import Histogram

PERIOD_S = 1.0
LAG = Histogram(
    "pykubelet_event_loop_lag_seconds",
    "Delay of the event loop: how much later than scheduled a timer ran, measured once a second.",
    (),
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


async def watch_lag(period_s: float = PERIOD_S) -> None:
    """Observe the lag of the event loop once every `period_s` seconds. Never returns."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period_s
        await asyncio.sleep(period_s)
        LAG.observe(max(0.0, loop.time() - due))
