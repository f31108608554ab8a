"""Formats and parses the API's dates (RFC 3339): pure functions of the time since the epoch (UTC).

Dates jump when an administrator or NTP sets the clock. So a date that becomes a moment of the monotonic clock is corrected where it
contradicts an observation: an event that had not happened at the last look happened later than that look.

Owns the three spellings that Kubernetes uses: `Time` (whole seconds), `MicroTime` (exactly six digits, which the API server
requires) and the annotations' RFC3339Nano (trailing zeros dropped). Reads no clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import inf

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)


@lru_cache(maxsize=1024)  # a node reports the same few times again and again
def _whole(seconds: int) -> str:
    return (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")


def format_time(wall_s: float) -> str:
    """Format a `Time`, `2026-01-02T03:04:05Z`; the fraction is cut off."""
    return _whole(int(wall_s // 1)) + "Z"


def format_micro_time(wall_s: float) -> str:
    """Format a `MicroTime`, `2026-01-02T03:04:05.000006Z`, always with six digits."""
    micros = round(wall_s * 1_000_000)
    return f"{_whole(micros // 1_000_000)}.{micros % 1_000_000:06d}Z"


def format_nano_time(wall_ns: int) -> str:
    """Format nanoseconds since the epoch as RFC3339Nano, as in annotations: without trailing zeros of the fraction."""
    seconds, nanos = divmod(wall_ns, 1_000_000_000)
    fraction = f".{nanos:09d}".rstrip("0").rstrip(".")
    return f"{_whole(seconds)}{fraction}Z"


def parse_time_ns(text: str) -> int:
    """Parse an RFC 3339 date to nanoseconds since the epoch. Raises ValueError if it is not a date."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    leap = second == 60
    moment = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=UTC)
    seconds = (moment - EPOCH) // timedelta(seconds=1) + leap
    if match[8]:
        offset = int(match[9]) * 3600 + int(match[10]) * 60
        seconds -= offset if match[8] == "+" else -offset
    return seconds * 1_000_000_000 + int((match[7] or "").ljust(9, "0"))


def parse_time(text: str) -> float:
    """Parse an RFC 3339 date to seconds since the epoch. Raises ValueError if it is not a date."""
    return parse_time_ns(text) / 1_000_000_000


def wall_to_monotonic(date: float, now: float, wall: float, not_before: float = -inf) -> float:
    """Convert `date` (wall seconds) to monotonic seconds, given the present of both clocks. Never in the future.

    `not_before`: the monotonic second at which the event was known not to have happened yet. For a date that contradicts
    this the result is `now`.
    """
    moment = now - max(0.0, wall - date)
    return moment if moment >= not_before else now
