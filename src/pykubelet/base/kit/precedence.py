"""Who goes first when a change wakes many: those that act, before those that tell.

Owns: the waiting of a room that only tells what the others do. It loses a moment, and sees in one look what it would else
have seen step by step.
"""

from __future__ import annotations

import asyncio

#: From a change of the roster to the call of the runtime that follows from it, through the rooms between.
TURNS = 6


async def let_others_act() -> None:
    """Wait until those whom the same change has woken, and whom they wake, have taken their turns of the event loop."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
