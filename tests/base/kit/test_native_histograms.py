"""The buckets of native histograms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.native_histograms import LEAST_SCHEMA, MAX_BUCKETS, NativeCounts, spans

SECONDS = st.floats(1e-9, 1e6)


def counts(*values: float) -> NativeCounts:
    found = NativeCounts()
    for value in values:
        found.observe(value)
    return found


@pytest.mark.parametrize(
    ("value", "index"),
    [(1.0, 0), (1.05, 1), (2 ** (1 / 8), 1), (1.1, 2), (2.0, 8), (0.5, -8), (0.51, -7), (0.005, -61), (300.0, 66)],
)
def test_the_bucket_of_a_value(value: float, index: int) -> None:
    assert counts(value).positive == {index: 1}
    assert counts(-value).negative == {index: 1}


def test_zero_and_what_no_bucket_has() -> None:
    found = counts(0.0, 1e-40, math.nan, math.inf)
    assert (found.zero, found.positive, found.negative) == (4, {}, {})


@given(st.lists(SECONDS, max_size=400))
def test_each_value_is_in_the_bucket_between_its_bounds(values: list[float]) -> None:
    found = counts(*values)
    assert len(found.positive) <= MAX_BUCKETS
    per_power = 2.0**found.schema
    expected: dict[int, int] = {}
    for value in values:
        index = math.ceil(round(math.log2(value) * per_power, 9))
        expected[index] = expected.get(index, 0) + 1
    assert found.positive == expected


def test_many_buckets_become_fewer_and_wider() -> None:
    found = counts(*(2.0 ** (number / 8) for number in range(400)))
    assert found.schema == 1
    assert sum(found.positive.values()) == 400
    assert len(found.positive) == 101
    extreme = counts(*(sign * 2.0**power for sign in (1, -1) for power in range(-120, 1000)))
    assert extreme.schema >= LEAST_SCHEMA
    assert sum(extreme.positive.values()) == sum(extreme.negative.values()) == 1120


@given(st.dictionaries(st.integers(-100, 100), st.integers(1, 9)))
def test_spans_have_all_buckets(buckets: dict[int, int]) -> None:
    found, index = {}, 0
    for offset, run in spans(buckets):
        index += offset
        for count in run:
            found[index] = count
            index += 1
    assert found == buckets


def test_a_copy_does_not_change() -> None:
    found = counts(1.0)
    kept = found.copy()
    found.observe(1.0)
    found.observe(2.0)
    assert (kept.positive, kept.schema, kept.zero) == ({0: 1}, found.schema, 0)
