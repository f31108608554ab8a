"""Pods get the devices that their resource claims ask for, or report why not."""

from __future__ import annotations

from typing import Any

import pytest
from local_api.reconcile.world import World, thing

from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.binding import binding
from pykubelet_local_api.reconcile.changes import condition_of
from pykubelet_local_api.reconcile.garbage import garbage
from pykubelet_local_api.reconcile.resource_claims import CLAIMS, RESOURCE_CLAIMS

BINDING, GARBAGE = binding(), garbage()

GROUP = "resource.k8s.io/v1"


CEL = 'device.driver.startsWith("x")'
FIRST = {
    "name": "r",
    "firstAvailable": [{"name": "x", "deviceClassName": "gpu", "count": 9}, {"name": "y", "deviceClassName": "gpu"}],
}


def node() -> Json:
    return thing("Node", "n", status={"allocatable": {"pods": "10"}})


def device_class(name: str = "gpu", *expressions: str) -> Json:
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return thing("DeviceClass", name, "", GROUP, spec={"selectors": selectors})


def resource_slice(name: str, *devices: Json, driver: str = "ex.com", generation: int = 1, count: int = 1) -> Json:
    pool = {"name": "n", "generation": generation, "resourceSliceCount": count}
    spec = {"driver": driver, "nodeName": "n", "pool": pool, "devices": list(devices)}
    return thing("ResourceSlice", name, "", GROUP, spec=spec)


def device(name: str, **attributes: Json) -> Json:
    return {"name": name, "attributes": attributes}


def claim(name: str, *requests: Json, **devices: Any) -> Json:
    return thing("ResourceClaim", name, "ns", GROUP, spec={"devices": {"requests": list(requests)} | devices})


def request(name: str = "r", **exact: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": "gpu"} | exact}


def pod(name: str, **reference: str) -> Json:
    spec = {"containers": [{"name": "c", "image": "x"}], "resourceClaims": [{"name": "a"} | reference]}
    return thing("Pod", name, "ns", spec=spec)


def get(world: World, resource: str, name: str) -> Json:
    found = world.get(resource, "ns", name)
    assert found is not None
    return found


def given(world: World, name: str) -> list[str]:
    allocation = get(world, CLAIMS, name).get("status", {}).get("allocation") or {}
    return [result["device"] for result in allocation.get("devices", {}).get("results", ())]


def message(world: World, name: str = "p") -> str:
    return str(condition_of(get(world, "pods", name), "PodScheduled").get("message"))


def test_a_pod_gets_its_device_and_is_bound() -> None:
    world = World(node(), device_class(), resource_slice("s", device("d0"), device("d1")))
    world.add(claim("c", request(count=2)))
    world.add(pod("p", resourceClaimName="c"))
    world.settle(BINDING, RESOURCE_CLAIMS)
    found = get(world, CLAIMS, "c")
    assert given(world, "c") == ["d0", "d1"]
    assert found["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert [consumer["name"] for consumer in found["status"]["reservedFor"]] == ["p"]
    assert found["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["n"]
    assert get(world, "pods", "p")["spec"]["nodeName"] == "n"


def test_devices_of_other_claims_are_not_taken() -> None:
    world = World(node(), device_class(), resource_slice("s", device("d0")))
    world.add(claim("a", request()))
    world.add(claim("b", request()))
    world.add(pod("first", resourceClaimName="a"))
    world.add(pod("second", resourceClaimName="b"))
    world.settle(BINDING, RESOURCE_CLAIMS)
    assert (given(world, "a"), given(world, "b")) == (["d0"], [])
    assert message(world, "second").startswith(
        "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, preemption: "
    )
    world.add(get(world, "pods", "first") | {"status": {"phase": "Succeeded"}})
    world.settle(BINDING, RESOURCE_CLAIMS)
    assert (given(world, "a"), given(world, "b")) == ([], ["d0"])


@pytest.mark.parametrize(
    ("requests", "names"),
    [
        ([request(selectors=[{"cel": {"expression": 'device.driver == "ex.com"'}}])], ["d0"]),
        ([request(selectors=[{"cel": {"expression": 'device.attributes["ex.com"].model == "big"'}}])], ["d1"]),
        ([request(selectors=[{"cel": {"expression": 'device.driver == "ex.com" && device.attributes["ex.com"].size == 2'}}])], ["d2"]),
        ([request(allocationMode="All")], ["d0", "d1", "d2"]),
        ([FIRST], ["d0"]),
    ],
)  # fmt: skip
def test_requests_choose_devices(requests: list[Json], names: list[str]) -> None:
    devices = [device("d0"), device("d1", model={"string": "big"}), device("d2", size={"int": 2})]
    world = World(
        node(), device_class(), resource_slice("s", *devices), claim("c", *requests), pod("p", resourceClaimName="c")
    )
    world.settle(BINDING)
    assert given(world, "c") == names


def test_a_constraint_chooses_devices_that_are_alike() -> None:
    devices = [device(f"d{number}", numa={"int": number % 2}) for number in (0, 1, 3)]
    constraint = {"matchAttribute": "ex.com/numa", "requests": ["r"]}
    world = World(node(), device_class(), resource_slice("s", *devices))
    world.add(claim("c", request(count=2), constraints=[constraint]))
    world.add(pod("p", resourceClaimName="c"))
    world.settle(BINDING)
    assert given(world, "c") == ["d1", "d3"]


@pytest.mark.parametrize(
    ("objects", "text"),
    [
        ([claim("c", request())], "request r: device class gpu does not exist"),
        ([claim("c", request()), device_class("gpu", CEL)], f"selectors of devices in CEL are not supported here: {CEL}"),
        ([claim("c", request()), device_class(), resource_slice("s", device("d0"), count=2)], "cannot allocate all claims"),
        ([], 'resourceclaim "c" not found'),
    ],
)  # fmt: skip
def test_what_cannot_be_allocated_is_named(objects: list[Json], text: str) -> None:
    world = World(node(), pod("p", resourceClaimName="c"), *objects)
    world.settle(BINDING)
    assert text in message(world)
    assert "nodeName" not in get(world, "pods", "p")["spec"]


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old, new = resource_slice("a", device("old")), resource_slice("b", device("new"), generation=2)
    world = World(node(), device_class(), old, new, claim("c", request()), pod("p", resourceClaimName="c"))
    world.settle(BINDING)
    assert given(world, "c") == ["new"]


def test_a_claim_from_a_template_lives_with_its_pod() -> None:
    template = thing("ResourceClaimTemplate", "t", "ns", GROUP, spec={"spec": claim("c", request())["spec"]})
    world = World(node(), device_class(), resource_slice("s", device("d0")), template)
    world.add(pod("p", resourceClaimTemplateName="t"))
    world.settle(BINDING, RESOURCE_CLAIMS, GARBAGE)
    found = get(world, "pods", "p")
    (status,) = found["status"]["resourceClaimStatuses"]
    assert given(world, status["resourceClaimName"]) == ["d0"]
    assert found["spec"]["nodeName"] == "n"
    world.remove("pods", "ns", "p")
    world.settle(BINDING, RESOURCE_CLAIMS, GARBAGE)
    assert world.names(CLAIMS) == []


def test_a_template_that_is_missing_is_reported() -> None:
    world = World(node(), pod("p", resourceClaimTemplateName="t"))
    world.settle(RESOURCE_CLAIMS)
    assert [event["message"] for event in world.list("events")] == [
        'PodResourceClaim a: resource claim template "t": resourceclaimtemplate.resource.k8s.io "t" not found'
    ]


def test_a_deleted_claim_waits_for_its_consumers() -> None:
    world = World(node(), device_class(), resource_slice("s", device("d0")), claim("c", request()))
    world.add(pod("p", resourceClaimName="c"))
    world.settle(BINDING, RESOURCE_CLAIMS)
    world.delete(CLAIMS, "ns", "c")
    world.settle(RESOURCE_CLAIMS)
    assert given(world, "c") == ["d0"]
    world.remove("pods", "ns", "p")
    world.settle(RESOURCE_CLAIMS)
    assert world.names(CLAIMS) == []
