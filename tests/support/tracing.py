"""A tracer that keeps all spans, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pykubelet.base.kit.tracing import FinishedSpan, Tracer, set_tracer


class KeptSpans:
    """The spans that have ended, in order."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def post(self, span: FinishedSpan) -> None:
        self.spans.append(span)

    def named(self, name: str) -> list[FinishedSpan]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def recorded(per_million: int = 1_000_000) -> Iterator[KeptSpans]:
    """Record that share of the traces that begin within the block."""
    kept = KeptSpans()
    set_tracer(Tracer(per_million, kept))
    try:
        yield kept
    finally:
        set_tracer(None)
