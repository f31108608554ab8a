"""Services have their endpoints as data."""

from __future__ import annotations

from typing import Any

from local_api.reconcile.world import World, thing

from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.services import ApiAddress, services

API = ApiAddress("10.96.0.1", "192.0.2.1", 6443)
SERVICES = services(API)
SLICES = "endpointslices.discovery.k8s.io"


def service(**spec: Any) -> Json:
    fields: Json = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]} | spec
    return thing("Service", "web", "ns", metadata={"labels": {"team": "a"}}, spec=fields)


def pod(name: str, ip: str = "10.0.0.1", ready: str = "True", port: int = 8080, **labels: str) -> Json:
    containers = [{"name": "c", "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}]}]
    status = {"phase": "Running", "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": ready}]}
    spec = {"nodeName": "n", "containers": containers}
    return thing("Pod", name, "ns", metadata={"labels": labels or {"app": "web"}}, spec=spec, status=status)


def slices(world: World) -> list[tuple[list[tuple[str, bool]], list[int]]]:
    return [
        (
            [(item["addresses"][0], item["conditions"]["ready"]) for item in found["endpoints"]],
            [port["port"] for port in found["ports"]],
        )
        for found in world.list(SLICES, "ns")
    ]


def test_the_api_has_its_service() -> None:
    world = World(thing("Namespace", "default"))
    world.settle(SERVICES)
    found, endpoints = world.get("services", "default", "kubernetes"), world.get(SLICES, "default", "kubernetes")
    assert found is not None and endpoints is not None
    assert found["spec"]["clusterIP"] == "10.96.0.1"
    assert endpoints["endpoints"][0]["addresses"] == ["192.0.2.1"]
    world.settle(services(ApiAddress("10.96.0.1", "192.0.2.9", 6443)))
    endpoints = world.get(SLICES, "default", "kubernetes")
    assert endpoints is not None
    assert endpoints["endpoints"][0]["addresses"] == ["192.0.2.9"]


def test_selected_pods_are_endpoints_ready_or_not() -> None:
    world = World(service(), pod("a"), pod("b", "10.0.0.2", "False"), pod("other", "10.0.0.3", app="db"))
    world.settle(SERVICES)
    assert slices(world) == [([("10.0.0.1", True), ("10.0.0.2", False)], [8080])]
    found = world.get("endpoints", "ns", "web")
    assert found is not None
    assert found["subsets"][0]["addresses"][0]["ip"] == "10.0.0.1"
    assert found["subsets"][0]["notReadyAddresses"][0]["ip"] == "10.0.0.2"
    labels = next(iter(world.list(SLICES, "ns")))["metadata"]["labels"]
    assert labels == {
        "team": "a",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }


def test_a_named_port_is_that_of_the_pod() -> None:
    world = World(service(), pod("a"), pod("b", "10.0.0.2", port=9090))
    world.settle(SERVICES)
    assert sorted(ports for _, ports in slices(world)) == [[8080], [9090]]


def test_endpoints_follow_the_pods() -> None:
    world = World(service(), pod("a"))
    world.settle(SERVICES)
    world.remove("pods", "ns", "a")
    world.settle(SERVICES)
    assert slices(world) == [([], [])]
    world.remove("services", "ns", "web")
    world.settle(SERVICES)
    assert slices(world) == []


def test_a_pod_that_is_deleted_is_not_ready() -> None:
    world = World(service(), pod("a"))
    world.delete("pods", "ns", "a")
    world.settle(SERVICES)
    assert slices(world) == [([("10.0.0.1", False)], [8080])]
    conditions = next(iter(world.list(SLICES, "ns")))["endpoints"][0]["conditions"]
    assert conditions == {"ready": False, "serving": True, "terminating": True}


def test_slices_of_others_and_services_without_a_selector_are_left_alone() -> None:
    other = thing("EndpointSlice", "mine", "ns", "discovery.k8s.io/v1", endpoints=[], ports=[])
    world = World(service(selector=None), other)
    assert world.settle(SERVICES) == []
