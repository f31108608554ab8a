"""Sends spans to a collector over gRPC, in batches and in the background.

Owns: the queue, its limit, and the retries. Nothing ever waits for the collector: what does not fit in the queue is dropped and
counted. While the collector does not answer, one batch is retried with back-off. Batches, limits and retried errors are those
of the OpenTelemetry SDK and the OTLP specification. The connection is not encrypted, as in the reference.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import within
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Counter
from pykubelet.base.kit.tracing import FinishedSpan
from pykubelet.base.kit.values import Value
from pykubelet.config.trace_target import TraceTarget
from pykubelet.edges.otlp import otlp_pb2 as pb
from pykubelet.edges.otlp.encode import encode_spans
from pykubelet.net.grpc.channel import Channel, tcp_dial, unix_dial
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import Code, RpcError

log = Log("tracing")
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
SCOPE = "pykubelet"
#: The collector is trusted with little: its answers are a few bytes.
COLLECTOR_LIMITS = Http2Limits(
    header_list=16 << 10, message=64 << 10, stream_window=128 << 10, connection_window=256 << 10
)
MAX_QUEUE, MAX_BATCH = 2048, 512
EXPORT_S, LAST_EXPORT_S = 10.0, 1.0
_RETRIED = frozenset(
    {
        Code.CANCELED,
        Code.DEADLINE_EXCEEDED,
        Code.RESOURCE_EXHAUSTED,
        Code.ABORTED,
        Code.OUT_OF_RANGE,
        Code.UNAVAILABLE,
        Code.DATA_LOSS,
    }
)
EXPORTED = Counter("pykubelet_trace_spans_exported_total", "Number of spans that the collector has taken.")
DROPPED = Counter("pykubelet_trace_spans_dropped_total", "Number of spans that no collector has taken.")


class ExportTimes(Value):
    """`period_s`: the most seconds that a span waits for others. `backoff`: the pauses while the collector does not answer."""

    period_s: float = 5.0
    backoff: BackoffPolicy = BackoffPolicy(5.0, 300.0)


class SpanExporter:
    """Exports the spans that are posted to it. Create it inside the running event loop."""

    def __init__(
        self, target: TraceTarget, resource: Mapping[str, str], version: str, times: ExportTimes | None = None
    ) -> None:
        self._times = times or ExportTimes()
        self._target = target
        self._resource = resource
        self._version = version
        dial = unix_dial(target.path) if target.path else tcp_dial(target.host, target.port)
        self._channel = Channel(dial, COLLECTOR_LIMITS, target.authority)
        self._method = self._channel.method(METHOD)
        self._queue: deque[FinishedSpan] = deque()
        self._is_full = asyncio.Event()
        self._failures = 0
        self._is_rejecting = False

    def post(self, span: FinishedSpan) -> None:
        """Queue a span, or drop it if the queue is full."""
        if len(self._queue) >= MAX_QUEUE:
            DROPPED.inc()
            return
        self._queue.append(span)
        if len(self._queue) >= MAX_BATCH:
            self._is_full.set()

    async def run(self) -> None:
        """Export until cancelled: every `period_s`, or as soon as there is a whole batch."""
        batch: list[FinishedSpan] = []
        while True:
            if not batch:
                await within(self._times.period_s, self._is_full.wait())
                batch = self._take()
            if not batch or await self._export(batch):
                batch = []
            else:
                await asyncio.sleep(self._times.backoff.delay_s(self._failures))

    async def close(self) -> None:
        """Try once to export what is left, and close the connection."""
        try:
            if not self._failures:
                async with asyncio.timeout(LAST_EXPORT_S):
                    while (batch := self._take()) and await self._export(batch):
                        pass
        except TimeoutError:
            return
        finally:
            self._channel.close()

    def _take(self) -> list[FinishedSpan]:
        """Take the next batch from the queue."""
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
        if len(self._queue) < MAX_BATCH:
            self._is_full.clear()
        return batch

    async def _export(self, batch: list[FinishedSpan]) -> bool:
        """Send a batch. Returns False if it must be sent again."""
        body = encode_spans(batch, self._resource, SCOPE, self._version)
        try:
            answer = pb.ExportTraceServiceResponse.FromString(await self._channel.unary(self._method, body, EXPORT_S))
        except RpcError as error:
            self._failures += 1
            is_retried = error.code in _RETRIED
            if self._failures == 1:
                next_step = "trying again with back-off" if is_retried else "the spans are dropped"
                endpoint = self._target.endpoint
                log.warning(
                    "the trace collector takes no spans", endpoint=endpoint, error=error.message, next=next_step
                )
            if not is_retried:
                DROPPED.inc(by=len(batch))
            return not is_retried
        except DecodeError:
            answer = pb.ExportTraceServiceResponse()
        if self._failures:
            self._failures = 0
            log.info("the trace collector takes spans again", endpoint=self._target.endpoint)
        rejected = max(0, min(answer.partial_success.rejected_spans, len(batch)))
        if rejected and not self._is_rejecting:
            log.warning("the trace collector rejects spans", spans=rejected, error=answer.partial_success.error_message)
        self._is_rejecting = rejected > 0
        DROPPED.inc(by=rejected)
        EXPORTED.inc(by=len(batch) - rejected)
        return True
