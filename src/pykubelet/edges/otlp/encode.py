"""Encodes spans as an OTLP request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pykubelet.base.kit.tracing import Attributes, FinishedSpan
from pykubelet.edges.otlp import otlp_pb2 as pb

STATUS_ERROR = 2


def encode_spans(spans: Iterable[FinishedSpan], resource: Mapping[str, str], scope: str, version: str) -> bytes:
    """An ExportTraceServiceRequest. `resource`: the attributes of the process. `scope`: the program that made the spans."""
    scoped = pb.ScopeSpans(scope=pb.Scope(name=scope, version=version), spans=(_span(span) for span in spans))
    described = pb.Resource(attributes=_attributes(resource))
    request = pb.ExportTraceServiceRequest(resource_spans=[pb.ResourceSpans(resource=described, scope_spans=[scoped])])
    return request.SerializeToString()


def _span(span: FinishedSpan) -> pb.Span:
    encoded = pb.Span(
        trace_id=span.context.trace_id,
        span_id=span.context.span_id,
        parent_span_id=span.parent_id,
        name=span.name,
        kind=span.kind,
        start_time_unix_nano=span.began_ns,
        end_time_unix_nano=span.ended_ns,
        attributes=_attributes(span.attributes),
    )
    if span.failure is not None:
        encoded.status.CopyFrom(pb.Status(message=span.failure, code=STATUS_ERROR))
    if span.link is not None:
        encoded.links.append(pb.Link(trace_id=span.link.trace_id, span_id=span.link.span_id))
    return encoded


def _attributes(attributes: Attributes) -> Iterator[pb.KeyValue]:
    for key, value in attributes.items():
        if isinstance(value, bool):
            yield pb.KeyValue(key=key, value=pb.AnyValue(bool_value=value))
        elif isinstance(value, int):
            yield pb.KeyValue(key=key, value=pb.AnyValue(int_value=value))
        else:
            yield pb.KeyValue(key=key, value=pb.AnyValue(string_value=value))
