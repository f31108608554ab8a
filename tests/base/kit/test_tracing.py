"""Spans: parents, samplers, and the header that carries them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.tracing import KeptSpans, recorded

from pykubelet.base.kit.tracing import (
    NO_SPAN,
    SpanContext,
    SpanKind,
    Tracer,
    read_traceparent,
    set_tracer,
    span,
)

REMOTE = SpanContext(b"t" * 16, b"s" * 8, is_sampled=True)


@pytest.fixture
def kept() -> Iterator[KeptSpans]:
    with recorded() as spans:
        yield spans


def test_without_a_tracer_nothing_is_recorded() -> None:
    with span("a") as made:
        assert made is NO_SPAN and made.traceparent == ""


async def test_tasks_within_a_span_make_its_children(kept: KeptSpans) -> None:
    async def call() -> None:
        with span("call", SpanKind.CLIENT, {"rpc.system": "grpc"}):
            pass

    with span("sync"):
        await asyncio.get_running_loop().create_task(call())
    await call()
    inner, outer, alone = kept.spans
    assert (inner.name, inner.kind, inner.attributes) == ("call", SpanKind.CLIENT, {"rpc.system": "grpc"})
    assert inner.parent_id == outer.context.span_id
    assert inner.context.trace_id == outer.context.trace_id != alone.context.trace_id
    assert outer.parent_id == alone.parent_id == b""
    assert outer.began_ns <= inner.began_ns <= inner.ended_ns <= outer.ended_ns


def test_an_error_marks_the_span(kept: KeptSpans) -> None:
    with suppress(ValueError), span("a"):
        raise ValueError("boom")
    with span("b") as made:
        made.fail("x" * 5000)
    assert kept.spans[0].failure == "boom"
    assert kept.spans[1].failure == "x" * 1024


def test_a_span_is_recorded_once(kept: KeptSpans) -> None:
    made = span("a")
    made.end()
    made.end()
    assert len(kept.spans) == 1


@pytest.mark.parametrize("is_sampled", [True, False])
def test_the_parent_decides_whether_a_span_is_recorded(kept: KeptSpans, is_sampled: bool) -> None:
    set_tracer(Tracer(0 if is_sampled else 1_000_000, kept))
    with span("a", remote=SpanContext(b"t" * 16, b"s" * 8, is_sampled)) as made:
        assert made.traceparent.startswith("00-" + "74" * 16) and made.traceparent.endswith(f"-0{int(is_sampled)}")
    assert len(kept.spans) == int(is_sampled)


def test_clients_without_credentials_are_only_linked(kept: KeptSpans) -> None:
    set_tracer(Tracer(0, kept))
    span("unrecorded", remote=REMOTE, is_public=True).end()
    set_tracer(Tracer(1_000_000, kept))
    span("linked", remote=REMOTE, is_public=True).end()
    [linked] = kept.spans
    assert linked.parent_id == b"" and linked.link == REMOTE and linked.context.trace_id != REMOTE.trace_id


@pytest.mark.parametrize(("per_million", "low", "high"), [(0, 0, 0), (100_000, 50, 200), (1_000_000, 1000, 1000)])
def test_the_share_of_recorded_traces(kept: KeptSpans, per_million: int, low: int, high: int) -> None:
    set_tracer(Tracer(per_million, kept))
    for _ in range(1000):
        span("a").end()
    assert low <= len(kept.spans) <= high


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (REMOTE.traceparent, REMOTE),
        ("00-" + "74" * 16 + "-" + "73" * 8 + "-00", SpanContext(b"t" * 16, b"s" * 8, is_sampled=False)),
        ("01-" + "74" * 16 + "-" + "73" * 8 + "-01-more", REMOTE),
        ("00-" + "74" * 16 + "-" + "73" * 8 + "-01-more", None),
        ("ff-" + "74" * 16 + "-" + "73" * 8 + "-01", None),
        ("00-" + "00" * 16 + "-" + "73" * 8 + "-01", None),
        ("00-" + "74" * 16 + "-" + "00" * 8 + "-01", None),
        ("00-" + "7G" * 16 + "-" + "73" * 8 + "-01", None),
        ("", None),
        ("0" * 100_000, None),
    ],
)
def test_headers_of_other_processes(text: str, found: SpanContext | None) -> None:
    assert read_traceparent(text) == found
