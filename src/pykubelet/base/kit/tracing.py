"""Spans: what the agent did for a pod or a request, when, and as a part of what.

Owns: the tracer of the process, and which span is the current one. Like a log line or a count, a span is recorded where
something happens; no decision reads it. Without a tracer (`tracing` is not configured), `span` makes nothing. The current span
is a context variable, so tasks started within a span make its children.

Source: the OpenTelemetry specification (samplers ParentBased and TraceIdRatioBased), W3C Trace Context.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextvars import ContextVar, Token
from enum import IntEnum
from random import getrandbits
from types import TracebackType
from typing import Protocol, Self

from pykubelet.base.kit.values import Value

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.ASCII)
#: The most characters of a text in a span.
MAX_TEXT = 1024
Attribute = str | bool | int
Attributes = Mapping[str, Attribute]
_NO_ATTRIBUTES: Attributes = {}


class SpanKind(IntEnum):
    """The kinds of OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class SpanContext(Value):
    """The identity of a span, as it is passed to other processes. `is_sampled`: the trace is recorded."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """The value of the header `traceparent`."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-0{int(self.is_sampled)}"


def read_traceparent(text: str) -> SpanContext | None:
    """The context in a header `traceparent`; None if there is none, or it is not valid."""
    found = _TRACEPARENT.fullmatch(text) if len(text) <= MAX_TEXT else None
    if found is None or (text.startswith("00-") and len(text) != 55):
        return None
    trace_id, span_id = bytes.fromhex(found[1]), bytes.fromhex(found[2])
    return SpanContext(trace_id, span_id, bool(int(found[3], 16) & 1)) if any(trace_id) and any(span_id) else None


class FinishedSpan(Value):
    """A recorded span. Times are wall nanoseconds. `parent_id`: empty for the first span of a trace.

    `failure`: None if it succeeded. `link`: a span that caused this one without being its parent.
    """

    context: SpanContext
    parent_id: bytes
    name: str
    kind: SpanKind
    began_ns: int
    ended_ns: int
    attributes: Attributes
    failure: str | None = None
    link: SpanContext | None = None


class SpanSink(Protocol):
    """Takes recorded spans, at once and without failing."""

    def post(self, span: FinishedSpan) -> None:
        """Take one span."""


class Tracer:
    """Makes spans. `per_million`: how many of a million traces that begin here are recorded."""

    def __init__(self, per_million: int, sink: SpanSink) -> None:
        self._below = int(per_million / 1_000_000 * (1 << 63))
        self.sink = sink

    def child(self, parent: SpanContext | None) -> SpanContext:
        """A new context. Whether it is recorded is decided by its parent or, without one, by the trace id."""
        span_id = getrandbits(64).to_bytes(8, "big")
        if parent is not None:
            return SpanContext(parent.trace_id, span_id, parent.is_sampled)
        trace_id = getrandbits(128).to_bytes(16, "big")
        return SpanContext(trace_id, span_id, int.from_bytes(trace_id[8:], "big") >> 1 < self._below)


class _Process:
    """The tracer of this process."""

    tracer: Tracer | None = None


_PROCESS = _Process()
_CURRENT: ContextVar[SpanContext | None] = ContextVar("span", default=None)


class Span:
    """A span under way. As a context manager it is the current span, and ends with the block."""

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        parent: SpanContext | None,
        link: SpanContext | None,
    ) -> None:
        self.context = tracer.child(parent)
        self._tracer = tracer
        self._parent_id = parent.span_id if parent is not None else b""
        self._name = name
        self._kind = kind
        self._attributes = dict(attributes)
        self._link = link
        self._failure: str | None = None
        self._began = time.monotonic_ns()  # the first of both: no span ends before one within it begins
        self._began_ns = time.time_ns()
        self._is_ended = False
        self._token: Token[SpanContext | None] | None = None

    @property
    def traceparent(self) -> str:
        """The header for a request that is made within this span."""
        return self.context.traceparent

    def set(self, key: str, value: Attribute) -> None:
        """Add an attribute."""
        self._attributes[key] = value[:MAX_TEXT] if isinstance(value, str) else value

    def fail(self, why: str) -> None:
        """Mark the span as failed."""
        self._failure = why[:MAX_TEXT]

    def end(self) -> None:
        """Record the span, once, if its trace is recorded."""
        if self._is_ended or not self.context.is_sampled:
            return
        self._is_ended = True
        ended_ns = self._began_ns + time.monotonic_ns() - self._began
        self._tracer.sink.post(
            FinishedSpan(
                self.context,
                self._parent_id,
                self._name,
                self._kind,
                self._began_ns,
                ended_ns,
                self._attributes,
                self._failure,
                self._link,
            )
        )

    def enter(self) -> None:
        """Make this the current span."""
        self._token = _CURRENT.set(self.context)

    def leave(self) -> None:
        """Make the former span the current one. The span goes on."""
        if self._token is not None:
            _CURRENT.reset(self._token)
            self._token = None

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self.leave()
        if error is not None and self._failure is None:
            self.fail(str(error) or type(error).__name__)
        self.end()


class NoSpan:
    """What `span` makes without a tracer."""

    traceparent = ""

    def set(self, key: str, value: Attribute) -> None:
        """Do nothing."""

    def fail(self, why: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def enter(self) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


NO_SPAN = NoSpan()


def span(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes = _NO_ATTRIBUTES,
    *,
    remote: SpanContext | None = None,
    is_public: bool = False,
) -> Span | NoSpan:
    """A new span: a child of `remote`, the span of another process, or of the current one.

    `is_public`: the other process is not trusted, so the span begins a new trace, with a link to `remote`.
    """
    tracer = _PROCESS.tracer
    if tracer is None:
        return NO_SPAN
    if is_public:
        return Span(tracer, name, kind, attributes, None, remote)
    return Span(tracer, name, kind, attributes, remote or _CURRENT.get(), None)


def is_traced() -> bool:
    """Whether there is a tracer, for attributes that are expensive to make."""
    return _PROCESS.tracer is not None


def set_tracer(tracer: Tracer | None) -> None:
    """Record spans with this tracer from now on; None: record no more."""
    _PROCESS.tracer = tracer
