"""Requests that a browser makes for a page of another site have no effect on any endpoint, and those under other names get nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from serve.ports import GATES_OF_ENDPOINTS, REACHED, inputs_of, settings_of

from pykubelet.base.api.core import NodeAddress
from pykubelet.base.model.node import NodeView
from pykubelet.net.http.server import Request, Response, ServedConnection
from pykubelet.serve.endpoints.browsers import for_own_hosts, is_own_host, node_names, other_site
from pykubelet.serve.endpoints.endpoint import Endpoint
from pykubelet.serve.endpoints.health import ping_check
from pykubelet.serve.endpoints.routes import (
    Router,
    api_router,
    health_routes,
    read_only_router,
    unauthenticated_handler,
)
from pykubelet.serve.endpoints.table import ENDPOINTS

HOST = "node1:10250"
OWN, OTHER = f"https://{HOST}", "https://evil.example"
SETTINGS = settings_of(page_port=4194, gates=GATES_OF_ENDPOINTS)
#: What a browser sends with a request for another site. A WebSocket and older browsers have `Origin` alone.
FOREIGN: tuple[dict[str, str], ...] = (
    {"origin": OTHER, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"origin": OTHER},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "https://node1"},
    {"origin": f"http://{HOST}"},
    {"origin": f"https://{HOST}.evil.example"},
    {"origin": f"{OWN}, {OTHER}"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "something new"},
    {"origin": OWN, "sec-fetch-site": "cross-site"},
    {"origin": OTHER, "sec-fetch-site": "same-origin"},
    {"origin": OTHER, "authorization": "Basic YTpi"},
)
#: A page of the node itself, programs, and the API server, which passes on the headers of its clients.
FINE: tuple[dict[str, str], ...] = (
    {},
    {"origin": OWN},
    {"origin": OWN.upper(), "sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none"},
    {"origin": OTHER, "authorization": "Bearer abc", "sec-fetch-site": "cross-site"},
    {"origin": OTHER, "x-forwarded-for": "192.0.2.7", "sec-fetch-site": "cross-site"},
)
UPGRADE = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-protocol": "v4.channel.k8s.io"}


def request(method: str, path: str, headers: Mapping[str, str]) -> Request:
    return Request(method, path, headers={"host": HOST, **headers})


async def status_of(router: Router, asked: Request) -> int:
    answer = await router.answer(asked)
    assert isinstance(answer, Response)
    return answer.status


def methods_of(endpoint: Endpoint[Any]) -> list[str]:
    return sorted(endpoint.methods or {"GET", "HEAD", "POST"})


async def test_a_page_of_another_site_may_read_at_most_whatever_the_endpoint() -> None:
    router = api_router(REACHED, SETTINGS, inputs_of(SETTINGS))
    for endpoint in ENDPOINTS:
        for method in methods_of(endpoint):
            for headers in FOREIGN:
                refused = await status_of(router, request(method, endpoint.path, headers)) == 403
                assert refused == (method not in ("GET", "HEAD") or endpoint.has_effect), (method, endpoint.path)
                assert await status_of(router, request(method, endpoint.path, {**headers, **UPGRADE})) == 403
            for headers in FINE:
                for more in ({}, UPGRADE):
                    assert await status_of(router, request(method, endpoint.path, {**headers, **more})) == 200


def test_the_endpoints_whose_get_has_an_effect() -> None:
    assert {endpoint.path for endpoint in ENDPOINTS if endpoint.has_effect} == {
        "/exec/",
        "/attach/",
        "/portForward/",
        "/debug/pprof/",
    }


async def test_the_answer_names_the_site_in_a_bounded_text() -> None:
    router = api_router(REACHED, SETTINGS, inputs_of(SETTINGS))
    answer = await router.answer(request("POST", "/run/a/b/c", {"origin": OTHER}))
    assert answer == Response(403, b"Forbidden: a browser makes this request for another site (https://evil.example)\n")
    long = await router.answer(request("POST", "/run/a/b/c", {"origin": "https://" + "x" * 60_000}))
    assert isinstance(long, Response) and len(long.body) < 400


async def test_the_ports_without_credentials_refuse_it_too() -> None:
    router = read_only_router(REACHED, inputs_of(SETTINGS))
    assert await status_of(router, request("POST", "/stats/summary", {"origin": OTHER})) == 403
    assert await status_of(router, request("POST", "/stats/summary", {"origin": f"http://{HOST}"})) == 200
    nothing: Any = None
    health, connection = health_routes(ping_check()), ServedConnection(nothing, nothing)
    for headers, status in (({"origin": OTHER}, 403), ({}, 200)):
        answer = await health(request("POST", "/healthz", headers), connection)
        assert isinstance(answer, Response) and answer.status == status


def test_the_site_is_the_origin_or_else_the_relation() -> None:
    assert other_site(request("POST", "/", {"origin": OTHER, "sec-fetch-site": "cross-site"}), "https") == OTHER
    assert other_site(request("POST", "/", {"sec-fetch-site": "same-site"}), "https") == "same-site"
    assert other_site(Request("POST", "/", headers={"origin": OWN}), "https") == OWN  # HTTP/1.0 without a host


# Names


@pytest.mark.parametrize(
    "host",
    [
        *("", "127.0.0.1", "127.0.0.1:10255", "192.0.2.1:80", "[::1]:10255", "[fe80::1]", "localhost", "LOCALHOST:1"),
        *("localhost.", "node1:10255", "Node1", "node1.", "machine", "ip-192-0-2-1.internal:10255"),
    ],
)
def test_addresses_localhost_and_the_names_of_the_node_are_served(host: str) -> None:
    addresses = (NodeAddress(address="ip-192-0-2-1.internal", type="InternalDNS"),)
    assert is_own_host(host, node_names(NodeView("node1", "machine", addresses=addresses)))


@pytest.mark.parametrize(
    "host",
    [
        "x",
        "evil.example:10255",
        "node1.evil.example",
        "localhost.evil.example",
        ":80",
        "[node2]:1",
        "[",
        "1.2.3.4.5",
        "node1@x",
    ],
)
def test_other_names_are_not(host: str) -> None:
    assert not is_own_host(host, ("node1",))


async def test_a_port_for_own_hosts_answers_no_other_name() -> None:
    router = read_only_router(REACHED, inputs_of(SETTINGS))
    handler = for_own_hosts(unauthenticated_handler(router), lambda: ("node1",))
    nothing: Any = None
    connection = ServedConnection(nothing, nothing)
    for headers, target, status in (
        ({"host": "node1:10255"}, "/pods", 200),
        ({}, "/pods", 200),
        ({"host": "evil.example:10255"}, "/pods", 403),
        ({"host": "node1"}, "http://evil.example/pods", 403),
        ({"host": "evil.example"}, "http://node1/pods", 200),
    ):
        answer = await handler(Request("GET", "/pods", headers=headers, target=target), connection)
        assert isinstance(answer, Response) and answer.status == status, (headers, target)
