"""That a loop which waits for events still comes round: at least so often it looks at everything, woken or not.

Owns: that rhythm. Whoever wants to know how the loop does reads the cell `Heartbeat`, of which the loop's room is the one writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pykubelet.base.kit.cells import CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value

PERIOD_S = 60.0


class Heartbeat(Value):
    """`at`: the monotonic second of the last look at everything, None before the first."""

    at: float | None = None


async def resync_forever(look: Callable[[], None], turn: CellWriter[Heartbeat], clock: Clock) -> None:
    """Never returns. `look`: the loop's own look at everything."""
    while True:
        look()
        turn.publish(Heartbeat(clock.monotonic()))
        await asyncio.sleep(PERIOD_S)
