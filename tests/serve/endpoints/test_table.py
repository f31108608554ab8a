"""The table of endpoints: none without authorization, none without credentials, and the groups that are switched off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serve.ports import GATES_OF_ENDPOINTS, REACHED, inputs_of, reached, settings_of
from support.api import endpoint_requests
from support.tracing import recorded

from pykubelet.base.api.auth import SubjectAccessReview, SubjectAccessReviewStatus
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.tracing import SpanContext, SpanKind
from pykubelet.base.kit.values import replace
from pykubelet.config.settings import Settings
from pykubelet.net.http.server import Request, Response, ServedConnection
from pykubelet.serve.auth.access import Subresource, attributes_of
from pykubelet.serve.auth.auth_filter import AuthFilter, AuthRules, Reviewers
from pykubelet.serve.endpoints.api_routes import ApiHandler
from pykubelet.serve.endpoints.endpoint import (
    CORE,
    DEBUGGING,
    GET,
    NO_DEBUGGING,
    NOT_FOUND,
    POST,
    Endpoint,
    authorization_rules,
    counted_name,
    listed_paths,
    metric_labels,
)
from pykubelet.serve.endpoints.routes import Router, api_router, read_only_router
from pykubelet.serve.endpoints.table import ENDPOINTS

RULES = authorization_rules(ENDPOINTS)
CONFIG, PROXY = Subresource.CONFIGZ, (Subresource.PROXY,)
AUTH = AuthRules(
    node="n1",
    anonymous=False,
    tokens=False,
    token_ttl_s=1.0,
    always_allow=False,
    allowed_ttl_s=1.0,
    denied_ttl_s=1.0,
    authorization=RULES,
)


def endpoint(path: str, *, authorization: tuple[Subresource, ...] = PROXY, **more: Any) -> Endpoint[object]:
    return Endpoint(path, GET, lambda _: reached(path), authorization, CORE, **more)


async def ask(router: Router, method: str, path: str) -> tuple[int, str]:
    answer = await router.answer(Request(method, path))
    assert isinstance(answer, Response)
    return answer.status, answer.body.decode()


# Tracing


@pytest.mark.parametrize("is_read_only", [True, False])
async def test_a_request_is_traced_as_a_part_of_what_the_client_does(is_read_only: bool) -> None:
    """On the port that needs no credentials, a client cannot make the node record: its span is only linked."""
    table = (endpoint("/new/", below=True, read_only=True), endpoint("/bad", read_only=True))
    router = read_only_router(table, object()) if is_read_only else api_router(table, Settings(), object())
    remote = SpanContext(b"t" * 16, b"s" * 8, is_sampled=True)
    headers = {"traceparent": remote.traceparent}
    with recorded(1_000_000 if is_read_only else 0) as kept:
        await router.answer(Request("GET", "/new/a/b", headers=headers))
        await router.answer(Request("GET", "/none", headers=headers))
    [served] = kept.spans
    assert (served.name, served.kind) == ("/new/", SpanKind.SERVER)
    assert served.attributes == {
        "http.request.method": "GET",
        "http.route": "/new/",
        "url.path": "/new/a/b",
        "http.response.status_code": 200,
    }
    assert (served.context.trace_id == remote.trace_id) is (served.parent_id == remote.span_id) is not is_read_only
    assert served.link == (remote if is_read_only else None)


# Authorization


def test_an_endpoint_without_authorization_cannot_exist() -> None:
    without: Any = Endpoint
    with pytest.raises(TypeError, match="authorization"):
        without(path="/new", methods=GET, handler=lambda _: reached("/new"), group=CORE)
    with pytest.raises(ValueError, match="name the subresources"):
        endpoint("/new", authorization=())


def test_endpoints_below_one_first_segment_declare_the_same() -> None:
    with pytest.raises(ValueError, match="/new/b: another endpoint"):
        authorization_rules((endpoint("/new/a", authorization=(CONFIG,)), endpoint("/new/b")))


@pytest.mark.parametrize("path", ["", "/", "new", "//new"])
def test_a_path_begins_with_a_slash_and_a_name(path: str) -> None:
    with pytest.raises(ValueError, match="begins with"):
        endpoint(path)


@pytest.mark.parametrize(
    ("path", "subresources"),
    [
        ("/pods", "pods proxy"),
        ("/allocatedPods/", "pods proxy"),
        ("/runningpods/", "pods proxy"),
        ("/healthz", "healthz proxy"),
        ("/configz", "configz proxy"),
        ("/flagz", "configz"),
        ("/statusz", "statusz"),
        ("/stats/summary", "stats"),
        ("/metrics", "metrics"),
        ("/logs/", "log"),
        ("/checkpoint/", "checkpoint"),
    ],
)
def test_the_documented_subresources(path: str, subresources: str) -> None:
    """The table of the Kubernetes documentation; every other path needs nodes/proxy."""
    assert " ".join(attributes_of("GET", path, RULES).subresources) == subresources


def test_every_other_endpoint_needs_proxy() -> None:
    fine = {
        "pods",
        "allocatedPods",
        "runningpods",
        "healthz",
        "configz",
        "flagz",
        "statusz",
        "stats",
        "metrics",
        "logs",
        "checkpoint",
    }
    others = {root: rules for root, rules in RULES.items() if root not in fine}
    assert {"exec", "attach", "portForward", "run", "containerLogs", "debug", "page"} == set(others)
    assert set(others.values()) == {PROXY}


segments = st.sampled_from(["", ".", "..", "x", "%2e", *(p for e in ENDPOINTS for p in e.path.split("/") if p)])
paths = st.lists(segments, max_size=5).map("/".join).flatmap(lambda path: st.sampled_from([path, "/" + path]))


@given(paths, st.sampled_from(["GET", "POST", "PUT"]))
def test_a_request_that_reaches_an_endpoint_was_authorized_as_the_endpoint_declares(path: str, method: str) -> None:
    settings = settings_of(page_port=4194, gates=GATES_OF_ENDPOINTS)
    with asyncio.Runner() as runner:
        status, body = runner.run(ask(api_router(REACHED, settings, inputs_of(settings)), method, path))
    if status == 200:
        [found] = [entry for entry in ENDPOINTS if body == f"reached {entry.path}"]
        assert attributes_of(method, path, RULES).subresources == found.authorization


class Reviewer:
    """An API server that allows one subresource."""

    def __init__(self, allowed: str = "") -> None:
        self.allowed = allowed

    async def create(self, path: str, body: Any, kind: Any, query: Mapping[str, str] | None = None) -> Any:
        asked = body.spec.resourceAttributes.subresource
        return SubjectAccessReview(status=SubjectAccessReviewStatus(allowed=asked == self.allowed))


def port(reviewer: Reviewer, settings: Settings) -> ApiHandler:
    auth = AuthFilter(AUTH, Reviewers(reviewer, reviewer), ManualClock())
    return ApiHandler(auth, api_router(REACHED, settings, inputs_of(settings)))


async def asked(handler: ApiHandler, method: str, path: str, user: str = "") -> tuple[int, str]:
    certificate = {"subject": ((("commonName", user),),)} if user else None
    nothing: Any = None
    request = Request(method, path.partition("?")[0])
    answer = await handler.handle(request, ServedConnection(nothing, nothing, "192.0.2.1", certificate))
    assert isinstance(answer, Response)
    return answer.status, answer.body.decode()


@pytest.mark.parametrize("settings", [settings_of(), settings_of(enableDebuggingHandlers=False)], ids=["on", "off"])
async def test_no_request_without_credentials_reaches_an_endpoint(settings: Settings) -> None:
    handler = port(Reviewer("proxy"), settings)
    for method, path in endpoint_requests("web"):
        assert await asked(handler, method, path) == (401, "Unauthorized"), (method, path)


async def test_every_subresource_of_an_endpoint_admits_and_nothing_else() -> None:
    settings = settings_of(page_port=4194, gates=GATES_OF_ENDPOINTS)
    for entry in ENDPOINTS:
        method = "GET" if not entry.methods or "GET" in entry.methods else next(iter(entry.methods))
        for subresource in Subresource:
            status, body = await asked(port(Reviewer(subresource), settings), method, entry.path, "bob")
            if subresource in entry.authorization:
                assert (status, body) == (200, f"reached {entry.path}")
            else:
                tried = " ".join(entry.authorization)
                assert status == 403 and body.endswith(f"subresource(s)=[{tried}])\n")


# The read-only port


def test_a_debugging_endpoint_cannot_be_on_the_read_only_port() -> None:
    with pytest.raises(ValueError, match="read-only port"):
        Endpoint("/new", GET, lambda _: reached("/new"), PROXY, DEBUGGING, read_only=True)


async def test_what_the_read_only_port_shows_is_listed_here_too() -> None:
    """A new endpoint is not shown to clients without credentials by mistake."""
    router = read_only_router(REACHED, inputs_of())
    shown = {
        entry.path for entry in ENDPOINTS if await ask(router, "GET", entry.path) == (200, f"reached {entry.path}")
    }
    assert shown == {
        *("/healthz", "/pods", "/pods/", "/stats/summary", "/stats/summary/"),
        *("/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis"),
    }
    refused = {
        entry.path
        for entry in ENDPOINTS
        if await ask(router, "DELETE", entry.path) == (405, NO_DEBUGGING.body.decode())
    }
    assert refused == {
        *("/exec/", "/attach/", "/portForward/", "/run/", "/containerLogs/", "/runningpods/", "/logs/"),
        "/debug/pprof/",
    }


async def test_an_endpoint_is_not_on_the_read_only_port_unless_its_entry_allows_it() -> None:
    table = endpoint("/new"), endpoint("/shown", read_only=True)
    router = read_only_router(table, None)
    assert await ask(router, "GET", "/new") == (404, NOT_FOUND.body.decode())
    assert await ask(router, "GET", "/shown") == (200, "reached /shown")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/pods", "GET"),
        ("/containerLogs/a/b/c", "GET"),
        ("/runningpods/", "GET"),
        ("/debug/pprof/heap", "GET"),
        ("/stats/summary", "GET, POST"),
        ("/run/a/b/c", "POST"),
    ],
)
async def test_a_method_that_a_path_does_not_have_is_answered_with_those_it_has(path: str, allowed: str) -> None:
    answer = await api_router(REACHED, settings_of(), inputs_of()).answer(Request("DELETE", path))
    assert isinstance(answer, Response)
    assert (answer.status, answer.body, answer.headers) == (405, b"405: Method Not Allowed", {"Allow": allowed})


# Groups


OFF = (405, "Debug endpoints are disabled.\n")
MISSING = (404, "404: Page Not Found")


@pytest.mark.parametrize(
    ("config", "method", "path", "expected"),
    [
        ({"enableDebuggingHandlers": False}, "GET", "/exec/a/b/c", OFF),
        ({"enableDebuggingHandlers": False}, "DELETE", "/logs", OFF),
        ({"enableDebuggingHandlers": False}, "GET", "/debug/pprof/heap", OFF),
        ({"enableDebuggingHandlers": False}, "GET", "/debug/pods", MISSING),
        ({"enableDebuggingHandlers": False}, "PUT", "/debug/flags/v", MISSING),
        ({"enableDebuggingHandlers": False}, "GET", "/configz", MISSING),
        ({"enableDebuggingHandlers": False}, "GET", "/pods", (200, "reached /pods")),
        ({"enableProfilingHandler": False}, "GET", "/debug/pprof/", (405, "profiling endpoint is disabled.\n")),
        ({"enableProfilingHandler": False}, "GET", "/debug/pprof/heap", (405, "profiling endpoint is disabled.\n")),
        ({"enableProfilingHandler": False}, "PUT", "/debug/pprof/", (405, "405: Method Not Allowed")),
        ({"enableDebugFlagsHandler": False}, "PUT", "/debug/flags/v", (405, "flags endpoint is disabled.\n")),
        ({"enableSystemLogHandler": False}, "GET", "/logs/x", (405, "logs endpoint is disabled.\n")),
        ({"gates": {"ContainerCheckpoint": False}}, "POST", "/checkpoint/a/b/c", MISSING),
        ({"gates": {"ComponentStatusz": False}}, "GET", "/statusz", MISSING),
        ({}, "GET", "/allocatedPods", MISSING),
        ({"gates": {"KubeletAllocatedPodsEndpoint": True}}, "GET", "/allocatedPods", (200, "reached /allocatedPods/")),
        (
            {"gates": {"KubeletAllocatedPodsEndpoint": True}},
            "GET",
            "/allocatedPods/a/b",
            (200, "reached /allocatedPods/"),
        ),
        ({}, "GET", "/page/", MISSING),
        ({"page_port": 4194}, "GET", "/page/state", (200, "reached /page/")),
        ({}, "GET", "/runningpods", (200, "reached /runningpods/")),
        ({}, "HEAD", "/stats/summary/", (200, "reached /stats/summary/")),
        ({}, "GET", "/pods/x", MISSING),
        ({}, "GET", "/debug/nodes", MISSING),
    ],
)
async def test_groups_and_paths(config: dict[str, Any], method: str, path: str, expected: tuple[int, str]) -> None:
    settings = settings_of(**config)
    assert await ask(api_router(REACHED, settings, inputs_of(settings)), method, path) == expected


def test_statusz_lists_all_paths_that_are_served() -> None:
    everything = settings_of(page_port=4194, gates=GATES_OF_ENDPOINTS)
    assert listed_paths(ENDPOINTS, everything) == tuple(sorted(entry.path for entry in ENDPOINTS))
    assert listed_paths(ENDPOINTS, settings_of(enableDebuggingHandlers=False)) == tuple(
        sorted(entry.path for entry in ENDPOINTS if entry.read_only)
    )


def test_no_path_is_there_twice() -> None:
    assert len({entry.path for entry in ENDPOINTS}) == len(ENDPOINTS)


# Metric labels


def test_the_label_is_the_path_or_other() -> None:
    labels = metric_labels(ENDPOINTS)
    assert {name for name, (label, _) in labels.items() if label == "other"} == {"page", "metrics/slis"}
    assert all(label in (name, "other") for name, (label, _) in labels.items())
    assert {name for name, (_, is_long) in labels.items() if is_long} == {"exec", "attach", "portForward", "debug"}
    assert [counted_name(path) for path in ("/metrics/slis/x", "/stats/summary", "/", "pods//")] == [
        *("metrics/slis", "stats", "", "pods")
    ]


def test_endpoints_that_are_counted_together_have_the_same_labels() -> None:
    first = endpoint("/new/a")
    with pytest.raises(ValueError, match="counted as 'new'"):
        metric_labels((first, replace(first, path="/new/b", long_running=True)))


def test_methods_are_those_of_http() -> None:
    assert all(entry.methods <= {"GET", "HEAD", "POST", "PUT"} for entry in ENDPOINTS)
    assert [entry.path for entry in ENDPOINTS if entry.methods == POST] == ["/run/", "/checkpoint/"]
