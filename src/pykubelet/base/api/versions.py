"""Resource versions of API objects. Pure. Source: KEP-5504 (resource versions can be compared)."""

from __future__ import annotations

from pykubelet.base.kit.text import parse_decimal


def compare_versions(version: str, other: str) -> int | None:
    """Compare two resource versions: positive if `version` is newer, negative if older, 0 if equal.

    None if one of them is not a number of at most 63 bits.
    """
    first, second = parse_decimal(version), parse_decimal(other)
    if first is None or second is None:
        return None
    return (first > second) - (first < second)
