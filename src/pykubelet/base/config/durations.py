"""Go duration strings (`1h30m`, `100ms`): parsing, and formatting as Go does. Pure. Unit inside: integer nanoseconds."""

from __future__ import annotations

import re

import msgspec

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


class Duration(msgspec.Struct, frozen=True, order=True):
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
    """Nanoseconds of a Go duration string. Raises ValueError with Go's own wording."""
    bad = ValueError(f'time: invalid duration "{text}"')
    rest = text
    negative = False
    if rest[:1] in ("+", "-"):
        negative = rest[0] == "-"
        rest = rest[1:]
    if rest == "0":
        return 0
    if not rest:
        raise bad
    total = 0
    at = 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None or part.end() == at:
            raise bad
        whole, fraction, unit = part.group(1), (part.group(2) or "")[1:], part.group(3)
        if not whole and not fraction:
            raise bad
        if not unit:
            raise ValueError(f'time: missing unit in duration "{text}"')
        scale = _UNITS.get(unit)
        if scale is None:
            raise ValueError(f'time: unknown unit "{unit}" in duration "{text}"')
        total += int(whole or "0") * scale
        if fraction:
            total += int(fraction) * scale // 10 ** len(fraction)
        if total > MAX:
            raise bad
        at = part.end()
    return -total if negative else total


def duration(text: str) -> Duration:
    """`parse_duration` as a value."""
    return Duration(parse_duration(text))


def _trimmed(value: int, scale: int) -> str:
    """`value / scale` in decimals without trailing zeros; exact."""
    whole, rest = divmod(value, scale)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).zfill(len(str(scale)) - 1).rstrip('0')}"


def format_duration(ns: int) -> str:
    """The string Go prints for a duration of `ns` nanoseconds: `0s`, `1.5ms`, `1m0s`, `1h0m0s`."""
    if ns == 0:
        return "0s"
    sign, left = ("-", -ns) if ns < 0 else ("", ns)
    if left < MICROSECOND:
        return f"{sign}{left}ns"
    if left < MILLISECOND:
        return f"{sign}{_trimmed(left, MICROSECOND)}µs"
    if left < SECOND:
        return f"{sign}{_trimmed(left, MILLISECOND)}ms"
    minutes, rest = divmod(left, MINUTE)
    hours, minutes = divmod(minutes, 60)
    text = f"{_trimmed(rest, SECOND)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text
