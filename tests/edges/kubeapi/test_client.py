"""What becomes of every way in which a request can fail."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import AsyncIterator

import pytest
from support.api_server import ApiFault, FakeApiServer
from support.logs import logging_restored
from support.tracing import recorded

from pykubelet.base.api.core import Node
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.log import set_up_logging
from pykubelet.base.kit.tracing import SpanKind
from pykubelet.edges.kubeapi.client import DURATIONS, REQUESTS, ApiClient, ClientLimits, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess

pytestmark = pytest.mark.virtual_time

NODES = "/api/v1/nodes"


async def refused(client: ApiClient) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await client.get(f"{NODES}/n", Node)
    return caught.value


async def test_status_429_has_the_time_until_the_next_try(server: FakeApiServer, client: ApiClient) -> None:
    server.faults.append(ApiFault(status=429, reason="TooManyRequests", message="slow down", retry_after_s=3))
    error = await refused(client)
    assert (error.status, error.reason, error.message) == (429, "TooManyRequests", "slow down")
    assert error.retry_after_s == 3.0
    assert error.is_transient


async def test_a_refused_request_leaves_nothing_that_only_a_garbage_collection_frees(
    server: FakeApiServer, client: ApiClient
) -> None:
    """Thousands of optional objects that do not exist would keep the texts of their answers until then."""
    server.faults.append(ApiFault(status=404, reason="NotFound"))
    gc.disable()
    try:
        try:
            await client.get(f"{NODES}/n", Node)
        except ApiError as error:
            kept = weakref.ref(error)
        assert kept() is None
    finally:
        gc.enable()


async def test_a_server_in_trouble_is_worth_another_try(server: FakeApiServer, client: ApiClient) -> None:
    server.faults.append(ApiFault(status=503, reason="ServiceUnavailable"))
    assert (await refused(client)).is_transient
    server.faults.append(ApiFault(status=403, reason="Forbidden"))
    assert not (await refused(client)).is_transient


async def test_a_server_that_accepts_and_never_answers_is_given_up(server: FakeApiServer, hasty: ApiClient) -> None:
    server.faults.append(ApiFault(hang=True))
    error = await refused(hasty)
    assert (error.status, error.reason) == (0, "Timeout")
    assert error.is_transient and "no answer within 0.5 s" in str(error)


async def test_a_connection_that_ends_without_an_answer(server: FakeApiServer, client: ApiClient) -> None:
    server.faults.append(ApiFault(times=2))
    error = await refused(client)
    assert error.status == 0 and error.is_transient


async def test_a_server_that_is_away_and_comes_back(server: FakeApiServer, client: ApiClient) -> None:
    server.create(NODES, {"metadata": {"name": "n"}})
    await client.get(f"{NODES}/n", Node)
    await server.stop()
    error = await refused(client)
    assert (error.status, error.reason) == (0, "Unreachable")
    await server.start()
    assert (await client.get(f"{NODES}/n", Node)).metadata.name == "n"


async def test_an_answer_that_is_no_object(server: FakeApiServer, client: ApiClient) -> None:
    server.create(NODES, {"metadata": {"name": "n"}, "spec": {"taints": "none"}})
    error = await refused(client)
    assert (error.status, error.reason) == (0, "Undecodable")
    assert "spec.taints" in error.message


async def test_requests_beyond_the_burst_wait(server: FakeApiServer) -> None:
    server.create(NODES, {"metadata": {"name": "n"}})
    client = ApiClient(server.access(), SystemClock(), ClientLimits(qps=50, burst=5))
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(client.get(f"{NODES}/n", Node) for _ in range(15)))
    assert loop.time() - began >= 0.19
    assert client.requests == 15
    await client.close()


async def test_a_deadline_does_not_count_the_wait_to_be_sent(server: FakeApiServer) -> None:
    server.create(NODES, {"metadata": {"name": "n"}})
    client = ApiClient(server.access(), SystemClock(), ClientLimits(qps=2, burst=1, deadline_s=1.2))
    await asyncio.gather(*(client.get(f"{NODES}/n", Node) for _ in range(4)))
    await client.close()


async def test_a_request_continues_the_trace_and_is_logged_at_verbosity_six(
    server: FakeApiServer, client: ApiClient, capsys: pytest.CaptureFixture[str]
) -> None:
    with recorded() as kept, logging_restored():
        set_up_logging(6)
        await refused(client)
        set_up_logging(5)
        await refused(client)
    for span, sent in zip(kept.named("HTTP GET"), server.requests, strict=True):
        assert sent.headers["traceparent"] == span.context.traceparent
        assert (span.kind, span.attributes["http.response.status_code"]) == (SpanKind.CLIENT, 404)
        assert span.failure is not None and str(span.attributes["url.full"]).endswith("/api/v1/nodes/n")
    [line] = capsys.readouterr().err.splitlines()
    assert '"Response" logger="kubeapi" verb="GET" url="http://127.0.0.1:' in line and "milliseconds=" in line


async def test_without_a_trace_no_header_is_sent(server: FakeApiServer, client: ApiClient) -> None:
    await refused(client)
    assert "traceparent" not in server.requests[0].headers


async def test_the_user_agent_is_sent(server: FakeApiServer) -> None:
    client = ApiClient(server.access(), SystemClock(), user_agent="kubelet/v1 (linux/amd64)")
    await refused(client)
    assert server.requests[0].headers["user-agent"] == "kubelet/v1 (linux/amd64)"
    await client.close()


def test_the_connection_code_is_only_loaded_by_a_request() -> None:
    code = "import sys, pykubelet.edges.kubeapi.client, pykubelet.edges.kubeapi.listwatch; print('pykubelet.net.http.dial' in sys.modules)"
    import subprocess

    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert answer.stdout.strip() == "False"


async def test_a_server_that_does_not_listen() -> None:
    client = ApiClient(ClusterAccess(server="http://127.0.0.1:1"), SystemClock())
    error = await refused(client)
    assert (error.status, error.reason) == (0, "Unreachable")
    await client.close()


async def test_new_connections_are_asked_for_while_a_request_hangs(server: FakeApiServer) -> None:
    server.create(NODES, {"metadata": {"name": "n"}})
    server.faults.append(ApiFault(hang=True))
    client = ApiClient(server.access(), SystemClock())
    hanging = asyncio.ensure_future(client.get(f"{NODES}/n", Node))
    for _ in range(3000):
        if server.requests:
            break
        await asyncio.sleep(0.01)
    await client.close()
    async with asyncio.timeout(30):
        with pytest.raises(ApiError) as caught:
            await hanging
    assert caught.value.is_transient
    assert (await client.get(f"{NODES}/n", Node)).metadata.name == "n"
    await client.close()


async def test_requests_are_counted_by_what_became_of_them(
    server: FakeApiServer, client: ApiClient, hasty: ApiClient
) -> None:
    server.create(NODES, {"metadata": {"name": "n"}})
    host = server.url.removeprefix("http://")

    def counted() -> list[float]:
        """A server of another test may have had the same port."""
        kinds = (("200", "GET"), ("201", "POST"), ("503", "GET"))
        return [*(REQUESTS.value(code, method, host) for code, method in kinds), DURATIONS.count("GET", host)]

    before = counted()
    await client.get(f"{NODES}/n", Node)
    await client.create(NODES, {"metadata": {"name": "m"}}, Node)
    server.faults.append(ApiFault(status=503))
    await refused(client)
    server.faults.append(ApiFault(hang=True))
    await refused(hasty)
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, 1, 1, 3]


DROP = "application/json;drop=metadata.managedFields, application/json"
MANAGED = {"metadata": {"name": "n", "managedFields": [{"manager": "kubectl", "operation": "Update"}]}}


def accepted(server: FakeApiServer) -> list[str]:
    """The header Accept of each request."""
    return [sent.headers["accept"] for sent in server.requests]


@pytest.fixture
async def dropping(server: FakeApiServer) -> AsyncIterator[ApiClient]:
    """A client that asks for answers without managedFields."""
    client = ApiClient(server.access(), SystemClock(), drops_managed_fields=True)
    yield client
    await client.close()


async def test_managed_fields_are_left_out_where_the_server_can(server: FakeApiServer, dropping: ApiClient) -> None:
    server.create(NODES, MANAGED)
    assert b"managedFields" in await dropping.request("GET", f"{NODES}/n"), "an older server"
    server.drops = True
    for path in (f"{NODES}/n", NODES):
        assert b"managedFields" not in await dropping.request("GET", path)
    stream = await dropping.open(NODES, {"watch": "true"})
    try:
        event = await anext(stream.chunks())
        assert b'"ADDED"' in event and b"managedFields" not in event
    finally:
        stream.close()
    assert set(accepted(server)) == {DROP}


async def test_by_default_the_usual_form_is_asked_for(server: FakeApiServer, client: ApiClient) -> None:
    await refused(client)
    assert accepted(server) == ["application/json"]


@pytest.mark.parametrize("status", [406, 415])
async def test_a_server_that_refuses_the_form_is_asked_for_the_usual_one(
    server: FakeApiServer, dropping: ApiClient, status: int
) -> None:
    server.create(NODES, MANAGED)
    server.faults.append(ApiFault(status=status, reason="NotAcceptable"))
    assert (await dropping.get(f"{NODES}/n", Node)).metadata.name == "n"
    (await dropping.open(NODES, {"watch": "true"})).close()
    assert accepted(server) == [DROP, "application/json", "application/json"]


async def test_a_watch_whose_form_is_refused_is_opened_in_the_usual_one(
    server: FakeApiServer, dropping: ApiClient
) -> None:
    server.faults.append(ApiFault(status=406, watch=True))
    (await dropping.open(NODES, {"watch": "true"})).close()
    await refused(dropping)
    assert accepted(server) == [DROP, "application/json", "application/json"]


async def test_a_request_that_is_refused_in_every_form_changes_nothing(
    server: FakeApiServer, dropping: ApiClient
) -> None:
    server.create(NODES, MANAGED)
    server.faults.append(ApiFault("PATCH", status=415, reason="UnsupportedMediaType", times=-1))
    with pytest.raises(ApiError) as caught:
        await dropping.patch(f"{NODES}/n", {}, PatchKind.STRATEGIC, Node)
    assert caught.value.status == 415
    await dropping.get(f"{NODES}/n", Node)
    assert accepted(server) == [DROP, "application/json", DROP]
