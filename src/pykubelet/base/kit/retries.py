"""Retry times by key: when something that failed may be tried again.

Owns: how often each key has failed in a row, and until when it backs off. The delay doubles from `first_s` to `most_s`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from pykubelet.base.kit.backoff import BackoffPolicy, Failures

K = TypeVar("K", bound=Hashable)


class Retries(Generic[K]):
    """The failures of each key. Times are monotonic seconds."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._backoff = BackoffPolicy(first_s, most_s)
        self._failures: dict[K, Failures] = {}

    def failed(self, key: K, now: float, at_least_s: float = 0.0) -> int:
        """Count a failure. Returns how many there were in a row. `at_least_s`: the delay that the other side asks for."""
        before = self._failures.get(key, Failures())
        failures = self._failures[key] = before.another(self._backoff, now, random.random(), at_least_s)
        return failures.count

    def succeeded(self, key: K) -> bool:
        """Forget the failures. Returns whether there were any."""
        return self._failures.pop(key, None) is not None

    def retry_now(self, key: K) -> None:
        """Allow a retry at once and start the delays afresh, because the cause is gone. The key still counts as failed."""
        if key in self._failures:
            self._failures[key] = Failures()

    def free_at(self, key: K) -> float:
        """When the key may be tried again, on the clock of its failures; 0 if it has not failed."""
        failures = self._failures.get(key)
        return failures.until if failures is not None else 0.0

    def keep_only(self, keys: Collection[K]) -> None:
        """Forget the failures of all other keys."""
        for key in [key for key in self._failures if key not in keys]:
            del self._failures[key]
