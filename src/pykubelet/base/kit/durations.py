"""Durations in Go's notation (`1h30m0s`, `500ms`), as Kubernetes reads and prints them. Pure.

The internal unit is the integer nanosecond, as in Go; `format_seconds` prints the float seconds that the agent computes with.
Source: the documentation of Go's package `time` (`ParseDuration`, `Duration.String`).
"""

from __future__ import annotations

import re

from pykubelet.base.kit.values import Value

NANOSECOND = 1
MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
MAX = 2**63 - 1

_UNITS = {
    "ns": NANOSECOND,
    "us": MICROSECOND,
    "µs": MICROSECOND,  # U+00B5, the micro sign
    "μs": MICROSECOND,  # U+03BC, the Greek letter
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_PART = re.compile(r"([0-9]*)(\.[0-9]*)?([^0-9.]*)")
_FORM = "must be like 30s, 1h30m or 500ms"
_MAX_DIGITS = len(str(MAX))
#: Further decimals are far below a nanosecond, even of the largest unit.
_MAX_DECIMALS = 40


class Duration(Value, order=True):
    """A span of time, exact to the nanosecond; `str()` gives the Go form (`1m0s`)."""

    ns: int = 0

    @property
    def s(self) -> float:
        """The same in seconds."""
        return self.ns / SECOND

    def __bool__(self) -> bool:
        return self.ns != 0

    def __str__(self) -> str:
        return format_duration(self.ns)


def parse_duration(text: str) -> int:
    """Parse a Go duration string into nanoseconds. Raises ValueError with the problem."""
    bad = ValueError(f'invalid duration "{text}": {_FORM}')
    negative = text.startswith("-")
    start = 1 if text.startswith(("+", "-")) else 0
    if text[start:] == "0":
        return 0
    if start == len(text):
        raise bad
    total, at = 0, start
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part.end() == at:
            raise bad
        whole, fraction, unit = part.group(1), (part.group(2) or "")[1:], part.group(3)
        if not (whole or fraction):
            raise bad
        whole = whole.lstrip("0")
        if len(whole) > _MAX_DIGITS:
            raise bad
        if not unit:
            raise ValueError(f'missing unit in duration "{text}": {_FORM}')
        scale = _UNITS.get(unit)
        if scale is None:
            raise ValueError(f'unknown unit "{unit}" in duration "{text}": {_FORM}')
        total += int(whole or "0") * scale
        if fraction := fraction[:_MAX_DECIMALS]:
            total += int(fraction) * scale // 10 ** len(fraction)
        if total > MAX + negative:
            raise bad
        at = part.end()
    return -total if negative else total


def duration(text: str) -> Duration:
    """As `parse_duration`, but returns a `Duration`."""
    return Duration(parse_duration(text))


def format_duration(ns: int) -> str:
    """The string Go prints for a duration of `ns` nanoseconds: `0s`, `1.5ms`, `1m0s`, `1h0m0s`."""
    if ns == 0:
        return "0s"
    sign, left = ("-", -ns) if ns < 0 else ("", ns)
    for unit, scale in (("ns", NANOSECOND), ("µs", MICROSECOND), ("ms", MILLISECOND)):
        if left < 1000 * scale:
            return f"{sign}{_decimal(left, scale)}{unit}"
    minutes, rest = divmod(left, MINUTE)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, SECOND)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text


def format_seconds(seconds: float) -> str:
    """As `format_duration`, for float seconds, to the nearest nanosecond: `300` -> `5m0s`, `0.25` -> `250ms`."""
    return format_duration(round(seconds * SECOND))


def _decimal(value: int, scale: int) -> str:
    """`value / scale` in decimals without trailing zeros; exact."""
    whole, rest = divmod(value, scale)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).zfill(len(str(scale)) - 1).rstrip('0')}"
