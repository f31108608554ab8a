"""Resource versions: which of two is the newer one, and that no text of an API server makes the comparison fail."""

from __future__ import annotations

import pytest

from pykubelet.base.api.versions import compare_versions

HIGHEST = str(2**63 - 1)


@pytest.mark.parametrize(
    ("version", "other", "order"),
    [
        ("100", "99", 1),
        ("99", "100", -1),
        ("100", "100", 0),
        (HIGHEST, "1", 1),
        ("x1", "1", None),
        ("", "1", None),
        ("1", "²", None),
        ("-5", "1", None),
        ("9" * 5000, "1", None),
        ("9" * 5_000_000, "9" * 5_000_000, None),
    ],
)
def test_versions_are_compared_as_numbers_where_both_are_numbers(version: str, other: str, order: int | None) -> None:
    assert compare_versions(version, other) == order
