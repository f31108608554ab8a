"""Counters, histograms, their bounds, and the text they become."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.exposition import render_metrics
from pykubelet.base.kit.metrics import (
    LEAST_SCHEMA,
    MAX_NATIVE_BUCKETS,
    MAX_SERIES,
    Counter,
    Gauge,
    Histogram,
    MetricFamily,
    MetricSample,
    NativeCounts,
    Registry,
    bound_text,
    exponential_bounds,
    spans,
)


def test_the_text_of_all_kinds() -> None:
    registry = Registry()
    plain = Counter("b_total", "Plain.", registry=registry)
    labelled = Counter("c_total", 'With "quotes"\nand lines.', ("verb", "code"), registry=registry)
    times = Histogram("a_seconds", "Times.", ("verb",), (0.1, 1.0), registry=registry)
    plain.inc()
    plain.inc(by=1.5)
    labelled.inc('g"e\\t\n', "200")
    for took in (0.05, 0.1, 0.5, 7):
        times.observe(took, "get")
    text = render_metrics(registry.families()).decode()
    assert text == (
        "# HELP a_seconds Times.\n"
        "# TYPE a_seconds histogram\n"
        'a_seconds_bucket{verb="get",le="0.1"} 2\n'
        'a_seconds_bucket{verb="get",le="1"} 3\n'
        'a_seconds_bucket{verb="get",le="+Inf"} 4\n'
        'a_seconds_sum{verb="get"} 7.65\n'
        'a_seconds_count{verb="get"} 4\n'
        "# HELP b_total Plain.\n"
        "# TYPE b_total counter\n"
        "b_total 2.5\n"
        '# HELP c_total With "quotes"\\nand lines.\n'
        "# TYPE c_total counter\n"
        'c_total{verb="g\\"e\\\\t\\n",code="200"} 1\n'
    )


def test_times_of_samples_and_special_numbers() -> None:
    samples = [
        MetricSample(float("inf"), at=1.5),
        MetricSample(float("nan")),
        MetricSample(12345678901234),
        MetricSample(0.1),
    ]
    lines = (
        render_metrics([MetricFamily("x", "gauge", "X.", samples), MetricFamily("y", "gauge", "Empty.")])
        .decode()
        .splitlines()
    )
    assert lines[2:] == ["x +Inf 1500", "x NaN", "x 12345678901234", "x 0.1"]


def test_series_are_bounded_and_can_be_forgotten() -> None:
    many = Counter("d_total", "Many.", ("pod",), registry=Registry())
    for number in range(MAX_SERIES + 50):
        many.inc(str(number))
    assert len(list(many.family().samples)) == MAX_SERIES + 1
    assert many.value("other") == 50
    many.forget("7")
    assert many.value("7") == 0


def test_metrics_without_labels_begin_at_zero() -> None:
    registry = Registry()
    Counter("a_total", "A.", registry=registry)
    Gauge("b", "B.", registry=registry)
    Histogram("c_seconds", "C.", bounds=(1.0,), registry=registry)
    Gauge("d", "D.", ("pod",), registry=registry)
    lines = render_metrics(registry.families()).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        *("a_total 0", "b 0"),
        *('c_seconds_bucket{le="1"} 0', 'c_seconds_bucket{le="+Inf"} 0', "c_seconds_sum 0", "c_seconds_count 0"),
    ]


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (0.005, "0.005"),
        (1, "1"),
        (745.0580596923828, "745.0580596923828"),
        (604800, "604800"),
        (1e6, "1e+06"),
        (2592000, "2.592e+06"),
        (124416000, "1.24416e+08"),
        (0.00001, "1e-05"),
        (float("inf"), "+Inf"),
    ],
)
def test_bounds_are_written_to_the_last_digit_as_go_does(bound: float, text: str) -> None:
    assert bound_text(bound) == text


def test_the_bounds_of_runtime_operations_are_those_of_other_nodes() -> None:
    bounds = [bound_text(bound) for bound in exponential_bounds(0.005, 2.5, 14)]
    assert bounds[4:] == [
        *("0.1953125", "0.48828125", "1.220703125", "3.0517578125", "7.62939453125", "19.073486328125"),
        *("47.6837158203125", "119.20928955078125", "298.0232238769531", "745.0580596923828"),
    ]


def test_wrong_labels_and_names_given_twice_are_bugs() -> None:
    registry = Registry()
    counter = Counter("e_total", "One.", ("a",), registry=registry)
    with pytest.raises(ValueError, match="labels"):
        counter.inc()
    with pytest.raises(ValueError, match="exists already"):
        Counter("e_total", "Again.", registry=registry)


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
    assert len(found.positive) <= MAX_NATIVE_BUCKETS
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
