"""Hints of ids that no read has shown yet: usually of what the agent is just creating, rarely of what others create.

Owns: these hints, until a read shows the id (a short-lived container exits before its first read) or a relist that began
after the hint does not contain it. Requests a relist when an id has stayed unknown for a while in which no other id became
known: while many pods are being created, one relist would find few of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri.events import RuntimeHint


class _Noted(Value):
    """`since`: the monotonic second of the first hint of the id."""

    hint: RuntimeHint
    since: float


class UnknownIds:
    """Sets `relist_due` when an id stays unknown for `patience_s`, and again until a relist succeeds."""

    def __init__(self, clock: Clock, patience_s: float, relist_due: asyncio.Event) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._relist_due = relist_due
        self._noted: dict[str, _Noted] = {}
        self._taken_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def note(self, hint: RuntimeHint) -> None:
        """Keep the hint in place of an earlier one of the same id."""
        known = self._noted.get(hint.id)
        self._noted[hint.id] = _Noted(hint, known.since if known is not None else self._clock.monotonic())
        if self._timer is None:
            self._check_in(self._patience_s)

    def __contains__(self, runtime_id: str) -> bool:
        return runtime_id in self._noted

    def take(self, runtime_id: str) -> RuntimeHint | None:
        """Remove an id that a read has shown, and return its hint."""
        noted = self._noted.pop(runtime_id, None)
        if noted is None:
            return None
        self._taken_at = self._clock.monotonic()
        return noted.hint

    def keep_only(self, listed: Collection[str], listed_at: float) -> None:
        """Drop the ids noted before `listed_at` that the relist which began then did not contain."""
        self._noted = {key: noted for key, noted in self._noted.items() if noted.since > listed_at or key in listed}

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
