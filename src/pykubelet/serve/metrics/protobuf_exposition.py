"""Metrics in Prometheus' protobuf format, which has native histograms beside the classic ones. Pure.

Families are made in steps, between which other tasks run: a page of a full node has many thousand samples.
Source: the Prometheus documentation "Exposition formats" (protobuf, delimited), RFC 9110 "Accept".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pykubelet.base.api.protobuf import varint
from pykubelet.base.kit.metrics import ZERO_THRESHOLD, Labels, MetricFamily, MetricSample, NativeCounts, spans
from pykubelet.base.kit.yields import Yields
from pykubelet.serve.metrics import prometheus_metrics_pb2 as pb

_PROTOBUF, _MESSAGE, _ENCODING = "application/vnd.google.protobuf", "io.prometheus.client.MetricFamily", "delimited"
PROTOBUF_CONTENT_TYPE = f"{_PROTOBUF}; proto={_MESSAGE}; encoding={_ENCODING}; escaping=underscores"
_TEXT = "text/plain"
#: Samples that are encoded without a pause.
_STEP = 500
#: The most parts of an `Accept` that are read.
_MAX_PARTS = 32
_TYPES = {"counter": pb.COUNTER, "gauge": pb.GAUGE, "histogram": pb.HISTOGRAM}


def wants_protobuf(accepted: str) -> bool:
    """Whether `Accept` prefers the protobuf format to text. Of equal weights, the first counts."""
    best, is_best = 0.0, False
    for part in accepted.split(",", _MAX_PARTS)[:_MAX_PARTS]:
        kind, *rest = (word.strip() for word in part.split(";"))
        parameters = {
            name.strip(): value.strip().strip('"') for name, _, value in (word.partition("=") for word in rest)
        }
        is_protobuf = (
            kind == _PROTOBUF and parameters.get("proto") == _MESSAGE and parameters.get("encoding") == _ENCODING
        )
        if not is_protobuf and kind not in (_TEXT, "*/*", "text/*"):
            continue
        weight = _weight(parameters.get("q", "1"))
        if weight > best:
            best, is_best = weight, is_protobuf
    return is_best


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


async def render_protobuf(families: Iterable[MetricFamily]) -> bytes:
    """Render metric families. Families without samples are left out."""
    out, yields = bytearray(), Yields(_STEP)
    for family in families:
        message = pb.MetricFamily(name=family.name, help=family.help, type=_TYPES.get(family.kind, pb.UNTYPED))
        for metric in _histograms(family) if family.kind == "histogram" else _values(family):
            message.metric.append(metric)
            await yields.done(1 + len(metric.histogram.bucket) if family.kind == "histogram" else 1)
        if message.metric:
            data = message.SerializeToString()
            out += varint(len(data))
            out += data
    return bytes(out)


def _metric(sample: MetricSample, labels: Labels) -> pb.Metric:
    metric = pb.Metric(label=[pb.LabelPair(name=name, value=value) for name, value in labels])
    if sample.at is not None:
        metric.timestamp_ms = int(sample.at * 1000)
    return metric


def _values(family: MetricFamily) -> Iterator[pb.Metric]:
    for sample in family.samples:
        metric = _metric(sample, sample.labels)
        if family.kind == "counter":
            metric.counter.value = sample.value
        elif family.kind == "gauge":
            metric.gauge.value = sample.value
        else:
            metric.untyped.value = sample.value
        yield metric


def _histograms(family: MetricFamily) -> Iterator[pb.Metric]:
    """A metric for each series: its lines are the buckets, the sum and the count, in this order."""
    native: Mapping[Labels, NativeCounts] = family.native
    buckets: list[pb.Bucket] = []
    total = 0.0
    for sample in family.samples:
        match sample.suffix:
            case "_bucket":
                bound = next(value for name, value in sample.labels if name == "le")
                if bound != "+Inf":
                    buckets.append(pb.Bucket(cumulative_count=int(sample.value), upper_bound=float(bound)))
            case "_sum":
                total = sample.value
            case _:
                metric = _metric(sample, sample.labels)
                metric.histogram.CopyFrom(
                    pb.Histogram(sample_count=int(sample.value), sample_sum=total, bucket=buckets)
                )
                if sample.labels in native:
                    _add_native(metric.histogram, native[sample.labels])
                buckets = []
                yield metric


def _add_native(histogram: pb.Histogram, counts: NativeCounts) -> None:
    histogram.schema = counts.schema
    histogram.zero_threshold = ZERO_THRESHOLD
    histogram.zero_count = counts.zero
    for side, span, delta in (
        (counts.positive, histogram.positive_span, histogram.positive_delta),
        (counts.negative, histogram.negative_span, histogram.negative_delta),
    ):
        before = 0
        for offset, run in spans(side):
            span.add(offset=offset, length=len(run))
            for count in run:
                delta.append(count - before)
                before = count
