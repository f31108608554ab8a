"""When what failed may be tried again, by key.

Owns: how often each key has failed, and until when it rests: doubling from `first_s` to `most_s`, spread by a quarter to
both sides so that many that failed together do not come back together.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import Value

K = TypeVar("K", bound=Hashable)
SPREAD = 0.25


class _Failures(Value):
    count: int
    until: float


class Retries(Generic[K]):
    """Times are monotonic seconds."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._backoff = BackoffPolicy(first_s, most_s)
        self._failures: dict[K, _Failures] = {}

    def failed(self, key: K, now: float, at_least_s: float = 0.0) -> int:
        """Count a failure; how many there were in a row. `at_least_s`: what the other side asks for."""
        before = self._failures.get(key)
        count = before.count + 1 if before is not None else 1
        pause = self._backoff.delay_s(count) * random.uniform(1 - SPREAD, 1 + SPREAD)
        self._failures[key] = _Failures(count, now + max(pause, at_least_s))
        return count

    def succeeded(self, key: K) -> bool:
        """Forget the failures; whether there were any."""
        return self._failures.pop(key, None) is not None

    def hasten(self, key: K) -> None:
        """What was in the way is gone: free at once, and the pauses begin anew. That it has failed stays known."""
        if key in self._failures:
            self._failures[key] = _Failures(0, 0.0)

    def free_at(self, key: K) -> float:
        failures = self._failures.get(key)
        return failures.until if failures is not None else 0.0

    def keep_only(self, keys: Collection[K]) -> None:
        for key in [key for key in self._failures if key not in keys]:
            del self._failures[key]
