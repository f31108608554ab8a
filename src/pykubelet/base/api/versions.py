"""Resource versions of API objects. Pure. Source: KEP-5504 (resource versions can be compared)."""

from __future__ import annotations

from pykubelet.base.kit.digits import parse_decimal


def compare_versions(one: str, other: str) -> int | None:
    """Above 0: `one` is newer, below 0: older, 0: the same; None where one of them is no number of 63 bits."""
    first, second = parse_decimal(one), parse_decimal(other)
    if first is None or second is None:
        return None
    return (first > second) - (first < second)
