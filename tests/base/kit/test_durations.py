"""Durations are read and printed as Go does; users and scripts know them from the messages of the reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.durations import Duration, duration, format_duration, format_seconds, parse_duration


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("0s", 0),
        ("1h30m", 5_400_000_000_000),
        ("100ms", 100_000_000),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("-2m", -120_000_000_000),
        ("+5s", 5_000_000_000),
        ("3us", 3_000),
        ("3µs", 3_000),
        ("3μs", 3_000),
        ("7ns", 7),
        ("1h0m0.000000001s", 3_600_000_000_001),
        ("9223372036854775807ns", 2**63 - 1),
        ("-9223372036854775808ns", -(2**63)),
        ("0" * 5000 + "1s", 1_000_000_000),
        ("0." + "3" * 5000 + "s", 333_333_333),
    ],
)
def test_go_duration_strings_are_read(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'invalid duration ""'),
        ("-", 'invalid duration "-"'),
        ("s", 'invalid duration "s"'),
        (".s", 'invalid duration ".s"'),
        ("10", 'missing unit in duration "10"'),
        ("1m30", 'missing unit in duration "1m30"'),
        ("5 s", 'unknown unit " s" in duration "5 s"'),
        ("1d", 'unknown unit "d" in duration "1d"'),
        ("9999999h", 'invalid duration "9999999h"'),
        ("9223372036854775808ns", 'invalid duration "9223372036854775808ns"'),
        ("²s", 'invalid duration "²s"'),
        ("9" * 5000 + "s", f'invalid duration "{"9" * 5000}s"'),
    ],
)
def test_what_is_no_duration_is_refused_with_the_form(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_duration(text)
    assert str(error.value) == f"{message}: must be like 30s, 1h30m or 500ms"


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (100_000_000, "100ms"),
        (1_000_000_000, "1s"),
        (60_000_000_000, "1m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (5_400_000_000_000, "1h30m0s"),
        (-1_500_000_000, "-1.5s"),
    ],
)
def test_durations_are_printed_as_go_does(ns: int, text: str) -> None:
    assert format_duration(ns) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (10, "10s"),
        (20, "20s"),
        (80, "1m20s"),
        (300, "5m0s"),
        (3600, "1h0m0s"),
        (3661.5, "1h1m1.5s"),
        (0.25, "250ms"),
        (1.25, "1.25s"),
        (0.0005, "500µs"),
        (0.0000005, "500ns"),
        (0.0015, "1.5ms"),
        (-90, "-1m30s"),
        (90_000, "25h0m0s"),
        (1.000000001, "1.000000001s"),
    ],
)
def test_seconds_as_go_prints_durations(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1) | st.integers(-(10**10), 10**10))
def test_what_is_printed_reads_back_the_same(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns


@given(st.integers(-(10**15), 10**15))
def test_seconds_print_as_their_nanoseconds(ns: int) -> None:
    assert format_seconds(ns / 10**9) == format_duration(ns)


@given(st.text("0123456789.hmsnuµ+-", max_size=12))
def test_no_text_gets_past_as_anything_but_a_duration(text: str) -> None:
    try:
        ns = parse_duration(text)
    except ValueError as error:
        assert f'duration "{text}"' in str(error)
    else:
        assert parse_duration(format_duration(ns)) == ns


def test_a_duration_compares_and_converts() -> None:
    assert duration("1500ms").s == 1.5
    assert duration("1m") > duration("59s")
    assert not Duration(0)
    assert str(duration("90s")) == "1m30s"
