"""What the wiring works with: the cells with both their ends, and the machinery that is shared by rooms and is no room."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from pykubelet.act.images.model import Pulls
from pykubelet.act.resources.model import CgroupDriver
from pykubelet.base.kit.cells import Cell, CellWriter, make_cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Flight
from pykubelet.base.kit.heartbeat import Heartbeat
from pykubelet.base.kit.mailbox import Mailbox, Post
from pykubelet.base.kit.values import Value
from pykubelet.base.model.apistate import ApiState
from pykubelet.base.model.content import Content
from pykubelet.base.model.credentials import Credentials
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import NodeView, NodeWanted, RuntimeReady
from pykubelet.base.model.observed import BeingStopped, Observed, PodTouched
from pykubelet.base.model.pressure import Pressure
from pykubelet.base.model.probes import ProbeResults, ProbeWaits
from pykubelet.base.model.recent import Occurrence, Recent
from pykubelet.base.model.roster import ApiPods, Roster, SourceChanged
from pykubelet.base.model.statuses import ReportWaits, Statuses
from pykubelet.base.model.usage import Usage, UsageWanted
from pykubelet.config.settings import Settings
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.proc.machine import Machine
from pykubelet.edges.plugins.credential_config import Providers
from pykubelet.observe.node.runtime import RuntimePeriods
from pykubelet.observe.pleg.decide import RelistPeriods

T = TypeVar("T")


class Slot(Generic[T]):
    """A cell with both ends, for the wiring only. `writers`: the packages that get the writing end, as in ARCHITECTURE.md."""

    def __init__(self, name: str, initial: T, *writers: str) -> None:
        ends: tuple[Cell[T], CellWriter[T]] = make_cell(name, initial)
        self.cell, self.writer = ends
        self.writers = writers


class Cells:
    """All cells of the agent, each with the package that writes it."""

    def __init__(self, node: NodeView) -> None:
        self.roster = Slot("roster", Roster(), "desired/roster")
        self.api_pods = Slot("api-pods", ApiPods(), "desired/sources")
        self.lifecycles = Slot("lifecycles", Lifecycles(), "act/pods")
        self.observed = Slot("observed", Observed(), "observe/pleg")
        self.mounts = Slot("mounts", Mounts(), "act/volumes")
        self.content = Slot("content", Content(), "desired/content")
        self.pulls = Slot("pulls", Pulls(), "act/images")
        self.probes = Slot("probes", ProbeResults(), "observe/probes")
        self.probe_waits = Slot("probe-waits", ProbeWaits(), "observe/probes")
        self.statuses = Slot("statuses", Statuses(), "report/status")
        self.report_waits = Slot("report-waits", ReportWaits(), "report/status")
        self.recent = Slot("recent", Recent(), "report/events")
        self.node = Slot("node", node, "observe/node", "report/node")
        self.runtime = Slot("runtime", RuntimeReady(), "observe/node")
        self.api_state = Slot("api-state", ApiState(), "report/node")
        self.credentials = Slot("credentials", Credentials(), "edges/identity")
        self.pressure = Slot("pressure", Pressure(), "observe/eviction")
        self.roster_heartbeat = Slot("roster-heartbeat", Heartbeat(), "desired/roster")
        self.pods_heartbeat = Slot("pods-heartbeat", Heartbeat(), "act/pods")
        self.usage = Slot("usage", Usage(), "observe/stats")


class Runtime(Value):
    """The connection to the container runtime, and the cgroup driver that it names (`driver_is_known`) or that is configured."""

    client: CriClient
    driver: CgroupDriver
    driver_is_known: bool


class Periods(Value):
    """Seconds between two looks, where nothing announces a change: at the runtime, its pods and images, the node's addresses,
    cgroups, dead containers, certificates, and the lag of the event loop. Simulations of weeks choose longer ones."""

    runtime: RuntimePeriods = RuntimePeriods()
    relist: RelistPeriods = RelistPeriods()
    images_s: float = 30.0
    addresses_s: float = 30.0
    cgroups_s: float = 60.0
    garbage_s: float = 60.0
    certificates_s: float = 60.0
    lag_s: float = 1.0


class Machinery(Value):
    """What is shared by rooms and is no room. `driver_is_known`: False while the runtime, which decides, is away.

    `pod_updates`: where sources post, `sources`: where the roster reads it; gates switch fields of pods off in between.
    """

    settings: Settings
    clock: Clock
    machine: Machine
    cgroups: Cgroups
    cri: CriClient
    flight: Flight
    driver: CgroupDriver
    driver_is_known: bool
    providers: Providers | None
    recorder: Mailbox[KubeEvent]
    touched: Mailbox[PodTouched | BeingStopped]
    sources: Mailbox[SourceChanged]
    pod_updates: Post[SourceChanged]
    outbox: Mailbox[Occurrence]
    usage_wanted: Mailbox[UsageWanted]
    node_wanted: Mailbox[NodeWanted]
    periods: Periods = Periods()


Loops = list[tuple[str, Coroutine[Any, Any, None]]]
