"""Exponential back-off, as values: pure, the caller brings the time.

Source: the back-off of client-go (`flowcontrol.Backoff`) that the Kubernetes documentation describes for crash loops
and image pulls: the delay doubles with every failure up to a cap, and an entry untouched for long enough is new again
(twice the cap, or a time of its own: that of crash loops stays 10 minutes however low the cap is, KEP-4603).
Callers that count failures in a row, until a success, use `delay_s`; those that keep the last pause use `next_s`.
"""

from __future__ import annotations

from pykubelet.base.kit.values import Value

#: As many steps lead from any sensible first delay to any sensible cap; more would overflow a float one day.
_MAX_STEPS = 64


class Backoff(Value):
    """The delay that holds now, and when it was last raised (monotonic seconds)."""

    delay_s: float
    updated_at: float


class BackoffPolicy(Value):
    """`initial_s` doubling (or times `factor`) to `cap_s`; forgotten after `reset_s` (None: `2 * cap_s`) without a new failure."""

    initial_s: float
    cap_s: float
    reset_s: float | None = None
    factor: float = 2.0

    def delay_s(self, failures: int) -> float:
        """The pause after so many failures in a row, counting from 1; any number of them is allowed."""
        return min(self.initial_s * self.factor ** max(0, min(failures - 1, _MAX_STEPS)), self.cap_s)

    def next_s(self, delay_s: float) -> float:
        """The pause that follows one of `delay_s` (0: the first)."""
        return min(max(self.initial_s, delay_s * self.factor), self.cap_s)

    def raised(self, entry: Backoff | None, event_at: float, now: float) -> Backoff:
        """The entry after the failure that happened at `event_at` was answered at `now`."""
        if entry is None or self.is_expired(entry, event_at):
            return Backoff(min(self.initial_s, self.cap_s), now)
        return Backoff(min(entry.delay_s * self.factor, self.cap_s), now)

    def is_expired(self, entry: Backoff, event_at: float) -> bool:
        return event_at - entry.updated_at > (2 * self.cap_s if self.reset_s is None else self.reset_s)

    def free_at(self, entry: Backoff | None, event_at: float) -> float:
        """When one may go on after a failure at `event_at`."""
        if entry is None or self.is_expired(entry, event_at):
            return event_at
        return event_at + entry.delay_s
