"""Metrics in protobuf: which clients get it, and what is in it."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pytest
from support.cost import check_cost

from pykubelet.base.kit.metrics import Counter, Gauge, Histogram, MetricFamily, MetricSample, Registry
from pykubelet.serve.metrics import prometheus_metrics_pb2 as pb
from pykubelet.serve.metrics.protobuf_exposition import render_protobuf, wants_protobuf

PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"


@pytest.mark.parametrize(
    ("accepted", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        (PROTOBUF, True),
        (f"{PROTOBUF};q=0.7,text/plain;version=0.0.4;q=0.3", True),
        (f"{PROTOBUF},application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        (f"text/plain;version=0.0.4,{PROTOBUF};q=0.9", False),
        (f"{PROTOBUF};q=0", False),
        (f"{PROTOBUF};q=much,*/*;q=0.1", False),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text", False),
        ('application/vnd.google.protobuf; proto="io.prometheus.client.MetricFamily"; encoding="delimited"', True),
    ],
)
def test_who_gets_it(accepted: str, wanted: bool) -> None:
    assert wants_protobuf(accepted) is wanted


async def rendered(families: Iterable[MetricFamily]) -> dict[str, pb.MetricFamily]:
    page = io.BytesIO(await render_protobuf(families))
    found = {}
    while head := page.read(1):
        size, shift = head[0] & 127, 7
        while head[0] & 128:
            head = page.read(1)
            size |= (head[0] & 127) << shift
            shift += 7
        family = pb.MetricFamily.FromString(page.read(size))
        found[family.name] = family
    return found


async def test_counters_gauges_and_times() -> None:
    registry = Registry()
    Counter("c_total", "Counts.", ("a", "b"), registry=registry).inc("x", "ä", by=3)
    Gauge("g", "Goes.", registry=registry).set(-1.5)
    Counter("none_total", "Has none.", ("a",), registry=registry)
    dated = MetricFamily("d", "gauge", "Dated.", [MetricSample(2, (("k", "v"),), at=1.5)])
    found = await rendered([*registry.families(), dated])
    assert found.keys() == {"c_total", "g", "d"}
    counter = found["c_total"]
    assert (counter.help, counter.type, counter.metric[0].counter.value) == ("Counts.", pb.COUNTER, 3)
    assert [(label.name, label.value) for label in counter.metric[0].label] == [("a", "x"), ("b", "ä")]
    assert (found["g"].type, found["g"].metric[0].gauge.value) == (pb.GAUGE, -1.5)
    assert found["d"].metric[0].timestamp_ms == 1500


async def test_a_histogram_is_classic_and_native() -> None:
    registry = Registry()
    histogram = Histogram("h", "Has.", ("k",), (0.1, 1.0), registry=registry)
    for value in (0.05, 1.0, 1.05, 4.0, 0.0):
        histogram.observe(value, "v")
    histogram.observe(1.0, "w")
    [family] = (await rendered(registry.families())).values()
    assert family.type == pb.HISTOGRAM
    assert [[(label.name, label.value) for label in metric.label] for metric in family.metric] == [
        [("k", "v")],
        [("k", "w")],
    ]
    found = family.metric[0].histogram
    assert (found.sample_count, round(found.sample_sum, 2)) == (5, 6.1)
    assert [(bucket.upper_bound, bucket.cumulative_count) for bucket in found.bucket] == [(0.1, 2), (1.0, 3)]
    assert (found.schema, found.zero_threshold, found.zero_count) == (3, 2.0**-128, 1)
    assert [(span.offset, span.length) for span in found.positive_span] == [(-34, 1), (33, 2), (14, 1)]
    assert list(found.positive_delta) == [1, 0, 0, 0]


async def test_what_happens_during_a_scrape_is_not_in_it() -> None:
    """Prometheus refuses a histogram whose buckets have another sum than its count."""
    registry = Registry()
    histogram = Histogram("h", "Has.", registry=registry)
    histogram.observe(1.0)
    families = list(registry.families())
    histogram.observe(1.0)
    [family] = (await rendered(families)).values()
    assert family.metric[0].histogram.sample_count == sum(family.metric[0].histogram.positive_delta) == 1


def test_a_page_of_a_full_node_holds_nothing_up() -> None:
    registry = Registry()
    histogram = Histogram("h", "Has.", ("pod",), registry=registry)
    for number in range(1000):
        for value in range(20):
            histogram.observe(value, f"pod-{number}")
    families = list(registry.families())

    async def render() -> None:
        assert len(await render_protobuf(families)) > 100_000

    check_cost("a page", render)
