from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api.times import (
    format_micro_time,
    format_nano_time,
    format_time,
    parse_time,
    parse_time_ns,
    wall_to_monotonic,
)


def test_spellings() -> None:
    assert format_time(0) == "1970-01-01T00:00:00Z"
    assert format_time(1_767_323_045.99) == "2026-01-02T03:04:05Z"
    assert format_micro_time(1_767_323_045) == "2026-01-02T03:04:05.000000Z"
    assert format_micro_time(1_767_323_045.999_999_9) == "2026-01-02T03:04:06.000000Z"
    assert format_nano_time(1_767_323_045_120_000_000) == "2026-01-02T03:04:05.12Z"
    assert format_nano_time(1_767_323_045_000_000_000) == "2026-01-02T03:04:05Z"


def test_reads_offsets_and_leap_seconds() -> None:
    assert parse_time("2026-01-02T05:04:05+02:00") == 1_767_323_045
    assert parse_time("2026-01-02t03:04:05.5z") == 1_767_323_045.5
    assert parse_time("2016-12-31T23:59:60Z") == parse_time("2017-01-01T00:00:00Z")


@pytest.mark.parametrize("text", ["", "2026-01-02", "2026-01-02T03:04:05", "2026-13-02T03:04:05Z", "yesterday"])
def test_refuses_what_is_no_date(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


@given(st.integers(0, 4_000_000_000_000_000_000))
def test_nanoseconds_come_back(wall_ns: int) -> None:
    assert parse_time_ns(format_nano_time(wall_ns)) == wall_ns


DATE = 1_700_000_000.0


@pytest.mark.parametrize(
    ("wall", "not_before", "moment"),
    [
        (DATE + 5, 0.0, 95.0),
        (DATE + 5, 96.0, 100.0),
        (DATE + 3605, 90.0, 100.0),
        (DATE - 3595, 90.0, 100.0),
        (DATE + 3605, float("-inf"), -3505.0),
    ],
    ids=["as dated", "before it was seen not to be", "set forward", "set back", "found at the first look"],
)
def test_a_date_is_believed_unless_a_look_contradicts_it(wall: float, not_before: float, moment: float) -> None:
    assert wall_to_monotonic(DATE, 100.0, wall, not_before) == pytest.approx(moment)
