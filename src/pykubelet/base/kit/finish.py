"""Work that is better finished than cut off: a cancellation waits for its end, within a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Await `work`. When cancelled, let it come to its end first, for `limit_s` seconds or until cancelled again."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait((task,), timeout=limit_s)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # whoever cancels does not ask for its outcome
        raise
