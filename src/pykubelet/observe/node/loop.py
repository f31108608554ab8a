"""Keeps the addresses of `NodeView` up to date.

Owns: the cell `NodeView`. Reads: the machine's interfaces and routes, and the resolver for the node's name. Facts that do not
change while the agent runs (name, resources) are handed in. The fields that come from the API's Node (`registered` and all
below it) are published into the same cell by `api_node.py`.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.cells import CellWriter
from pykubelet.base.kit.flight import Done, Flight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import replace
from pykubelet.base.model.node import NodeView
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.netlink import InterfaceAddress, read_addresses
from pykubelet.edges.host.proc.procfs import DefaultRoute, read_default_routes, resolve_host
from pykubelet.observe.node.decide import Addresses, NodeFacts, choose_addresses

log = Log("node")
PERIOD_S = 30.0
RESOLVE_DEADLINE_S = 2.0


def read_network() -> tuple[tuple[InterfaceAddress, ...], tuple[DefaultRoute, ...]]:
    """Read addresses and default routes; none where the kernel gives no answer."""
    try:
        return read_addresses(), read_default_routes()
    except HostError as error:
        log.warning("cannot read the network interfaces", error=error)
        return (), ()


def node_view(facts: NodeFacts, addresses: Addresses) -> NodeView:
    return NodeView(
        name=facts.name,
        hostname=facts.hostname,
        ips=addresses.ips,
        capacity=facts.capacity,
        allocatable=facts.allocatable,
        labels=facts.labels,
        page_sizes=facts.page_sizes,
        addresses=() if facts.external_cloud else None,
    )


def first_node_view(facts: NodeFacts) -> NodeView:
    """The first value of the cell `NodeView`, without the answer of the resolver."""
    interfaces, routes = read_network()
    return node_view(facts, choose_addresses(facts, interfaces, routes, ()))


class NodeLoop:
    """`run` never returns. The addresses are read every `period_s`; the resolver is called in `flight`, as it may block."""

    def __init__(
        self, facts: NodeFacts, node: CellWriter[NodeView], flight: Flight, period_s: float = PERIOD_S
    ) -> None:
        self._facts = facts
        self._node = node
        self._flight = flight
        self._period_s = period_s
        self._problem = ""

    async def run(self) -> None:
        while True:
            self._take(await self._addresses())
            await asyncio.sleep(self._period_s)

    async def _addresses(self) -> Addresses:
        interfaces, routes = read_network()
        found = choose_addresses(self._facts, interfaces, routes, ())
        if not found.ask_resolver:
            return found
        name = self._facts.name
        outcome = await self._flight.run(f"resolve:{name}", lambda: resolve_host(name), RESOLVE_DEADLINE_S)
        resolved = outcome.value if isinstance(outcome, Done) else ()
        return choose_addresses(self._facts, interfaces, routes, resolved)

    def _take(self, found: Addresses) -> None:
        if found.problem != self._problem:
            if found.problem:
                log.warning("the node has no address", error=found.problem)
            self._problem = found.problem
        if found.ips != self._node.get().ips:
            log.info("node addresses", name=self._facts.name, ips=",".join(found.ips))
            self._node.publish(replace(self._node.get(), ips=found.ips))
