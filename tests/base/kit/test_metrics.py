"""Counters, histograms, their bounds, and the text they become."""

from __future__ import annotations

import pytest

from pykubelet.base.kit.exposition import render_metrics
from pykubelet.base.kit.metrics import (
    MAX_SERIES,
    Counter,
    Gauge,
    Histogram,
    MetricFamily,
    MetricSample,
    Registry,
    bound_text,
    exponential_bounds,
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
