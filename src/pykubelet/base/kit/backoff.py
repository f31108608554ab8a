"""Exponential back-off as functions on values: the caller passes the time.

The delay doubles with every failure, up to a cap. It starts afresh if no failure was recorded for twice the cap, or for
`reset_s` where the policy has one: crash loops use 10 minutes, however low the cap is (KEP-4603).
Callers that count the failures since the last success use `delay_s`, with `Failures` to keep the count; callers that keep the
last delay use `next_s`.
`Retries` keeps the failures of many keys.
Source: the back-off of client-go (`flowcontrol.Backoff`); the Kubernetes documentation of crash loops and image pulls.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from pykubelet.base.kit.values import Value

#: Limits the exponent so that the power cannot overflow a float. Every sensible delay reaches its cap in fewer steps.
_MAX_STEPS = 64
#: The share of a delay by which it is spread to both sides, so that what failed together is not all retried together.
SPREAD = 0.25


class Backoff(Value):
    """The current delay, and the monotonic second at which it was last raised."""

    delay_s: float
    updated_at: float


class BackoffPolicy(Value):
    """Delays that start at `initial_s` and grow by `factor` up to `cap_s`.

    `reset_s`: seconds without a new failure after which the delay starts at `initial_s` again; None: `2 * cap_s`.
    """

    initial_s: float
    cap_s: float
    reset_s: float | None = None
    factor: float = 2.0

    def delay_s(self, failures: int) -> float:
        """The delay after `failures` failures in a row, counted from 1. Any number is allowed."""
        return min(self.initial_s * self.factor ** max(0, min(failures - 1, _MAX_STEPS)), self.cap_s)

    def next_s(self, delay_s: float) -> float:
        """The delay that follows `delay_s`; the first one if `delay_s` is 0."""
        return min(max(self.initial_s, delay_s * self.factor), self.cap_s)

    def raised(self, entry: Backoff | None, event_at: float, now: float) -> Backoff:
        """The new entry for a failure that happened at `event_at` and is recorded at `now`."""
        if entry is None or self.is_expired(entry, event_at):
            return Backoff(min(self.initial_s, self.cap_s), now)
        return Backoff(min(entry.delay_s * self.factor, self.cap_s), now)

    def is_expired(self, entry: Backoff, event_at: float) -> bool:
        """Whether the back-off starts afresh: `event_at` is more than `reset_s` (or twice the cap) after the last raise."""
        return event_at - entry.updated_at > (2 * self.cap_s if self.reset_s is None else self.reset_s)

    def free_at(self, entry: Backoff | None, event_at: float) -> float:
        """The monotonic second at which the next try is allowed after a failure at `event_at`."""
        if entry is None or self.is_expired(entry, event_at):
            return event_at
        return event_at + entry.delay_s


class Failures(Value):
    """Failures in a row: how many, and until when the next try waits, in monotonic seconds."""

    count: int = 0
    until: float = 0.0

    def another(self, policy: BackoffPolicy, now: float, fraction: float, at_least_s: float = 0.0) -> Failures:
        """These and another failure. `fraction`: a random number in [0, 1), which spreads the delay.

        `at_least_s`: the delay that the other side asks for.
        """
        delay = policy.delay_s(self.count + 1) * (1 - SPREAD + 2 * SPREAD * fraction)
        return Failures(self.count + 1, now + max(delay, at_least_s))


K = TypeVar("K", bound=Hashable)


class Retries(Generic[K]):
    """The failures of each key in a row, and until when each backs off. The delay doubles from `first_s` to `most_s`. Times are monotonic
    seconds.
    """

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

    def free_at(self, key: K) -> float:
        """When the key may be tried again, on the clock of its failures; 0 if it has not failed."""
        failures = self._failures.get(key)
        return failures.until if failures is not None else 0.0

    def keep_only(self, keys: Collection[K]) -> None:
        """Forget the failures of all other keys."""
        for key in [key for key in self._failures if key not in keys]:
            del self._failures[key]
