"""Ages as `kubectl` prints them: `45s`, `5m30s`, `3h`, `2d4h`. Pure."""

from __future__ import annotations

from pykubelet.base.api.times import parse_time
from pykubelet_local_api.objects import Json

UNKNOWN = "<unknown>"
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 31_536_000


def since(seconds: float) -> str:
    """A span of time, in seconds, with at most two units, and the second only where it matters."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 2 * _MINUTE:
        return f"{max(whole, 0)}s"
    for limit, unit, letter, smaller, small_letter in (
        (10 * _MINUTE, _MINUTE, "m", 1, "s"),
        (3 * _HOUR, _MINUTE, "m", 0, ""),
        (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
        (2 * _DAY, _HOUR, "h", 0, ""),
        (8 * _DAY, _DAY, "d", _HOUR, "h"),
        (2 * _YEAR, _DAY, "d", 0, ""),
        (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    ):
        if whole < limit:
            rest = whole % unit // smaller if smaller else 0
            return f"{whole // unit}{letter}" + (f"{rest}{small_letter}" if rest else "")
    return f"{whole // _YEAR}y"


def age_of(moment: object, now: float) -> str:
    """How long ago a moment of the API was."""
    if not isinstance(moment, str) or not moment:
        return UNKNOWN
    try:
        return since(now - parse_time(moment))
    except ValueError:
        return UNKNOWN


def age(item: Json, now: float) -> str:
    """How old an object is."""
    return age_of(item["metadata"].get("creationTimestamp"), now)
