"""Registers the Node and keeps its status at the API server true.

Owns: the Node of our name there, and what `NodeView` says of it (`registered` and all below).
Reads: `RuntimeReady`, `Pressure`, the rest of `NodeView`, the runtime's images, and the Node itself by a watch.

Rules:
- What is told is compared with what the API server has, so a status that somebody changed is put right, and an unchanged
  one costs nothing until `nodeStatusReportFrequency` is over.
- A node that was there before us gets one status right after our start, changed or not.
- A status of which the API server keeps less (it is older than we are) is not told again for that.
- Any change of an input is told at once; only images are looked at by the clock.
- Nothing is told before the runtime has answered once (or has not for some seconds): after a restart of the agent a node
  that is ready stays so.
- A Node that is gone is made again. Whether there is one, only the watch knows: the answer to a request of ours may
  come after the news that its object was deleted.
- Whoever needs the Node as it is now (`NodeWanted`) is told by `read_at` that what was known then was read after that.

Source: the Kubernetes documentation "Nodes" and "Node Status".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

from pykubelet.base.api.core import ContainerImage, Node, NodeStatus, ObjectMeta
from pykubelet.base.api.times import format_time
from pykubelet.base.api.versions import compare_versions
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, CellWriter, make_cell, ringing
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Mailbox, Post
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.apistate import ApiState
from pykubelet.base.model.happenings import Happening, normal
from pykubelet.base.model.node import NodeView, NodeWanted, RuntimeReady
from pykubelet.base.model.pressure import Pressure
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.cgroup_stats import read_boot_time
from pykubelet.edges.host.errors import HostError
from pykubelet.edges.host.mounts import has_attached_volumes
from pykubelet.edges.host.self_stats import read_self
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import Listed, follow
from pykubelet.report.node.model import NodeInputs, NodePeriods, Registration
from pykubelet.report.node.plan_registration import first_node, label_patch, without_stale
from pykubelet.report.node.render_status import (
    condition_events,
    render_annotations,
    render_status,
    same_but_heartbeats,
    seen_from_api,
    status_patch,
    told_image,
)
from pykubelet.report.node.tally import NodeStart, tell_node_start

log = Log("node")
NODES = "/api/v1/nodes"
SETTLE_S = 0.005
#: How long a Node that was made may take to be seen by the watch.
WATCH_S = 2.0
_FORBIDDEN = 403


class ReportedRuntime(Protocol):
    """The part of the CRI client that is needed here."""

    async def list_images(self) -> Sequence[pb.Image]: ...

    async def update_runtime_config(self, pod_cidr: str) -> None: ...


class ReporterClients(Value):
    """`watching` for the Node's watch, `telling` for what must not wait behind anything."""

    watching: ApiClient
    telling: ApiClient


class ReporterCells(Value):
    """`node` is written here as far as it comes from the API server. `wanted`: wishes for the Node as it is now.
    `state`: where to tell why the Node's status is not."""

    node: CellWriter[NodeView]
    runtime: Cell[RuntimeReady]
    pressure: Cell[Pressure]
    wanted: Mailbox[NodeWanted] = field(default_factory=lambda: Mailbox("node-wanted"))
    state: CellWriter[ApiState] = field(default_factory=lambda: make_cell("api-state", ApiState())[1])


class NodeReporter:
    """`run` never returns."""

    def __init__(
        self,
        about: Registration,
        clients: ReporterClients,
        cells: ReporterCells,
        runtime: ReportedRuntime,
        happenings: Post[Happening],
        clock: Clock,
        periods: NodePeriods | None = None,
    ) -> None:
        self._about = about
        self._clients = clients
        self._cells = cells
        self._cri = runtime
        self._happenings = happenings
        self._clock = clock
        self._periods = periods or NodePeriods()
        self._backoff = BackoffPolicy(self._periods.retry, self._periods.retry_max)
        self._bell = asyncio.Event()
        self._listed: Listed[Node] = Listed()
        self._node: Node | None = None
        self._reconciled = ""
        self._images: tuple[ContainerImage, ...] = ()
        # what was told, and what an older API server has made of it: it leaves out what it does not know
        self._kept: tuple[NodeStatus, NodeStatus] | None = None
        self._report_at = float("inf")
        self._failures = 0
        self._watch_until = float("-inf")
        self._pod_cidr = ""
        self._unschedulable = False
        self._tried_at = 0.0
        self._start: NodeStart | None = None
        self._own_labels = cells.node.get().labels

    async def run(self) -> None:
        cells = self._cells
        async with Supervisor("node-report") as supervisor:
            with ringing(self._bell, cells.node.cell, cells.runtime, cells.pressure):
                supervisor.start_root("node-watch", self._follow())
                supervisor.start_root("node-images", self._follow_images())
                supervisor.start_root("node-tell", self._tell_always())
                supervisor.start_root("node-wanted", self._read_when_wanted())
                raise await supervisor.wait_failed()

    # -- the Node as the API server has it

    async def _follow(self) -> None:
        selector = f"metadata.name={self._about.name}"
        listing = follow(self._clients.watching, NODES, Node, self._clock, field_selector=selector)
        async with aclosing(listing):
            async for listed in listing:
                self._listed = listed
                found = listed.items.get(self._about.name)
                if found is not None:
                    await self._take(found)
                elif listed.synced and listed.error is None and self._node is not None:
                    log.warning("the Node is gone from the API server", name=self._about.name)
                    self._lose()
                self._bell.set()

    async def _take_answer(self, found: Node) -> None:
        """What a request of ours has brought: newer than the watch for the Node it knows, and nothing else."""
        known = self._node
        if (known is not None and known.metadata.uid == found.metadata.uid) or _may_not_list(self._listed):
            await self._take(found)

    async def _take(self, found: Node) -> None:
        known = self._node
        if known is not None and not _is_newer(found, known):
            return
        self._node = found
        view = self._cells.node.get()
        newer = seen_from_api(view, found, external_cloud=self._about.external_cloud)
        if newer != view:
            self._cells.node.publish(newer)
        if bool(found.spec.unschedulable) != self._unschedulable:
            self._unschedulable = not self._unschedulable
            self._tell_people("NodeNotSchedulable" if self._unschedulable else "NodeSchedulable")
        await self._use_pod_cidr(",".join(found.spec.podCIDRs) or found.spec.podCIDR)

    def _lose(self) -> None:
        self._node = None
        self._reconciled = ""
        self._watch_until = float("-inf")
        view = self._cells.node.get()
        nothing = Node(metadata=ObjectMeta(labels=dict(self._own_labels)))
        newer = seen_from_api(view, nothing, external_cloud=self._about.external_cloud)
        self._cells.node.publish(replace(newer, registered=False))

    async def _read_when_wanted(self) -> None:
        failures = 0
        while True:
            if not failures:
                await self._cells.wanted.get_all()
            began = self._clock.monotonic()
            try:
                found = await self._clients.telling.get(f"{NODES}/{self._about.name}", Node)
            except ApiError as error:
                if error.is_transient:
                    failures += 1
                    await asyncio.sleep(max(self._backoff.delay_s(failures), error.retry_after_s or 0.0))
                    continue
                if error.is_not_found and self._node is not None:
                    self._lose()
                    self._bell.set()
                self._note_read(began, str(error))
            else:
                await self._take_answer(found)
                self._note_read(began)
            failures = 0

    def _note_read(self, began: float, error: str = "") -> None:
        self._cells.node.publish(replace(self._cells.node.get(), read_at=began, read_error=error))

    async def _use_pod_cidr(self, cidr: str) -> None:
        if cidr in ("", self._pod_cidr):
            return
        try:
            await self._cri.update_runtime_config(cidr)
        except CriError as error:
            log.warning("the runtime does not take the pod CIDR", cidr=cidr, error=error)
            return
        self._pod_cidr = cidr
        log.info("pod CIDR", cidr=cidr)

    # -- what nobody announces

    async def _follow_images(self) -> None:
        while True:
            await self._cells.runtime.wait_for(lambda runtime: runtime.ok)
            if await self._read_images():
                self._bell.set()
            await asyncio.sleep(self._periods.images)

    async def _read_images(self) -> bool:
        """Whether the images are others than before."""
        try:
            found = await self._cri.list_images()
        except CriError:
            return False  # RuntimeReady tells of a runtime in trouble
        found = sorted(found, key=lambda image: image.id, reverse=True)  # the runtime lists them in any order
        images = tuple(told_image([*image.repo_digests, *image.repo_tags], image.size) for image in found)
        changed, self._images = images != self._images, images
        return changed

    # -- telling

    async def _tell_always(self) -> None:
        await self._wait_first_answer()
        while True:
            self._bell.clear()
            try:
                pause = await self._look()
                self._failures = 0
                self._say("", pause)
            except ApiError as error:
                pause = self._delay_after(error)
                self._say(str(error), pause)
            try:
                async with asyncio.timeout(pause):
                    await self._bell.wait()
                    # inputs change together, most of all at the start
                    await asyncio.sleep(SETTLE_S if not self._failures else self._periods.retry)
            except TimeoutError:
                continue

    async def _wait_first_answer(self) -> None:
        try:
            async with asyncio.timeout(self._periods.first_answer):
                await self._cells.runtime.wait_for(lambda runtime: runtime.ok and not runtime.pleg_error)
                await self._read_images()
        except TimeoutError:
            return

    def _say(self, error: str, pause: float) -> None:
        known = self._cells.state.get()
        open_at = self._clock.wall() + pause if error or self._node is None else None
        if (error, open_at) != (known.node_error, known.node_next_at):
            since = (known.node_since if known.node_error else self._clock.wall()) if error else None
            self._cells.state.publish(replace(known, node_error=error, node_since=since, node_next_at=open_at))

    def _delay_after(self, error: ApiError) -> float:
        if not self._failures:
            log.warning("the node's status cannot be told", error=error, status=error.status or None)
        self._failures += 1
        return max(self._backoff.delay_s(self._failures), error.retry_after_s or 0.0)

    async def _look(self) -> float:
        """Do the one thing that is to be done now; in how many seconds to look again. Raises ApiError."""
        node, listed = self._node, self._listed
        pause = self._periods.update * random.uniform(1.0, 1.04)
        if node is not None:
            await self._tell(node)
        elif self._about.register and (listed.synced or _may_not_list(listed)):
            if self._clock.monotonic() >= self._watch_until:
                await self._register()
            pause = max(0.01, self._watch_until - self._clock.monotonic())
        return pause

    async def _register(self) -> None:
        before = NodeStatus()
        self._tried_at = self._tried_at or self._clock.wall()
        status = self._render(before)
        body = first_node(self._about, status)
        try:
            made = await self._clients.telling.create(NODES, body, Node)
        except ApiError as error:
            if not error.already_exists and error.status != _FORBIDDEN:
                raise
            self._watch_until = self._clock.monotonic() + WATCH_S
            await self._take_answer(await self._clients.telling.get(f"{NODES}/{self._about.name}", Node))
            return
        self._watch_until = self._clock.monotonic() + WATCH_S
        log.info("the node is registered", name=self._about.name, uid=made.metadata.uid)
        self._start = NodeStart(read_boot_time(), read_self().started_at, self._tried_at, self._clock.wall())
        self._reconciled = made.metadata.uid
        self._report_at = self._clock.monotonic() + self._periods.report
        await self._take_answer(made)
        self._announce(before, status)

    async def _tell(self, node: Node) -> None:
        first = node.metadata.uid != self._reconciled
        ours = first and self._about.register  # one that others register is theirs, but for what is always ours
        status = self._render(node.status)
        labels = label_patch(self._about, node, first=ours)
        if ours:
            status = without_stale(self._about, status, self._cells.node.get().capacity)
        annotations = render_annotations(self._about, node.metadata.annotations)
        changed = not same_but_heartbeats(status, node.status) and not self._is_known_to_be_kept_so(status, node.status)
        others = bool(labels) or annotations != node.metadata.annotations
        now = self._clock.monotonic()
        if not (first or changed or others or now >= self._report_at):
            return
        patch = status_patch(node, status, annotations, labels)
        path = f"{NODES}/{self._about.name}/status"
        try:
            newer = await self._clients.telling.patch(path, patch, PatchKind.STRATEGIC, Node)
        except ApiError as error:
            if error.is_not_found:
                self._lose()
                self._bell.set()
                return
            raise
        self._reconciled = newer.metadata.uid
        self._kept = (status, newer.status)
        spread = random.uniform(-0.5, 0.5) if first or changed else 0.0
        self._report_at = now + self._periods.report * (1.0 + spread)
        await self._take_answer(newer)
        self._announce(node.status, status)

    def _is_known_to_be_kept_so(self, status: NodeStatus, there: NodeStatus) -> bool:
        """Whether telling `status` would leave `there` as it is, as it did the last time."""
        if self._kept is None:
            return False
        told, answered = self._kept
        return same_but_heartbeats(status, told) and same_but_heartbeats(there, answered)

    def _render(self, before: NodeStatus) -> NodeStatus:
        cells = self._cells
        mounted = bool(before.volumesInUse) and self._are_volumes_mounted()
        inputs = NodeInputs(cells.node.get(), cells.runtime.get(), cells.pressure.get(), self._images, mounted)
        return render_status(self._about, inputs, before, format_time(self._clock.wall()))

    def _are_volumes_mounted(self) -> bool:
        """Asked only while the Node says that volumes are in use. When in doubt they are: a volume that is detached while
        it is mounted loses data."""
        try:
            return has_attached_volumes(self._about.root_dir)
        except HostError as error:
            log.warning("cannot see which volumes are mounted", error=error)
            return True

    def _announce(self, before: NodeStatus, after: NodeStatus) -> None:
        for happening in condition_events(self._about.name, before, after):
            self._happenings.post(happening)
            if happening.reason == "NodeReady" and self._start is not None:
                tell_node_start(self._start, self._clock.wall())
                self._start = None

    def _tell_people(self, reason: str) -> None:
        self._happenings.post(normal(reason, f"Node {self._about.name} status is now: {reason}"))


def _may_not_list(listed: Listed[Node]) -> bool:
    return listed.error is not None and listed.error.status == _FORBIDDEN


def _is_newer(found: Node, known: Node) -> bool:
    """By resource version where both count, which those of Kubernetes do; else what comes later is newer."""
    order = compare_versions(found.metadata.resourceVersion, known.metadata.resourceVersion)
    if found.metadata.uid == known.metadata.uid and order is not None:
        return order > 0
    return found is not known
