"""The parts that the wiring uses: the cells with both their ends, and objects that several components share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pykubelet.base.kit.cells import (
    Cell,
    CellWriter,
    LazyCell,
    LazyCellWriter,
    Mailbox,
    Post,
    make_cell,
    make_lazy_cell,
)
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.heartbeat import Heartbeat
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.claims import Claims
from pykubelet.base.model.content import Content
from pykubelet.base.model.credentials import Credentials
from pykubelet.base.model.diagnostics import Diagnostics
from pykubelet.base.model.evictions import Evictions, NodePressure, NodeShutdown, Reclaimed, ReclaimWanted, SignalStates
from pykubelet.base.model.extensions import AskForValues, ExtensionStates, ExtensionWanted
from pykubelet.base.model.kube_events import KubeEvent, Occurrence, Recent
from pykubelet.base.model.lifecycle import Lifecycles, Starts
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import ApiNode, ApiState, NodeView, NodeWanted, RuntimeReady
from pykubelet.base.model.observed import Observed, PodReadWanted, StopInProgress
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.roster import ApiPods, Roster, SourceChanged
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.usage import Usage, UsageWanted
from pykubelet.config.settings import Settings
from pykubelet.desired.sources.quarantine import Quarantine
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.edges.host.proc.kmsg import KernelLog
from pykubelet.edges.host.proc.machine import Machine
from pykubelet.edges.kubeapi.listwatch import WatchPeriods
from pykubelet.edges.plugins.credential_config import Providers
from pykubelet.observe.eviction.model import AskForRanking, EvictionPeriods
from pykubelet.observe.node.runtime import RuntimePeriods
from pykubelet.observe.pleg.decide import RelistPeriods
from pykubelet.provide.cgroups.model import CgroupDriver

if TYPE_CHECKING:  # what extensions and components are asked by, which most of the start does without
    from pykubelet.act.pods.restarts import AskForRestart
    from pykubelet.act.pods.tools import MakeNeed
    from pykubelet.desired.roster.model import AskExtensions
    from pykubelet.observe.probes.execute import Prober
    from pykubelet.provide.images.model import AskForPull, AskForRemovalOrder
    from pykubelet.provide.placement.cpu_policy import ChooseCpus
    from pykubelet.provide.placement.memory_hints import ChooseNodes
    from pykubelet.provide.volumes.kind import ExtensionVolumes

T = TypeVar("T")


class Slot(Generic[T]):
    """A cell with both ends, for the wiring only. `owner`: the only package that gets the writing end (see ARCHITECTURE.md)."""

    def __init__(self, name: str, initial: T, owner: str) -> None:
        ends: tuple[Cell[T], CellWriter[T]] = make_cell(name, initial)
        self.cell, self.writer = ends
        self.owner = owner


class LazySlot(Generic[T]):
    """A lazy cell with both ends, for the wiring only. `owner`: as in `Slot`."""

    def __init__(self, name: str, initial: T, owner: str) -> None:
        ends: tuple[LazyCell[T], LazyCellWriter[T]] = make_lazy_cell(name, initial)
        self.cell, self.writer = ends
        self.owner = owner


class Cells:
    """All cells of the agent, each with the name of the package that writes it."""

    def __init__(self, node: NodeView) -> None:
        self.roster = Slot("roster", Roster(), "desired/roster")
        self.api_pods = Slot("api-pods", ApiPods(), "desired/sources")
        self.lifecycles = Slot("lifecycles", Lifecycles(), "act/pods")
        self.starts = Slot("starts", Starts(), "act/pods")
        self.pod_diagnostics = LazySlot("pod-diagnostics", Diagnostics(), "act/pods")
        self.observed = Slot("observed", Observed(), "observe/pleg")
        self.mounts = Slot("mounts", Mounts(), "provide/volumes")
        self.volume_diagnostics = LazySlot("volume-diagnostics", Diagnostics(), "provide/volumes")
        self.placements = Slot("placements", Placements(), "provide/placement")
        self.placement_diagnostics = LazySlot("placement-diagnostics", Diagnostics(), "provide/placement")
        self.claims = Slot("claims", Claims(), "provide/claims")
        self.plugins = Slot("plugins", Plugins(), "observe/plugins")
        self.content = Slot("content", Content(), "provide/objects")
        self.image_diagnostics = LazySlot("image-diagnostics", Diagnostics(), "provide/images")
        self.probes = Slot("probes", ProbeResults(), "observe/probes")
        self.probe_diagnostics = LazySlot("probe-diagnostics", Diagnostics(), "observe/probes")
        self.statuses = Slot("statuses", Statuses(), "report/status")
        self.status_diagnostics = LazySlot("status-diagnostics", Diagnostics(), "report/status")
        self.recent = Slot("recent", Recent(), "report/events")
        self.node = Slot("node", node, "observe/node")
        self.api_node = Slot("api-node", ApiNode(), "report/node")
        self.runtime = Slot("runtime", RuntimeReady(), "observe/node")
        self.api_state = Slot("api-state", ApiState(), "report/node")
        self.credentials = Slot("credentials", Credentials(), "edges/identity")
        self.pressure = Slot("pressure", NodePressure(), "observe/eviction")
        self.evictions = Slot("evictions", Evictions(), "observe/eviction")
        self.signals = Slot("signals", SignalStates(), "observe/eviction")
        self.images_reclaimed = Slot("images-reclaimed", Reclaimed(), "provide/images")
        self.containers_reclaimed = Slot("containers-reclaimed", Reclaimed(), "act/runtime")
        self.shutdown = Slot("shutdown", NodeShutdown(), "observe/shutdown")
        self.roster_heartbeat = Slot("roster-heartbeat", Heartbeat(), "desired/roster")
        self.pods_heartbeat = Slot("pods-heartbeat", Heartbeat(), "act/pods")
        self.usage = Slot("usage", Usage(), "observe/stats")
        self.extensions = Slot("extensions", ExtensionStates(), "app/extensions")


class Points(Value):
    """How components ask the extensions (`app/extensions`). None: no extension takes part in these decisions.

    `sources`: those of process extensions, for which the roster waits a while. `needs`: further needs of pods, after all others.
    `prober`: makes what carries out probes from the agent's own.
    `place`, `place_memory`: by the name of the CPU (the Memory) Manager's policy. `volumes`: the process extensions, by name.
    """

    admit: AskExtensions | None = None
    rank_for_eviction: AskForRanking | None = None
    sources: frozenset[str] = frozenset()
    needs: tuple[MakeNeed, ...] = ()
    prober: Callable[[Prober], Prober] | None = None
    place: Mapping[str, ChooseCpus] = field(default_factory=dict)
    place_memory: Mapping[str, ChooseNodes] = field(default_factory=dict)
    rank_images_for_removal: AskForRemovalOrder | None = None
    cgroup: AskForValues | None = None
    pull: AskForPull | None = None
    restart: AskForRestart | None = None
    volumes: Mapping[str, ExtensionVolumes] = field(default_factory=dict)


class Runtime(Value):
    """The connection to the container runtime, and the cgroup driver.

    `driver_is_known`: the runtime was asked for its driver; otherwise `driver` is the configured one.
    """

    client: CriClient
    driver: CgroupDriver
    driver_is_known: bool


class Periods(Value):
    """The periods, in seconds, of reads that no event triggers, and the longest pauses of retries.

    Reads: the runtime, its pods and images, the node's addresses, cgroups, dead containers, certificates, and sockets of plugins.
    `watch`: for watches of the API server. `node_retry_max_s`: for the node's status and Lease.
    `status_retry_max_s`: for pods' statuses and mirror pods while the API server is away. `event_retry_max_s`: for Events.
    Simulations of weeks use longer periods.
    """

    runtime: RuntimePeriods = RuntimePeriods()
    relist: RelistPeriods = RelistPeriods()
    eviction: EvictionPeriods = EvictionPeriods()
    images_s: float = 30.0
    addresses_s: float = 30.0
    cgroups_s: float = 60.0
    garbage_s: float = 60.0
    certificates_s: float = 60.0
    plugins_s: float = 60.0
    watch: WatchPeriods = WatchPeriods()
    node_retry_max_s: float = 7.0
    status_retry_max_s: float = 5.0
    event_retry_max_s: float = 10.0


class SharedParts(Value):
    """The objects that several components share. `driver_is_known`: False if the runtime did not report its cgroup driver yet.

    `pod_updates`: where sources post; `sources`: where the roster reads these events. In between, pods in `quarantine` are replaced by
    stubs, and fields of pods whose feature gate is off are dropped. `kernel_log`: None if it cannot be read, as in a user namespace.
    """

    settings: Settings
    clock: Clock
    machine: Machine
    cgroups: Cgroups
    cri: CriClient
    flight: SingleFlight
    volume_flight: SingleFlight
    quotas: VolumeQuotas
    driver: CgroupDriver
    driver_is_known: bool
    providers: Providers | None
    recorder: Mailbox[KubeEvent]
    touched: Mailbox[PodReadWanted | StopInProgress]
    sources: Mailbox[SourceChanged]
    pod_updates: Post[SourceChanged]
    quarantine: Quarantine
    outbox: Mailbox[Occurrence]
    usage_wanted: Mailbox[UsageWanted]
    node_wanted: Mailbox[NodeWanted]
    images_reclaim: Mailbox[ReclaimWanted]
    containers_reclaim: Mailbox[ReclaimWanted]
    extensions_wanted: Mailbox[ExtensionWanted]
    periods: Periods = Periods()
    kernel_log: KernelLog | None = None

    @property
    def forgets_probes(self) -> bool:
        """Whether containers count as not started after a restart of the agent, until they are probed again."""
        return self.settings.enabled("ChangeContainerStatusOnKubeletRestart")


Loops = list[tuple[str, Coroutine[Any, Any, None]]]
