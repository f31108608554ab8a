"""Where proxied requests go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from local_api.streams.objects import Objects, node, pod, service

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.streams.place import ServerPlace, agent_place, node_place, pod_place, service_place

PORTS = [{"containerPort": 8080, "name": "web"}]


def test_the_agent_is_at_the_nodes_internal_address() -> None:
    assert agent_place(Objects(node(10251, "192.0.2.1")), "n1") == ServerPlace("192.0.2.1", 10251, True, True)


def test_a_node_without_an_address_is_named() -> None:
    bare = {"kind": "Node", "metadata": {"name": "n1"}, "status": {}}
    for view, code, message in (
        (Objects(bare), 500, "no preferred addresses found; known addresses: []"),
        (Objects(), 404, 'nodes "n1" not found'),
    ):
        with pytest.raises(StatusError) as refused:
            agent_place(view, "n1")
        assert (refused.value.code, refused.value.message) == (code, message)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("n1", ServerPlace("192.0.2.1", 10250, True, True)),
        ("n1:10250", ServerPlace("192.0.2.1", 10250, True, True)),
        ("http:n1:10255", ServerPlace("192.0.2.1", 10255)),
        ("https:n1:9100", ServerPlace("192.0.2.1", 9100, True)),
    ],
)
def test_a_node_is_proxied_to_its_agent_or_another_port(wanted: str, expected: ServerPlace) -> None:
    assert node_place(Objects(node(10250, "192.0.2.1")), wanted) == expected


def test_programs_on_loopback_are_not_reached_through_the_node() -> None:
    """They may trust this machine; only the agent, which asks for a certificate, is reached."""
    view = Objects(node(10250))
    assert node_place(view, "n1").is_agent
    with pytest.raises(StatusError, match="address not allowed"):
        node_place(view, "n1:22")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("x", ServerPlace("10.1.0.7", 8080)),
        ("x:", ServerPlace("10.1.0.7", 8080)),
        ("x:81", ServerPlace("10.1.0.7", 81)),
        ("https:x:", ServerPlace("10.1.0.7", 8080, True)),
        ("https:x:444", ServerPlace("10.1.0.7", 444, True)),
    ],
)
def test_a_pod_is_proxied_to_its_first_port_or_the_wanted_one(wanted: str, expected: ServerPlace) -> None:
    view = Objects(pod(containers=[{"name": "app", "ports": PORTS}]))
    assert pod_place(view, "default", wanted) == expected


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        "169.254.169.254",
        "fe80::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.1.1",
        "0.0.0.0",
        "",
        "localhost",
    ],
)
def test_a_pod_cannot_name_an_address_of_this_machine(address: str) -> None:
    with pytest.raises(StatusError) as refused:
        pod_place(Objects(pod(ip=address)), "default", "x")
    assert (refused.value.code, refused.value.message) == (400, "address not allowed")


@pytest.mark.parametrize("wanted", ["", ":80", "ftp:x:80", "a:b:c:d", "x:0", "x:65536", "x:8²", "x:web"])
def test_a_malformed_name_is_refused(wanted: str) -> None:
    with pytest.raises(StatusError) as refused:
        pod_place(Objects(pod()), "default", wanted)
    assert refused.value.message == f'invalid pod request "{wanted}"' or refused.value.code == 404


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("s:http", ServerPlace("10.1.0.7", 8080)),
        ("s:80", ServerPlace("10.1.0.7", 8080)),
        ("https:s:81", ServerPlace("10.1.0.7", 9000, True)),
    ],
)
def test_a_service_is_proxied_to_a_ready_pod(wanted: str, expected: ServerPlace) -> None:
    view = Objects(
        service({"name": "http", "port": 80, "targetPort": "web"}, {"name": "other", "port": 81, "targetPort": 9000}),
        pod("starting", "10.1.0.6", ready=False, containers=[{"name": "app", "ports": PORTS}]),
        pod(containers=[{"name": "app", "ports": PORTS}]),
    )
    assert service_place(view, "default", wanted) == expected


def test_a_service_without_a_selector_has_the_endpoints_that_are_named() -> None:
    named = {
        "kind": "Endpoints",
        "metadata": {"namespace": "default", "name": "s"},
        "subsets": [{"addresses": [{"ip": "127.0.0.1"}, {"ip": "192.0.2.9"}], "ports": [{"port": 99}]}],
    }
    view = Objects(service({"port": 80}, selector={}), named)
    assert service_place(view, "default", "s") == ServerPlace("192.0.2.9", 99)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("s", 'no endpoints available for service "s"'),
        ("s:80", 'no endpoints available for service "s:80"'),
        ("s:82", 'no service port 82 found for service "s"'),
    ],
)
def test_a_service_without_a_ready_pod_is_unavailable(wanted: str, message: str) -> None:
    with pytest.raises(StatusError) as refused:
        service_place(Objects(service({"port": 80}), pod(ready=False)), "default", wanted)
    assert (refused.value.code, refused.value.message) == (503, message)


@pytest.mark.parametrize("find", [pod_place, service_place])
def test_what_is_not_there_is_not_found(find: Callable[..., ServerPlace]) -> None:
    with pytest.raises(StatusError) as refused:
        find(Objects(), "default", "x")
    assert refused.value.code == 404
