"""From dates to moments: when something happened on the monotonic clock, that is known by a date of the wall clock.

Dates jump when an administrator or NTP sets the clock. What was looked at, and had not happened then, happened later.
"""

from __future__ import annotations

from math import inf


def moment_of(date: float, now: float, wall: float, not_before: float = -inf) -> float:
    """Monotonic seconds of `date` (wall seconds), given both clocks' present. Never in the future.

    `not_before`: the monotonic second at which it was seen not to have happened. A date that contradicts this is not
    believed: it has just happened then.
    """
    moment = now - max(0.0, wall - date)
    return moment if moment >= not_before else now
