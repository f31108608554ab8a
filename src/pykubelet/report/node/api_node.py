"""The Node object of this node, as the API server has it.

Owns: the newest copy of the Node, and the part of the cell `NodeView` that comes from it (`registered` and all below).
Reads: the Node by a watch, by the answers to requests, and by a request on demand (`NodeWanted`).

Rules:
- Only the watch knows whether there is a Node: the answer to a request may come after the event of its deletion.
- `NodeWanted` asks for the Node as it is now: `read_at` is published when it was read after that.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from pykubelet.base.api.core import Node, ObjectMeta
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Mailbox, Post
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.kube_events import KubeEvent, normal
from pykubelet.base.model.node import NodeView, NodeWanted
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import Listed, follow
from pykubelet.report.node.model import Registration
from pykubelet.report.node.plan_report import is_newer
from pykubelet.report.node.pod_cidr import PodCidr
from pykubelet.report.node.render_status import seen_from_api

log = Log("node")
NODES = "/api/v1/nodes"
_FORBIDDEN = 403


class ReporterClients(Value):
    """`watching`: for the Node's watch. `reporting`: for requests that must not wait behind any other."""

    watching: ApiClient
    reporting: ApiClient


class ApiNode:
    """`changed` is set when there is a newer copy, or none any more. `events`: takes the Events of cordoning.

    `node`: the newest copy; None: there is none. `expected_until`: a Node that was made may take until then to be seen by the
    watch (monotonic seconds).
    """

    def __init__(
        self,
        about: Registration,
        clients: ReporterClients,
        view: CellWriter[NodeView],
        events: Post[KubeEvent],
        clock: Clock,
        changed: asyncio.Event,
        pod_cidr: PodCidr,
    ) -> None:
        self._about = about
        self._clients = clients
        self._view = view
        self._events = events
        self._clock = clock
        self._changed = changed
        self._pod_cidr = pod_cidr
        self._own_labels = view.get().labels
        self._listed: Listed[Node] = Listed()
        self._unschedulable = False
        self.node: Node | None = None
        self.expected_until = float("-inf")

    @property
    def path(self) -> str:
        return f"{NODES}/{self._about.name}"

    @property
    def is_known(self) -> bool:
        """True once the watch shows whether there is a Node, or may not."""
        return self._listed.synced or self._may_not_list

    async def follow(self) -> None:
        """Follow the watch. Never returns."""
        selector = f"metadata.name={self._about.name}"
        listing = follow(self._clients.watching, NODES, Node, self._clock, field_selector=selector)
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
        """Read the Node whenever it is wanted as it is now. Never returns."""
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
        """Take the answer to a request. It is newer than the watch for the Node that is known, and says nothing of another."""
        known = self.node
        if (known is not None and known.metadata.uid == found.metadata.uid) or self._may_not_list:
            await self._take(found)

    def lose(self) -> None:
        """Note that the Node was deleted."""
        self.node = None
        self.expected_until = float("-inf")
        nothing = Node(metadata=ObjectMeta(labels=dict(self._own_labels)))
        view = seen_from_api(self._view.get(), nothing, external_cloud=self._about.external_cloud)
        self._view.publish(replace(view, registered=False))
        self._changed.set()

    @property
    def _may_not_list(self) -> bool:
        return self._listed.error is not None and self._listed.error.status == _FORBIDDEN

    async def _take(self, found: Node) -> None:
        if self.node is not None and not is_newer(found, self.node):
            return
        self.node = found
        view = self._view.get()
        newer = seen_from_api(view, found, external_cloud=self._about.external_cloud)
        if newer != view:
            self._view.publish(newer)
        if bool(found.spec.unschedulable) != self._unschedulable:
            self._unschedulable = not self._unschedulable
            reason = "NodeNotSchedulable" if self._unschedulable else "NodeSchedulable"
            self._events.post(normal(reason, f"Node {self._about.name} status is now: {reason}"))
        await self._pod_cidr.use(",".join(found.spec.podCIDRs) or found.spec.podCIDR)

    def _note_read(self, began: float, error: str = "") -> None:
        self._view.publish(replace(self._view.get(), read_at=began, read_error=error))
