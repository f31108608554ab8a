"""Hints of ids that no look has shown yet: most often of what the agent is just making, seldom of what others made.

Owns: those hints, until a look shows the id (a short-lived container ends before it was ever read) or a full look that
began after the hint does not. Asks for a full look once an id has stayed unknown for a while in which no other became
known (a crowd of pods being made takes longer than one), one look for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri.events import RuntimeHint


class _Noted(Value):
    hint: RuntimeHint
    since: float


class UnknownIds:
    """`relist_due` is set when an id stays unknown for `patience_s`, and again as long as no full look succeeds."""

    def __init__(self, clock: Clock, patience_s: float, relist_due: asyncio.Event) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._relist_due = relist_due
        self._noted: dict[str, _Noted] = {}
        self._taken_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def note(self, hint: RuntimeHint) -> None:
        """The newest hint of an id counts."""
        known = self._noted.get(hint.id)
        self._noted[hint.id] = _Noted(hint, known.since if known is not None else self._clock.monotonic())
        if self._timer is None:
            self._check_in(self._patience_s)

    def __contains__(self, runtime_id: str) -> bool:
        return runtime_id in self._noted

    def take(self, runtime_id: str) -> RuntimeHint | None:
        """The id is known now: what was said of it."""
        noted = self._noted.pop(runtime_id, None)
        if noted is None:
            return None
        self._taken_at = self._clock.monotonic()
        return noted.hint

    def keep_only(self, shown: Collection[str], listed_at: float) -> None:
        """A full look that began then has shown these: what was unknown before and is not among them is nobody's."""
        self._noted = {key: noted for key, noted in self._noted.items() if noted.since > listed_at or key in shown}

    def _check_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._noted:
            return
        since = max(self._taken_at, min(noted.since for noted in self._noted.values()))
        left = since + self._patience_s - self._clock.monotonic()
        if left <= 0:
            self._relist_due.set()
        self._check_in(left if left > 0 else self._patience_s)
