"""The exporter of spans with a collector that is a grpcio server, and with none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.tracing import SpanKind, Tracer, set_tracer, span
from pykubelet.config.trace_target import TargetError, read_target
from pykubelet.edges.otlp import otlp_pb2 as pb
from pykubelet.edges.otlp.exporter import DROPPED, EXPORTED, MAX_BATCH, MAX_QUEUE, METHOD, ExportTimes, SpanExporter

RESOURCE = {"service.name": "kubelet", "host.name": "node-1"}
FAST = ExportTimes(period_s=0.01, backoff=BackoffPolicy(0.01, 0.02))


class Collector:
    """A collector that keeps what it gets. `refuse`: the status of its next answers. `reject`: spans that it rejects."""

    def __init__(self, address: str) -> None:
        self.requests: list[pb.ExportTraceServiceRequest] = []
        self.refuse: list[grpc.StatusCode] = []
        self.reject = 0
        self._server = grpc.aio.server()
        handlers = {METHOD.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._export)}
        service = METHOD.split("/")[1]
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self.port = self._server.add_insecure_port(address)

    async def _export(self, body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if self.refuse:
            await context.abort(self.refuse.pop(0), "not now")
        self.requests.append(pb.ExportTraceServiceRequest.FromString(body))
        partial = pb.PartialSuccess(rejected_spans=self.reject)
        return pb.ExportTraceServiceResponse(partial_success=partial).SerializeToString()

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    @property
    def spans(self) -> list[pb.Span]:
        return [
            sent for request in self.requests for part in request.resource_spans[0].scope_spans for sent in part.spans
        ]


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector("127.0.0.1:0")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def no_tracer_after() -> object:
    yield
    set_tracer(None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def record(count: int) -> None:
    for number in range(count):
        span(f"span-{number}").end()


async def test_a_collector_gets_spans_with_all_their_parts(collector: Collector) -> None:
    exporter = SpanExporter(read_target(f"localhost:{collector.port}"), RESOURCE, "1.2")
    set_tracer(Tracer(1_000_000, exporter))
    with (
        span("syncPod", attributes={"k8s.pod.name": "web", "ok": True, "count": 3}),
        span("runtime.v1.RuntimeService/RunPodSandbox", SpanKind.CLIENT) as inner,
    ):
        inner.fail("refused")
    await exporter.close()
    [request] = collector.requests
    [resource] = request.resource_spans
    assert {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes} == RESOURCE
    assert [(part.scope.name, part.scope.version) for part in resource.scope_spans] == [("pykubelet", "1.2")]
    call, sync = collector.spans
    assert (call.name, call.kind, call.status.code, call.status.message) == (
        "runtime.v1.RuntimeService/RunPodSandbox",
        3,
        2,
        "refused",
    )
    assert (sync.name, sync.kind, sync.status.code) == ("syncPod", 1, 0)
    assert call.trace_id == sync.trace_id and len(call.trace_id) == 16
    assert call.parent_span_id == sync.span_id and sync.parent_span_id == b""
    values = {attribute.key: attribute.value for attribute in sync.attributes}
    assert (values["k8s.pod.name"].string_value, values["ok"].bool_value, values["count"].int_value) == ("web", True, 3)
    assert 0 < sync.start_time_unix_nano <= call.start_time_unix_nano <= sync.end_time_unix_nano


async def test_spans_are_sent_in_batches_over_a_unix_socket(tmp_path: Path) -> None:
    collector = Collector(f"unix:{tmp_path}/otlp.sock")
    await collector.start()
    exporter = SpanExporter(read_target(f"unix://{tmp_path}/otlp.sock"), RESOURCE, "1")
    set_tracer(Tracer(1_000_000, exporter))
    running = asyncio.get_running_loop().create_task(exporter.run())
    record(MAX_BATCH + 5)
    await until(lambda: len(collector.spans) == MAX_BATCH)
    await exporter.close()
    running.cancel()
    assert len(collector.spans) == MAX_BATCH + 5
    await collector.stop()


async def test_without_a_collector_spans_wait_and_then_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing waits, the queue is bounded, one line is logged, and what is kept arrives when the collector is back."""
    path = tmp_path / "otlp.sock"
    exporter = SpanExporter(read_target(f"unix:{path}"), RESOURCE, "1", FAST)
    set_tracer(Tracer(1_000_000, exporter))
    dropped, exported = DROPPED.value(), EXPORTED.value()
    running = asyncio.get_running_loop().create_task(exporter.run())
    record(MAX_BATCH)
    await until(lambda: "takes no spans" in caplog.text)
    record(MAX_QUEUE + 7)
    await asyncio.sleep(0.1)
    assert DROPPED.value() - dropped == 7
    assert caplog.text.count("takes no spans") == 1
    collector = Collector(f"unix:{path}")
    await collector.start()
    await until(lambda: EXPORTED.value() - exported == MAX_BATCH + MAX_QUEUE)
    assert len(collector.spans) == MAX_BATCH + MAX_QUEUE
    assert collector.spans[0].name == "span-0"
    running.cancel()
    await exporter.close()
    await collector.stop()


async def test_a_refused_batch_is_sent_again_only_if_that_may_help(collector: Collector) -> None:
    exporter = SpanExporter(read_target(f"127.0.0.1:{collector.port}"), RESOURCE, "1", FAST)
    set_tracer(Tracer(1_000_000, exporter))
    dropped = DROPPED.value()
    running = asyncio.get_running_loop().create_task(exporter.run())
    collector.refuse = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED]
    record(1)
    await until(lambda: len(collector.spans) == 1)
    collector.refuse = [grpc.StatusCode.UNIMPLEMENTED]
    record(2)
    await until(lambda: DROPPED.value() - dropped == 2)
    collector.reject = 1
    record(3)
    await until(lambda: DROPPED.value() - dropped == 3)
    assert len(collector.spans) == 4
    running.cancel()
    await exporter.close()


@pytest.mark.parametrize(
    ("endpoint", "path", "host", "port"),
    [
        ("localhost:4317", "", "localhost", 4317),
        ("collector", "", "collector", 443),
        ("[::1]:4317", "", "::1", 4317),
        ("dns:///collector.example:4317", "", "collector.example", 4317),
        ("dns:collector:4317", "", "collector", 4317),
        ("dns://10.0.0.1/collector:4317", "", "collector", 4317),
        ("unix:///run/otlp.sock", "/run/otlp.sock", "", 0),
        ("unix:/run/otlp.sock", "/run/otlp.sock", "", 0),
        ("unix-abstract:otlp", "\0otlp", "", 0),
    ],
)
def test_endpoints(endpoint: str, path: str, host: str, port: int) -> None:
    target = read_target(endpoint)
    assert (target.path, target.host, target.port) == (path, host, port)


@pytest.mark.parametrize("endpoint", ["", ":4317", "a:b:c", "host:99999", "dns:///"])
def test_wrong_endpoints(endpoint: str) -> None:
    with pytest.raises(TargetError):
        read_target(endpoint)
