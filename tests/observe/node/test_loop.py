"""The node's addresses on this machine."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.flight import Flight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.node import NodeView
from pykubelet.observe.node.decide import NodeFacts
from pykubelet.observe.node.loop import NodeLoop, first_node_view, read_network


def own_address() -> str:
    interfaces, _ = read_network()
    return next((a.address for a in interfaces if a.interface != "lo" and not a.is_v6), "")


async def test_the_loop_tells_the_address_that_was_given() -> None:
    address = own_address()
    if not address:
        pytest.fail("this machine has no IPv4 address but loopback")
    facts = NodeFacts("node", "node", (address,), {"cpu": 2000}, {"cpu": 1900}, {"a": "b"}, (2048,))
    assert first_node_view(facts) == NodeView(
        "node", "node", (address,), {"cpu": 2000}, {"cpu": 1900}, {"a": "b"}, (2048,)
    )
    cell, writer = make_cell("node", NodeView("node", "node"))
    async with Supervisor("test") as supervisor:
        supervisor.start_root("node", NodeLoop(facts, writer, Flight("test"), 0.01).run())
        async with asyncio.timeout(60):
            assert (await cell.wait_for(lambda now: bool(now.ips))).ips == (address,)
        version = cell.version
        await asyncio.sleep(0.05)
        assert cell.version == version


async def test_a_name_nobody_resolves_does_not_hold_the_node_up() -> None:
    facts = NodeFacts("no-such-host.invalid", "host")
    cell, writer = make_cell("node", first_node_view(facts))
    before = cell.get()
    async with Supervisor("test") as supervisor:
        supervisor.start_root("node", NodeLoop(facts, writer, Flight("test"), 0.01).run())
        await asyncio.sleep(0.1)
    assert cell.get() == before
