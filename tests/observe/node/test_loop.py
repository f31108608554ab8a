"""The node's view: the addresses on this machine, and the contents of the API server's Node."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from pykubelet.base.api.core import NodeAddress, Taint
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.node import ApiNode, NodeView
from pykubelet.base.model.placement import DeviceResource, Placements
from pykubelet.observe.node.decide import NodeFacts, node_view
from pykubelet.observe.node.loop import NodeLoop, NodeLoopInputs, first_node_view, read_network

#: A name that is an address needs neither an interface nor the resolver.
IP = "192.0.2.1"
NONE = Placements()
FACTS = NodeFacts(IP, "host", labels={"own": "1"})
API_NODE = ApiNode(
    registered=True,
    uid="u1",
    labels={"zone": "a"},
    taints=(Taint(key="k", effect="NoSchedule"),),
    addresses=(
        NodeAddress(type="Hostname", address="host"),
        NodeAddress(type="ExternalIP", address="192.0.2.7"),
        NodeAddress(type="InternalIP", address="10.9.9.9"),
        NodeAddress(type="InternalIP", address="fd00::1"),
    ),
    object_ttl_s=300.0,
)


def own_address() -> str:
    interfaces, _ = read_network()
    return next((a.address for a in interfaces if a.interface != "lo" and not a.is_v6), "")


async def test_the_loop_publishes_the_address_that_was_given() -> None:
    address = own_address()
    if not address:
        pytest.fail("this machine has no IPv4 address but loopback")
    facts = NodeFacts("node", "node", (address,), {"cpu": 2000}, {"cpu": 1900}, {"a": "b"}, (2048,))
    assert first_node_view(facts) == NodeView(
        "node", "node", (address,), {"cpu": 2000}, {"cpu": 1900}, {"a": "b"}, (2048,)
    )
    cell, writer = make_cell("node", NodeView("node", "node"))
    async with Supervisor("test") as supervisor:
        loop = NodeLoop(facts, writer, NodeLoopInputs(make_cell("api-node", ApiNode())[0]), SingleFlight("test"))
        supervisor.start_root("node", loop.run())
        async with asyncio.timeout(60):
            assert (await cell.wait_for(lambda now: bool(now.ips))).ips == (address,)


@pytest.mark.looptime
async def test_addresses_that_stay_the_same_are_published_once() -> None:
    cell, writer = make_cell("node", NodeView(IP, "host"))
    async with Supervisor("test") as supervisor:
        loop = NodeLoop(FACTS, writer, NodeLoopInputs(make_cell("api-node", ApiNode())[0]), SingleFlight("test"))
        supervisor.start_root("node", loop.run())
        await cell.wait_for(lambda now: now.ips == (IP,))
        version = cell.version
        await asyncio.sleep(3600)
        assert cell.version == version


async def test_a_name_that_cannot_be_resolved_does_not_delay_the_api_servers_node() -> None:
    facts = NodeFacts("no-such-host.invalid", "host")
    cell, writer = make_cell("node", first_node_view(facts))
    node, api_node = make_cell("api-node", ApiNode())
    before = cell.get()
    async with Supervisor("test") as supervisor:
        supervisor.start_root("node", NodeLoop(facts, writer, NodeLoopInputs(node), SingleFlight("test")).run())
        api_node.publish(API_NODE)
        async with asyncio.timeout(60):
            view = await cell.wait_for(lambda now: now.registered)
    assert view.ips == before.ips and view.labels == {"zone": "a"}


@pytest.mark.looptime
async def test_a_node_that_is_gone_leaves_the_view_without_it() -> None:
    alone = node_view(FACTS, (IP,), ApiNode(), NONE)
    cell, writer = make_cell("node", first_node_view(FACTS))
    node, api_node = make_cell("api-node", ApiNode())
    async with Supervisor("test") as supervisor:
        supervisor.start_root("node", NodeLoop(FACTS, writer, NodeLoopInputs(node), SingleFlight("test")).run())
        api_node.publish(API_NODE)
        view = await cell.wait_for(lambda now: now.registered)
        assert (view.uid, view.labels, view.ips) == ("u1", {"zone": "a"}, (IP,))
        api_node.publish(ApiNode(read_at=1.0))
        assert await cell.wait_for(lambda now: not now.registered) == replace(alone, read_at=1.0)


@pytest.mark.looptime
async def test_an_answer_on_demand_comes_with_the_contents_that_it_found() -> None:
    """Admission refuses a pod by what the view has at `read_at`: older contents with it would refuse a pod that suits the Node."""
    cell, writer = make_cell("node", first_node_view(FACTS))
    node, api_node = make_cell("api-node", API_NODE)
    seen: list[tuple[float | None, str]] = []

    async def follow() -> None:
        async for view in cell.changes():
            seen.append((view.read_at, view.labels.get("zone", "")))

    async with Supervisor("test") as supervisor:
        supervisor.start_root("reader", follow())
        supervisor.start_root(
            "node", NodeLoop(FACTS, writer, NodeLoopInputs(node), SingleFlight("test"), period_s=0.01).run()
        )
        for number in range(1, 20):
            newer = replace(node.get(), labels={"zone": str(number)})
            api_node.publish(newer)
            await asyncio.sleep(0.003 * (number % 2))
            api_node.publish(replace(newer, read_at=float(number)))
            answer = await cell.wait_for(lambda now: now.read_at == node.get().read_at)
            assert answer.labels["zone"] == str(number)
    assert all(read_at is None or float(zone) >= read_at for read_at, zone in seen)
    assert all(later[0] is not None for earlier, later in itertools.pairwise(seen) if earlier[0] is not None)


def test_addresses_of_the_api_server_count_with_a_cloud_provider_alone() -> None:
    with_provider = node_view(replace(FACTS, external_cloud=True), (IP,), API_NODE, NONE)
    assert with_provider.host_ips == ("10.9.9.9", "fd00::1") and with_provider.ips == (IP,)
    assert node_view(FACTS, (IP,), API_NODE, NONE).host_ips == (IP,)
    assert node_view(replace(FACTS, external_cloud=True), (IP,), ApiNode(), NONE).addresses == ()
    assert node_view(FACTS, (IP,), ApiNode(), NONE).addresses is None


GPU = "example.com/gpu"


@pytest.mark.looptime
async def test_devices_count_in_the_capacity_and_healthy_ones_are_allocatable() -> None:
    facts = replace(FACTS, capacity={"cpu": 2000}, allocatable={"cpu": 1900})
    cell, writer = make_cell("node", first_node_view(facts))
    placements, publish = make_cell("placements", NONE)
    inputs = NodeLoopInputs(make_cell("api-node", ApiNode())[0], placements)
    async with Supervisor("test") as supervisor:
        supervisor.start_root("node", NodeLoop(facts, writer, inputs, SingleFlight("test")).run())
        publish.publish(Placements(devices={GPU: DeviceResource(frozenset("ab"), frozenset("c"))}))
        view = await cell.wait_for(lambda now: GPU in now.capacity)
        assert (view.capacity, view.allocatable) == ({"cpu": 2000, GPU: 3}, {"cpu": 1900, GPU: 2})
        publish.publish(Placements(devices={GPU: DeviceResource(unhealthy=frozenset("abc"), is_stopped=True)}))
        view = await cell.wait_for(lambda now: now.allocatable[GPU] == 0)
        assert view.capacity[GPU] == 3
        publish.publish(Placements(removed_devices=frozenset({GPU})))
        view = await cell.wait_for(lambda now: now.capacity[GPU] == 0)
        assert view.allocatable[GPU] == 0
