"""Registers the Node, and keeps its status at the API server up to date.

Owns: the registration, status, labels and annotations of the Node with this node's name; `ApiNode`; the node's part of
`ApiState`.
Reads: `RuntimeReady`, `NodePressure`, `NodeView`, `Mounts`, the runtime's images, and the Node itself (`api_node`).

Rules (`plan_report` decides on a patch):
- A change of an input is sent at once; only images are polled.
- Nothing is sent before the runtime has answered once, or has not answered for some seconds, so that a ready node stays
  ready when the agent restarts.
- A Node that was deleted is created again.

Source: the Kubernetes documentation "Nodes" and "Node Status".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Protocol

from pykubelet.base.api.core import ContainerImage, Node, NodeStatus
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox, Post, make_cell, set_on_change
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Gauge
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.evictions import NodePressure, NodeShutdown
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import ApiNode, ApiState, NodeView, NodeWanted, RuntimeReady
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.proc.boot_time import read_boot_time
from pykubelet.edges.host.proc.self_stats import read_self
from pykubelet.edges.kubeapi.client import PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.node.api_node import NODES, NodeCopy, ReporterClients
from pykubelet.report.node.model import NodeInputs, NodePeriods, NodeRegistration
from pykubelet.report.node.plan_registration import first_node
from pykubelet.report.node.plan_report import LastReport, next_report_at, plan_patch
from pykubelet.report.node.pod_cidr import CidrRuntime, PodCidr
from pykubelet.report.node.render_status import condition_events, node_image, render_status

PRE_KUBELET = Gauge(
    "kubelet_node_startup_pre_kubelet_duration_seconds",
    "Duration in seconds of node startup before kubelet starts.",
)
PRE_REGISTRATION = Gauge(
    "kubelet_node_startup_pre_registration_duration_seconds",
    "Duration in seconds of node startup before registration.",
)
REGISTRATION = Gauge(
    "kubelet_node_startup_registration_duration_seconds", "Duration in seconds of node startup during registration."
)
POST_REGISTRATION = Gauge(
    "kubelet_node_startup_post_registration_duration_seconds",
    "Duration in seconds of node startup after registration.",
)
WHOLE = Gauge("kubelet_node_startup_duration_seconds", "Duration in seconds of node startup in total.")


class NodeStart(Value):
    """The times of the machine's start, the agent's start, the first attempt to register, and its success, in wall seconds."""

    booted_at: float
    agent_at: float
    tried_at: float
    registered_at: float


def record_node_start(start: NodeStart, ready_at: float) -> None:
    """Set the metrics. `ready_at`: when the node became ready (wall seconds)."""
    PRE_KUBELET.set(start.agent_at - start.booted_at)
    PRE_REGISTRATION.set(start.tried_at - start.agent_at)
    REGISTRATION.set(start.registered_at - start.tried_at)
    POST_REGISTRATION.set(ready_at - start.registered_at)
    WHOLE.set(ready_at - start.booted_at)


class NodeStartTimer:
    """Collects the times of a node's start, in wall seconds."""

    def __init__(self) -> None:
        self._tried_at: float | None = None
        self._start: NodeStart | None = None

    def note_attempt(self, now: float) -> None:
        """Note an attempt to register; the first one counts."""
        if self._tried_at is None:
            self._tried_at = now

    def note_registered(self, booted_at: float, agent_at: float, now: float) -> None:
        """Record when the node was registered. All times are wall seconds."""
        self._start = NodeStart(booted_at, agent_at, now if self._tried_at is None else self._tried_at, now)

    def note_ready(self, now: float) -> None:
        """Set the metrics if this run has registered the node, once."""
        if self._start is not None:
            record_node_start(self._start, now)
            self._start = None


log = Log("node")
SETTLE_S = 0.005
#: Seconds that the watch may take to show a Node that was created.
WATCH_S = 2.0
_FORBIDDEN = 403


class ReportedRuntime(CidrRuntime, Protocol):
    """The part of the CRI client that is needed here."""

    async def list_images(self) -> Sequence[pb.Image]:
        """All images of the runtime. Raises CriError."""
        ...


class ReporterCells(Value):
    """The cells of the reporter. `api_node`: takes the contents of the API server's Node. `wanted`: requests to read the Node
    again. `state`: takes the error why the Node's status could not be sent."""

    node: Cell[NodeView]
    api_node: CellWriter[ApiNode]
    runtime: Cell[RuntimeReady]
    pressure: Cell[NodePressure]
    shutdown: Cell[NodeShutdown]
    mounts: Cell[Mounts]
    wanted: Mailbox[NodeWanted] = field(default_factory=lambda: Mailbox("node-wanted"))
    state: CellWriter[ApiState] = field(default_factory=lambda: make_cell("api-state", ApiState())[1])


class NodeReporter:
    """`run` never returns."""

    def __init__(
        self,
        about: NodeRegistration,
        clients: ReporterClients,
        cells: ReporterCells,
        runtime: ReportedRuntime,
        recorder: Post[KubeEvent],
        clock: Clock,
        periods: NodePeriods | None = None,
    ) -> None:
        self._about = about
        self._client = clients.reporting
        self._cells = cells
        self._cri = runtime
        self._recorder = recorder
        self._clock = clock
        self._periods = periods or NodePeriods()
        self._backoff = BackoffPolicy(self._periods.retry, self._periods.retry_max)
        self._changed = asyncio.Event()
        self._copy = NodeCopy(about, clients, cells.api_node, recorder, clock, self._changed, PodCidr(runtime))
        self._images: tuple[ContainerImage, ...] = ()
        self._last = LastReport()
        self._failures = 0
        self._start_timer = NodeStartTimer()

    async def run(self) -> None:
        """Register the node and keep its status at the API server up to date. Never returns."""
        cells = self._cells
        async with Supervisor("node-report") as supervisor:
            with set_on_change(self._changed, cells.node, cells.runtime, cells.pressure, cells.shutdown):
                supervisor.start_root("node-watch", self._copy.follow(self._periods.watch))
                supervisor.start_root("node-images", self._follow_images())
                supervisor.start_root("node-report", self._report_always())
                supervisor.start_root("node-volumes", self._follow_volumes())
                supervisor.start_root("node-wanted", self._copy.read_on_demand(cells.wanted, self._backoff))
                raise await supervisor.wait_failed()

    # Images

    async def _follow_images(self) -> None:
        while True:
            await self._cells.runtime.wait_for(lambda runtime: runtime.ok)
            if await self._read_images():
                self._changed.set()
            await asyncio.sleep(self._periods.images)

    async def _read_images(self) -> bool:
        """Read the runtime's images; True if they have changed."""
        try:
            found = await self._cri.list_images()
        except CriError:
            return False  # `RuntimeReady` shows that the runtime has a problem
        found = sorted(found, key=lambda image: image.id, reverse=True)  # the runtime's order is random
        images = tuple(node_image([*image.repo_digests, *image.repo_tags], image.size) for image in found)
        changed, self._images = images != self._images, images
        return changed

    # Volumes in use

    async def _follow_volumes(self) -> None:
        """Report at once when the volumes in use change: nothing is attached before, and nothing detached. Never returns."""
        reported = self._cells.mounts.get().in_use
        async for mounts in self._cells.mounts.changes():
            if mounts.in_use != reported:
                reported = mounts.in_use
                self._changed.set()

    # Reporting

    async def _report_always(self) -> None:
        await self._wait_first_answer()
        while True:
            self._changed.clear()
            try:
                pause = await self._step()
                self._failures = 0
                self._publish_state("", pause)
            except ApiError as error:
                pause = self._delay_after(error)
                self._publish_state(str(error), pause)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
                    # inputs often change together, especially at the start
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

    def _publish_state(self, error: str, pause: float) -> None:
        known = self._cells.state.get()
        next_at = self._clock.wall() + pause if error or self._copy.node is None else None
        if (error, next_at) != (known.node_error, known.node_next_at):
            since = (known.node_since if known.node_error else self._clock.wall()) if error else None
            self._cells.state.publish(replace(known, node_error=error, node_since=since, node_next_at=next_at))

    def _delay_after(self, error: ApiError) -> float:
        if not self._failures:
            log.warning("cannot report the node's status", error=error, status=error.status or None)
        self._failures += 1
        return max(self._backoff.delay_s(self._failures), error.retry_after_s or 0.0)

    async def _step(self) -> float:
        """Send the request that is due now. Returns the seconds until the next step. Raises ApiError."""
        api_node = self._copy
        if api_node.node is not None:
            await self._report(api_node.node)
        elif self._about.register and api_node.is_known:
            self._last = self._last.of_lost_node()
            if self._clock.monotonic() >= api_node.expected_until:
                await self._register()
            return max(0.01, api_node.expected_until - self._clock.monotonic())
        return self._periods.update * random.uniform(1.0, 1.04)

    async def _register(self) -> None:
        before = NodeStatus()
        self._start_timer.note_attempt(self._clock.wall())
        status = self._render(before)
        try:
            made = await self._client.create(NODES, first_node(self._about, status), Node)
        except ApiError as error:
            may_exist = error.status == _FORBIDDEN and self._about.reads_forbidden
            if not error.already_exists and not may_exist:
                raise
            self._expect_node()
            await self._copy.take_answer(await self._client.get(self._copy.path, Node))
            return
        self._expect_node()
        log.info("node registered", name=self._about.name, node_uid=made.metadata.uid)
        self._start_timer.note_registered(read_boot_time(), read_self().started_at, self._clock.wall())
        due_at = self._clock.monotonic() + self._periods.report
        self._last = replace(self._last, uid=made.metadata.uid, due_at=due_at)
        await self._copy.take_answer(made)
        self._announce(before, status)

    def _expect_node(self) -> None:
        self._copy.expected_until = self._clock.monotonic() + WATCH_S

    async def _report(self, node: Node) -> None:
        now, capacity = self._clock.monotonic(), self._cells.node.get().capacity
        patch = plan_patch(self._about, node, self._render(node.status), capacity, self._last, now)
        if patch is None:
            return
        try:
            newer = await self._client.patch(f"{self._copy.path}/status", patch.body, PatchKind.STRATEGIC, Node)
        except ApiError as error:
            if error.is_not_found:
                self._copy.lose()
                return
            raise
        due_at = next_report_at(now, self._periods.report, random.random(), spread=not patch.is_regular)
        self._last = LastReport(newer.metadata.uid, patch.status, newer.status, due_at)
        await self._copy.take_answer(newer)
        self._announce(node.status, patch.status)

    def _render(self, before: NodeStatus) -> NodeStatus:
        cells = self._cells
        inputs = NodeInputs(
            cells.node.get(),
            cells.runtime.get(),
            cells.pressure.get(),
            self._images,
            cells.mounts.get().in_use,
            cells.shutdown.get().active,
        )
        return render_status(self._about, inputs, before, format_time(self._clock.wall()))

    def _announce(self, before: NodeStatus, after: NodeStatus) -> None:
        """Post the Events of changed conditions."""
        for event in condition_events(self._about.name, before, after):
            self._recorder.post(event)
            if event.reason == "NodeReady":
                self._start_timer.note_ready(self._clock.wall())
