"""The memory that the agent's own modules have allocated, without that of the doubles in the same process.

`tracemalloc` knows of each block which line of Python has allocated it, C code on its behalf included; not the memory that
protobuf takes for messages. It makes Python several times slower, so it is for pods only that need more than a limit allows
for agent and doubles together.
"""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pykubelet import testing

#: Files of the doubles, and of what is used by them only. All others are the agent's.
DOUBLES = (testing.__path__[0], "/tests/", "/pykubelet_local_api/", "/aiohttp/", "/multidict/", "/json/", "/copy.py")
#: So much more than at the last look, and the owners of all blocks are looked at again.
STEP = 1 << 20


class OwnMemory:
    """`highest`: the most bytes that the agent had at a time, since the start; `by_line`: of these, by the line that allocated them."""

    def __init__(self) -> None:
        self.highest = 0
        self.by_line: Counter[str] = Counter()
        self._seen = self._own = self._before = 0

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Count blocks that are allocated meanwhile."""
        tracemalloc.start(1)
        try:
            yield
        finally:
            tracemalloc.stop()

    def begin(self) -> None:
        """A callback of the loop begins."""
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]

    def end(self, *, is_double: bool) -> None:
        """It ends. What it has allocated and freed in between counts, unless it was a callback of a double."""
        now, peak = tracemalloc.get_traced_memory()
        if now > self._seen + STEP:
            self._look(now)
        if not is_double:
            standing = min(self._own, self._before)
            self.highest = max(self.highest, standing + peak - max(self._before, now))

    def _look(self, now: int) -> None:
        by_line: Counter[str] = Counter()
        for trace in tracemalloc.take_snapshot().traces:
            at = trace.traceback[0]
            if not any(part in at.filename for part in DOUBLES):
                by_line[f"{at.filename.rpartition('pykubelet/')[2]}:{at.lineno}"] += trace.size
        self._seen, self._own = now, by_line.total()
        if self._own > self.by_line.total():
            self.by_line = by_line
