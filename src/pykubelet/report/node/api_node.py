"""Follows the Node object of this node at the API server.

Owns: the newest copy of the Node, and the cell `ApiNode` with the part of it that the agent uses.
Reads the Node by a watch, from the answers to requests, and on demand (`NodeWanted`).

Rules:
- Only the watch decides whether the Node exists, because the answer to a request may arrive after the event of its deletion.
- `NodeWanted` requests a new read of the Node. `read_at` is published after that read, and never before its contents.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from pykubelet.base.api.core import Node
from pykubelet.base.api.selectors import field_selector
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import CellWriter, Mailbox, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.kube_events import KubeEvent, normal
from pykubelet.base.model.node import ApiNode, NodeWanted
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import Listed, WatchPeriods, follow
from pykubelet.report.node.model import NodeRegistration
from pykubelet.report.node.plan_report import is_newer
from pykubelet.report.node.pod_cidr import PodCidr
from pykubelet.report.node.render_status import api_node

log = Log("node")
NODES = "/api/v1/nodes"
_FORBIDDEN = 403


class ReporterClients(Value):
    """The API clients. `watching`: for the Node's watch. `reporting`: for requests that must not wait behind others."""

    watching: ApiClient
    reporting: ApiClient


class NodeCopy:
    """The copy of the Node. `changed` is set when there is a newer copy, or none any more. `events`: takes Events about cordoning.

    `node`: the newest copy; None: there is no Node. `expected_until`: until when the watch may take to show a Node that was
    created (monotonic seconds).
    """

    def __init__(
        self,
        about: NodeRegistration,
        clients: ReporterClients,
        cell: CellWriter[ApiNode],
        events: Post[KubeEvent],
        clock: Clock,
        changed: asyncio.Event,
        pod_cidr: PodCidr,
    ) -> None:
        self._about = about
        self._clients = clients
        self._cell = cell
        self._events = events
        self._clock = clock
        self._changed = changed
        self._pod_cidr = pod_cidr
        self._listed: Listed[Node] = Listed()
        self._unschedulable = False
        self.node: Node | None = None
        self.expected_until = float("-inf")

    @property
    def path(self) -> str:
        """The Node's path at the API server."""
        return f"{NODES}/{self._about.name}"

    @property
    def is_known(self) -> bool:
        """True when the watch has shown whether the Node exists, or is forbidden."""
        return self._listed.synced or self._may_not_list

    async def follow(self, periods: WatchPeriods) -> None:
        """Follow the watch. Never returns."""
        selector = field_selector(("metadata.name", self._about.name))
        client, clock = self._clients.watching, self._clock
        listing = follow(client, NODES, Node, clock, field_selector=selector, periods=periods)
        async with aclosing(listing):
            async for listed in listing:
                self._listed = listed
                found = listed.items.get(self._about.name)
                if found is not None:
                    await self._take(found)
                elif listed.synced and listed.error is None and self.node is not None:
                    log.warning("the Node is gone from the API server", name=self._about.name)
                    self.lose()
                self._changed.set()

    async def read_on_demand(self, wanted: Mailbox[NodeWanted], backoff: BackoffPolicy) -> None:
        """Read the Node on each `NodeWanted`. Never returns."""
        failures = 0
        while True:
            if not failures:
                await wanted.get_all()
            began = self._clock.monotonic()
            try:
                found = await self._clients.reporting.get(self.path, Node)
            except ApiError as error:
                if error.is_transient:
                    failures += 1
                    await asyncio.sleep(max(backoff.delay_s(failures), error.retry_after_s or 0.0))
                    continue
                if error.is_not_found and self.node is not None:
                    self.lose()
                self._note_read(began, str(error))
            else:
                await self.take_answer(found)
                self._note_read(began)
            failures = 0

    async def take_answer(self, found: Node) -> None:
        """Take the answer to a request. It counts if it is about the known Node object, or if the watch is forbidden."""
        known = self.node
        if (known is not None and known.metadata.uid == found.metadata.uid) or self._may_not_list:
            await self._take(found)

    def lose(self) -> None:
        """Note that the Node was deleted."""
        self.node = None
        self.expected_until = float("-inf")
        self._publish(ApiNode())
        self._changed.set()

    @property
    def _may_not_list(self) -> bool:
        return self._listed.error is not None and self._listed.error.status == _FORBIDDEN

    async def _take(self, found: Node) -> None:
        if self.node is not None and not is_newer(found, self.node):
            return
        self.node = found
        self._publish(api_node(found))
        if bool(found.spec.unschedulable) != self._unschedulable:
            self._unschedulable = not self._unschedulable
            reason = "NodeNotSchedulable" if self._unschedulable else "NodeSchedulable"
            self._events.post(normal(reason, f"Node {self._about.name} status is now: {reason}"))
        await self._pod_cidr.use(",".join(found.spec.podCIDRs) or found.spec.podCIDR)

    def _publish(self, contents: ApiNode) -> None:
        """Publish the contents of the Node; the result of the last read on demand is kept."""
        known = self._cell.get()
        newer = replace(contents, read_at=known.read_at, read_error=known.read_error)
        if newer != known:
            self._cell.publish(newer)

    def _note_read(self, began: float, error: str = "") -> None:
        self._cell.publish(replace(self._cell.get(), read_at=began, read_error=error))
