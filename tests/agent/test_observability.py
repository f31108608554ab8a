"""What an operator sees of a pod's start from outside: spans at a collector, and log lines in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from support.agent import Agent, make_pod

from pykubelet.edges.otlp import otlp_pb2 as otlp
from pykubelet.edges.otlp.exporter import METHOD

pytestmark = pytest.mark.integration
CALLS = ("RunPodSandbox", "CreateContainer", "StartContainer")


@pytest.fixture
def collector() -> Iterator[tuple[int, list[otlp.ResourceSpans]]]:
    """The port of a collector, and what it has got."""
    got: list[otlp.ResourceSpans] = []

    def export(body: bytes, _: object) -> bytes:
        got.extend(otlp.ExportTraceServiceRequest.FromString(body).resource_spans)
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {METHOD.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHOD.split("/")[1], handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port, got
    server.stop(None)


async def test_a_pods_start_is_a_trace_and_its_log_is_json(
    make_agent: Callable[..., Agent], collector: tuple[int, list[otlp.ResourceSpans]]
) -> None:
    port, got = collector
    tracing = {"endpoint": f"127.0.0.1:{port}", "samplingRatePerMillion": 1_000_000}
    agent = make_agent(tracing=tracing, logging={"format": "json", "verbosity": 4}).start()
    agent.put(make_pod("traced"))
    await agent.wait_running("traced")
    assert agent.stop() == 0, "what is left is exported at the end"
    spans = [span for resource in got for scope in resource.scope_spans for span in scope.spans]
    assert {(attribute.key, attribute.value.string_value) for attribute in got[0].resource.attributes} >= {
        ("service.name", "kubelet")
    }
    [sync] = [span for span in spans if span.name == "syncPod" and b"traced" in span.SerializeToString()][:1]
    for call in CALLS:
        [span] = [span for span in spans if span.name == f"runtime.v1.RuntimeService/{call}"]
        assert (span.trace_id, span.parent_span_id) == (sync.trace_id, sync.span_id), call
        assert sync.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano, call
    entries = [json.loads(line) for line in agent.log_text().splitlines()]
    assert all({"ts", "caller", "msg"} <= entry.keys() for entry in entries)
    latencies = {entry["latency"] for entry in entries if entry["msg"] == "HTTP"}
    assert latencies and "0.000ms" not in latencies
    [pod] = [entry["pod"] for entry in entries if entry["msg"] == "pod is desired"]
    assert pod["name"].startswith("traced") and pod["namespace"] == "default"
