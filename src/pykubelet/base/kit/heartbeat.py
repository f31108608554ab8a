"""The resync of a loop that waits for events: it scans everything once per period, whether an event came or not.

Owns: the period. Readers learn from the loop's `Heartbeat` cell whether it still runs; the loop's package is its only writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pykubelet.base.kit.cells import CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value

PERIOD_S = 60.0


class Heartbeat(Value):
    """`at`: the monotonic second of the last scan of everything, None before the first."""

    at: float | None = None


async def resync_forever(scan: Callable[[], None], heartbeat: CellWriter[Heartbeat], clock: Clock) -> None:
    """Call `scan`, the loop's scan of everything, once per period, and publish a heartbeat after each. Never returns."""
    while True:
        scan()
        heartbeat.publish(Heartbeat(clock.monotonic()))
        await asyncio.sleep(PERIOD_S)
