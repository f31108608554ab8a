"""Durations in Go's notation (`1m20s`, `500ms`), as Kubernetes prints them in messages and files."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """`300` -> `5m0s`, `0.25` -> `250ms`, `0` -> `0s`."""
    nanos = round(abs(seconds) * 1_000_000_000)
    if nanos == 0:
        return "0s"
    sign = "-" if seconds < 0 else ""
    if nanos < 1_000_000_000:
        for unit, size in (("ms", 1_000_000), ("µs", 1_000), ("ns", 1)):
            if nanos >= size:
                return f"{sign}{_number(nanos, size)}{unit}"
    minutes, rest = divmod(nanos, 60_000_000_000)
    text = f"{_number(rest, 1_000_000_000)}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{minutes}m{text}"
        if hours:
            text = f"{hours}h{text}"
    return sign + text


def _number(nanos: int, size: int) -> str:
    whole, rest = divmod(nanos, size)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).rjust(len(str(size)) - 1, '0').rstrip('0')}"
