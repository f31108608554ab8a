"""For work that should not be cut off: a cancellation waits for its end, up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Await `work`. When cancelled, first wait for its end, for `limit_s` seconds at most or until cancelled again."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait((task,), timeout=limit_s)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # a caller that cancels does not need the outcome
        raise
