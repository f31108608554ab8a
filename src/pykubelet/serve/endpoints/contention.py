"""Finds the code that holds up the event loop, on which all work of the agent waits: the profile `block`.

While the profile is on (`enableContentionProfiling`), the loop notes every 5 ms that it runs. If it does not, a thread adds the
time to the stack that the loop's thread is in. A stack that waits in the selector stands for other threads that hold the
interpreter.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter

from pykubelet.serve.endpoints.profile import folded

TICK_S = 0.005
#: A loop that is this late is held up.
LATE_S = 0.01
#: The most different stacks; others are counted together.
MAX_STACKS = 1000
OTHER = "other"


class Contention:
    """The time that stacks have held up the event loop, in seconds since the start."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._at = 0.0

    def text(self) -> str:
        """The folded stacks with their microseconds, the longest first."""
        return "".join(f"{stack} {us}\n" for stack, us in self._held.most_common())

    async def watch(self) -> None:
        """Measure the loop that runs this. Never returns."""
        ident, ended = threading.get_ident(), threading.Event()
        self._at = time.monotonic()
        threading.Thread(target=self._sample, args=(ident, ended), name="contention", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._at = time.monotonic()
        finally:
            ended.set()

    def _sample(self, ident: int, ended: threading.Event) -> None:
        before = time.monotonic()
        while not ended.wait(TICK_S):
            now = time.monotonic()
            if now - self._at > LATE_S:
                self.add(";".join(folded(sys._current_frames().get(ident))), now - before)
            before = now

    def add(self, stack: str, seconds: float) -> None:
        """Add the time that a stack has held up the loop."""
        known = stack in self._held or len(self._held) < MAX_STACKS
        self._held[stack if known else OTHER] += int(seconds * 1e6)
