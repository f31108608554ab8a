"""Converts a date of the wall clock to the monotonic clock.

Dates jump when an administrator or NTP sets the clock. A date is therefore corrected where it contradicts an observation:
an event that had not happened at the last look happened later than that look.
"""

from __future__ import annotations

from math import inf


def wall_to_monotonic(date: float, now: float, wall: float, not_before: float = -inf) -> float:
    """Convert `date` (wall seconds) to monotonic seconds, given the present of both clocks. Never in the future.

    `not_before`: the monotonic second at which the event was known not to have happened yet. For a date that contradicts
    this the result is `now`.
    """
    moment = now - max(0.0, wall - date)
    return moment if moment >= not_before else now
