"""Counters, histograms, their bounds, and the text they become."""

from __future__ import annotations

import pytest

from pykubelet.base.kit.metrics import MAX_SERIES, Counter, Histogram, MetricFamily, MetricSample, Registry
from pykubelet.serve.metrics.exposition import render_metrics


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


def test_wrong_labels_and_names_given_twice_are_bugs() -> None:
    registry = Registry()
    one = Counter("e_total", "One.", ("a",), registry=registry)
    with pytest.raises(ValueError, match="labels"):
        one.inc()
    with pytest.raises(ValueError, match="exists already"):
        Counter("e_total", "Again.", registry=registry)
