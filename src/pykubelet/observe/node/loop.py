"""Keeps `NodeView` up to date: the node's addresses and the contents of the API server's Node.

Owns: the cell `NodeView`. Reads: the machine's interfaces and routes, the resolver for the node's name, `ApiNode`, and the
devices in `Placements`. Facts that
do not change while the agent runs (name, resources) are arguments.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.cells import Cell, CellWriter
from pykubelet.base.kit.flight import Done, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.node import ApiNode, NodeView
from pykubelet.base.model.placement import Placements
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.netlink import InterfaceAddress, read_addresses
from pykubelet.edges.host.proc.procfs import DefaultRoute, read_default_routes, resolve_host
from pykubelet.observe.node.decide import Addresses, NodeFacts, choose_addresses, node_view

log = Log("node")
PERIOD_S = 30.0
RESOLVE_DEADLINE_S = 2.0


def read_network() -> tuple[tuple[InterfaceAddress, ...], tuple[DefaultRoute, ...]]:
    """Read addresses and default routes; none if the kernel does not answer."""
    try:
        return read_addresses(), read_default_routes()
    except HostError as error:
        log.warning("cannot read the network interfaces", error=error)
        return (), ()


def first_node_view(facts: NodeFacts) -> NodeView:
    """The first value of the cell `NodeView`, without the answers of the resolver and of the API server."""
    interfaces, routes = read_network()
    return node_view(facts, choose_addresses(facts, interfaces, routes, ()).ips, ApiNode(), Placements())


class NodeLoopInputs(Value):
    """The cells that the loop reads."""

    api_node: Cell[ApiNode]
    placements: Cell[Placements] = field(default_factory=lambda: Cell("placements", Placements()))


class NodeLoop:
    """`run` never returns. The addresses are read every `period_s` seconds; the resolver is called in `flight`, as it may block."""

    def __init__(
        self,
        facts: NodeFacts,
        node: CellWriter[NodeView],
        inputs: NodeLoopInputs,
        flight: SingleFlight,
        period_s: float = PERIOD_S,
    ) -> None:
        self._facts = facts
        self._node = node
        self._inputs = inputs
        self._flight = flight
        self._period_s = period_s
        self._problem = ""

    async def run(self) -> None:
        """Read the addresses periodically and follow `ApiNode`. Never returns."""
        async with Supervisor("node") as supervisor:
            supervisor.start_root("node-addresses", self._follow_addresses())
            supervisor.start_root("node-contents", self._follow_api_node())
            supervisor.start_root("node-devices", self._follow_devices())
            raise await supervisor.wait_failed()

    async def _follow_api_node(self) -> None:
        """Follow `ApiNode` in a task of its own, so that a slow resolver does not delay it."""
        async for _ in self._inputs.api_node.changes():
            self._publish(self._node.get().ips)

    async def _follow_devices(self) -> None:
        """Follow the devices of plugins. Most changes of `Placements` are about pods."""
        known: tuple[object, ...] = ()
        async for now in self._inputs.placements.changes():
            if known and known[0] is now.devices and known[1] is now.removed_devices:
                continue
            known = now.devices, now.removed_devices
            self._publish(self._node.get().ips)

    async def _follow_addresses(self) -> None:
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
            self._publish(found.ips)

    def _publish(self, ips: tuple[str, ...]) -> None:
        newer = node_view(self._facts, ips, self._inputs.api_node.get(), self._inputs.placements.get())
        if newer != self._node.get():
            self._node.publish(newer)
