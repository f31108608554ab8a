"""Keeps hints of IDs that no read has shown yet: usually of objects that the agent is creating, rarely of others.

Owns: these hints, until a read shows the ID (a short-lived container exits before its first read), or a relist that began
after the hint does not contain it. Requests a relist if an ID stays unknown for a while in which no other ID became known:
while many pods are being created, a relist would find few of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri.events import RuntimeHint


class _Noted(Value):
    """The last hint of an ID. `since`: the time of the first hint, in monotonic seconds."""

    hint: RuntimeHint
    since: float


class UnknownIds:
    """Keeps unknown IDs. Sets `relist_due` when one stays unknown for `unknown_s`, and again until a relist succeeds."""

    def __init__(self, clock: Clock, unknown_s: float, relist_due: asyncio.Event) -> None:
        self._clock = clock
        self._unknown_s = unknown_s
        self._relist_due = relist_due
        self._noted: dict[str, _Noted] = {}
        self._taken_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def note(self, hint: RuntimeHint) -> None:
        """Keep the hint instead of an earlier one of the same ID."""
        known = self._noted.get(hint.id)
        self._noted[hint.id] = _Noted(hint, known.since if known is not None else self._clock.monotonic())
        if self._timer is None:
            self._check_in(self._unknown_s)

    def __contains__(self, runtime_id: str) -> bool:
        return runtime_id in self._noted

    def take(self, runtime_id: str) -> RuntimeHint | None:
        """Remove an ID that a read has shown, and return its hint."""
        noted = self._noted.pop(runtime_id, None)
        if noted is None:
            return None
        self._taken_at = self._clock.monotonic()
        return noted.hint

    def keep_only(self, listed: Collection[str], listed_at: float) -> None:
        """Drop IDs that were noted before `listed_at`, the begin of a relist, and that the relist did not contain."""
        self._noted = {key: noted for key, noted in self._noted.items() if noted.since > listed_at or key in listed}

    def _check_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._noted:
            return
        since = max(self._taken_at, min(noted.since for noted in self._noted.values()))
        left = since + self._unknown_s - self._clock.monotonic()
        if left <= 0:
            self._relist_due.set()
        self._check_in(left if left > 0 else self._unknown_s)
