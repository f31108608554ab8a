"""The wiring: creates the cells and the components, and gives the writing end of each cell to its owner.

Read it from top to bottom to see which components exist, what each reads and what it writes. It contains no logic.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING

from pykubelet.app.advice import advice, read_circumstances
from pykubelet.app.driver import ask_driver, cgroups_of, insist_on_driver
from pykubelet.app.parts import Cells, Loops, Periods, Points, Runtime, SharedParts
from pykubelet.app.prepare import AgentStartError, forget_outdated, kernel_version, prepare_machine
from pykubelet.app.wiring_server import HEALTH_PORT, wire_ports
from pykubelet.app.wiring_tracing import wire_tracing
from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.cells import Mailbox
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import SOURCE_API
from pykubelet.base.model.roster import SourceChanged
from pykubelet.config.settings import Settings
from pykubelet.desired.sources.gated import ALL_ON, GatedPods, field_gates
from pykubelet.desired.sources.quarantine import Quarantine
from pykubelet.edges.cri.client import ContainerdApi, CriClient
from pykubelet.edges.host.cgroups.cgroup_detect import can_limit_cpu
from pykubelet.edges.host.cgroups.cgroup_values import CgroupVersion
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.edges.host.proc.kmsg import KernelLog, open_kernel_log
from pykubelet.edges.host.proc.machine import Machine
from pykubelet.edges.host.proc.procfs import read_hostname
from pykubelet.edges.plugins.credential_config import Providers, load_providers
from pykubelet.observe.node.decide import NodeFacts, node_capacity, node_labels
from pykubelet.observe.node.loop import NodeLoop, NodeLoopInputs, first_node_view
from pykubelet.observe.node.runtime import RuntimeLoop
from pykubelet.provide.cgroups.decide import node_allocatable
from pykubelet.provide.cgroups.execute import PodCgroups
from pykubelet.provide.cgroups.kubelet_cgroup import KubeletCgroup
from pykubelet.provide.cgroups.model import CgroupDriver, NodeResources, ResourcesError, resource_settings
from pykubelet.provide.cgroups.system_cgroup import SystemCgroup
from pykubelet.provide.claims.model import Cache
from pykubelet.provide.claims.state import StateError
from pykubelet.provide.claims.store import STATE_FILE, ClaimStore
from pykubelet.report.events.loop import EventsLoop
from pykubelet.report.status.loop import StatusInputs, StatusLoop
from pykubelet.report.status.memory import StatusMemory
from pykubelet.serve.auth.auth_filter import Reviewers

if TYPE_CHECKING:
    from pykubelet.app.extensions.load import LoadedExtensions
    from pykubelet.app.wiring_cluster import Cluster
    from pykubelet.observe.pleg.loop import Pleg

log = Log("app")
#: The modules that `Agent.start` imports when the ports are open: with the components that they wire, a third of the agent's.
#: `recording` is imported with them because an answer of the root-only socket needs it.
LATE = (
    "pykubelet.act.pods.recording",
    "pykubelet.app.wiring_observe",
    "pykubelet.app.wiring_placement",
    "pykubelet.app.wiring_pods",
    "pykubelet.app.wiring_standalone",
)
#: The longest that their import may take, in seconds: a disk that does not answer ends the start.
IMPORT_DEADLINE_S = 60.0
#: Volumes are set up in few threads of their own: a pod of thousands delays neither the other work of pods nor the event loop.
VOLUME_THREADS = 2
#: The first kernel in which a container at memory.high makes progress.
SOUND_MEMORY_HIGH = (5, 9)
CPU_LIMITS_MISSING = "CPU hardcapping unsupported"
NOT_DELEGATED = (
    " (if no cgroup is delegated to this user namespace: set cgroupsPerQOS: false and enforceNodeAllocatable: [] in the"
    " configuration, or have cgroup v2 and systemd delegate one; see docs/rootless.md)"
)


def status_memory(m: SharedParts) -> StatusMemory:
    """The statuses on disk. They have their own thread, so that they do not wait for blocking work on volumes."""
    return StatusMemory(f"{m.settings.flags.root_dir}/pod_statuses", SingleFlight("statuses", workers=1))


def earlier_statuses(m: SharedParts) -> dict[PodUID, PodStatus]:
    """The statuses that the agent published before its restart; empty if a restart resets the results of probes."""
    return {} if m.forgets_probes else status_memory(m).load()


def load_claims(m: SharedParts) -> tuple[ClaimStore, Cache]:
    """The claims of an earlier run of the agent. Raises AgentStartError for a bad state file."""
    store = ClaimStore(f"{m.settings.flags.root_dir}/{STATE_FILE}", m.flight)
    try:
        return store, store.load()
    except StateError as error:
        raise AgentStartError(str(error)) from error


def make_pod_cgroups(m: SharedParts, facts: NodeFacts, points: Points) -> PodCgroups:
    """provide/cgroups: the cgroups of the node, the QoS classes and the pods."""
    v2 = m.cgroups.version is CgroupVersion.V2
    resources = resource_settings(m.settings, facts.capacity, m.driver, points.cgroup, cgroup_v2=v2)
    if resources.memory_throttle is not None and kernel_version(m.machine) < SOUND_MEMORY_HIGH:
        log.warning("this kernel can stall a container at memory.high: leave out memoryThrottlingFactor", needed="5.9")
    amounts = NodeResources(facts.capacity, facts.page_sizes, m.machine.cpus)
    return PodCgroups(resources, amounts, m.cgroups, m.flight, m.recorder)


async def ensure_root(pod_cgroups: PodCgroups, machine: Machine) -> None:
    """Make the node's cgroups. Raises AgentStartError."""
    try:
        await pod_cgroups.ensure_root()
    except ResourcesError as error:
        raise AgentStartError(f"{error}{NOT_DELEGATED if machine.in_user_namespace else ''}") from error


def wire_home(m: SharedParts) -> Loops:
    """The agent's own cgroup, which it enters first, and that of the system's processes. Raises AgentStartError."""
    config = m.settings.config
    home = KubeletCgroup(m.cgroups, config.kubeletCgroups, config.oomScoreAdj)
    home.enter()
    loops: Loops = [("home", home.run())]
    if config.systemCgroups:
        try:
            system = SystemCgroup(m.cgroups, config.systemCgroups, m.flight)
        except ResourcesError as error:
            raise AgentStartError(str(error)) from error
        loops.append(("system-cgroup", system.run()))
    return loops


def wire_report(m: SharedParts, cells: Cells, facts: NodeFacts, reviewers: Reviewers | None, points: Points) -> Loops:
    """report: statuses, node, events, and the ports that serve them."""
    roster, lifecycles, observed = cells.roster.cell, cells.lifecycles.cell, cells.observed.cell
    node, runtime, probes = cells.node.cell, cells.runtime.cell, cells.probes.cell
    reports_stop_signals = m.settings.enabled("ContainerStopSignals")
    health = m.settings.enabled("ResourceHealthStatus")
    cluster, sandbox = bool(m.settings.flags.kubeconfig), m.settings.enabled("PodReadyToStartContainersCondition")
    inputs = StatusInputs(
        roster,
        lifecycles,
        observed,
        probes,
        node,
        runtime,
        reports_stop_signals,
        cluster,
        sandbox,
        cells.placements.cell,
        health,
        cells.claims.cell,
        m.settings.paths.pods,
        m.settings.behavior.explains_sandbox,
    )
    status = StatusLoop(inputs, cells.statuses.writer, m.clock, m.flight, status_memory(m))
    address_inputs = NodeLoopInputs(cells.api_node.cell, cells.placements.cell)
    address = NodeLoop(facts, cells.node.writer, address_inputs, m.flight, m.periods.addresses_s)
    ready = RuntimeLoop(m.cri, m.clock, cells.runtime.writer, observed, m.periods.runtime)
    outbox = None if m.settings.standalone else m.outbox
    events = EventsLoop(m.recorder, cells.recent.writer, m.clock, outbox)
    return [
        *wire_ports(m, cells, reviewers, points),
        ("status", status.run()),
        ("events", events.run()),
        ("node", address.run()),
        ("runtime", ready.run()),
    ]


async def import_late(flight: SingleFlight) -> None:
    """Import the modules `LATE` in a thread, in which the ports answer. Raises AgentStartError."""
    value_of(
        await flight.run("import", lambda: [import_module(name) for name in LATE], IMPORT_DEADLINE_S),
        lambda _: AgentStartError("the agent's program cannot be read: the disk does not answer"),
    )


class Agent:
    """The running agent. `start` creates all components in order; leaving the context stops them. Containers are left alone.

    `outdated`: set if the runtime reports another cgroup driver than the agent was built with; it must be built again.
    """

    def __init__(
        self,
        m: SharedParts,
        facts: NodeFacts,
        cluster: Cluster | None = None,
        extensions: LoadedExtensions | None = None,
    ) -> None:
        self.cells = Cells(first_node_view(facts))
        self.supervisor = Supervisor("agent")
        self.outdated = asyncio.Event()
        self._m = m
        self._facts = facts
        self._cluster = cluster
        self._extensions = extensions
        self._closing = AsyncExitStack()
        self._closing.push_async_callback(m.cri.close)
        if m.kernel_log is not None:
            self._closing.callback(m.kernel_log.close)
        if cluster is not None:
            self._closing.push_async_callback(cluster.close)

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.supervisor.stop(but=HEALTH_PORT)  # whoever waits for the agent's end asks that port
        await self._closing.aclose()
        await self.supervisor.stop()

    async def start(self) -> None:
        """Create each component and start its loops. The reporting ones come first, so that the health port answers at once.

        Raises AgentStartError.
        """
        m, cells, cluster = self._m, self.cells, self._cluster
        self._begin(wire_tracing(m.settings, self._facts.name, self._closing))
        forget_outdated(m.settings.flags.root_dir)
        claims = load_claims(m)
        earlier = earlier_statuses(m)  # read before the status loop overwrites the file
        self._begin(wire_home(m))
        m.quarantine.load()
        points = self._wire_extensions()
        pod_cgroups = make_pod_cgroups(m, self._facts, points)
        self._begin(wire_report(m, cells, self._facts, cluster.reviewers if cluster else None, points))
        v2 = m.cgroups.version is CgroupVersion.V2
        for event in advice(read_circumstances(m.settings.config, m.machine, m.settings.flags.root_dir, cgroup_v2=v2)):
            m.recorder.post(event)
        if cluster:
            self._begin(cluster.wire_identity(m, cells))
            self._begin(cluster.wire_node(m, cells))
        await import_late(m.flight)
        from pykubelet.app.wiring_observe import wire_observe
        from pykubelet.app.wiring_placement import wire_claims, wire_placement
        from pykubelet.app.wiring_pods import (
            wire_act,
            wire_host_chains,
            wire_images,
            wire_pleg,
            wire_roster,
            wire_sources,
        )
        from pykubelet.app.wiring_standalone import wire_standalone

        tokens = cluster.pull_identity(m) if cluster and m.providers else None
        puller, collector = wire_images(m, cells, tokens, points)
        self._closing.push_async_callback(puller.stop)
        if m.driver_is_known:
            await ensure_root(pod_cgroups, m.machine)
        sources, names = wire_sources(m, cells.node.cell.get().name)
        if cluster:
            self._begin(cluster.wire_content(m, cells))
            sources += cluster.wire_api_source(m, cells)
            names |= {SOURCE_API}
            self._begin(cluster.wire_report(m, cells))
        else:
            self._begin(wire_standalone(m, cells))
        self._begin(sources)
        self._begin(wire_host_chains(m))
        placement, devices = await wire_placement(m, cells, points)
        self._begin(placement)
        self._begin(wire_roster(m, cells, names | points.sources, points))
        self._begin([("pleg", self._run_pleg(wire_pleg(m, cells), pod_cgroups))])
        self._begin(wire_observe(m, cells, earlier, points))
        reclaims = collector.answer_reclaims(m.images_reclaim, cells.images_reclaimed.writer)
        self._begin([("image-gc", collector.run_gc_loop()), ("image-reclaim", reclaims)])
        self._begin(wire_claims(m, cells, claims, cluster.client if cluster else None))
        self._begin(wire_act(m, cells, puller, pod_cgroups, devices, cluster.client if cluster else None, points))

    async def _run_pleg(self, pleg: Pleg, pod_cgroups: PodCgroups) -> None:
        """Run the PLEG. If the runtime did not answer at the start, ask for its cgroup driver first (`driver.py`)."""
        m = self._m
        if not m.driver_is_known:
            await self.cells.runtime.cell.wait_for(lambda runtime: runtime.checked)
            if await insist_on_driver(m.cri, m.driver, m.settings.behavior.runtime_config_required_in) is not m.driver:
                self.outdated.set()
                return
            await ensure_root(pod_cgroups, m.machine)
        await pleg.run()

    def _wire_extensions(self) -> Points:
        if self._extensions is None:
            return Points()
        from pykubelet.app.extensions.wiring import wire_extensions  # most nodes have none

        points, loops = wire_extensions(self._m, self.cells, self._extensions, self._closing)
        self._begin(loops)
        return points

    def _begin(self, loops: Loops) -> None:
        for name, loop in loops:
            self.supervisor.start_root(name, loop)


def node_facts(settings: Settings, machine: Machine, driver: CgroupDriver, version: CgroupVersion) -> NodeFacts:
    """The facts of the node that do not change while the agent runs."""
    config, flags = settings.config, settings.flags
    name = settings.node_name(machine.hostname)
    local_storage = config.localStorageCapacityIsolation is not False
    capacity = node_capacity(machine.capacity(), config.maxPods, config.podsPerCore, local_storage=local_storage)
    return NodeFacts(
        name=name,
        hostname=name,
        node_ips=flags.node_ip,
        capacity=capacity,
        allocatable=node_allocatable(capacity, resource_settings(settings, capacity, driver)),
        labels=node_labels(name, machine.architecture, flags.node_labels),
        page_sizes=machine.page_sizes,
        external_cloud=flags.cloud_provider == "external" and not settings.standalone,
        warning="" if can_limit_cpu(version) else CPU_LIMITS_MISSING,
    )


def read_kernel_log() -> KernelLog | None:
    """The kernel's log; None in a user namespace, where the kernel refuses it. Raises AgentStartError."""
    try:
        opened = open_kernel_log()
    except HostError as error:
        raise AgentStartError(str(error)) from error
    if isinstance(opened, KernelLog):
        return opened
    log.warning("the kernel's log cannot be read, so SystemOOM is not reported", error=opened)
    return None


def extensions_of(settings: Settings) -> LoadedExtensions | None:
    """The extensions that are to be loaded; None if there are none. Raises ConfigError."""
    if not settings.flags.extension:
        return None
    from pykubelet.app.extensions.load import check_policy, load_extensions  # most nodes have none

    extensions = load_extensions(settings.flags.extension)
    check_policy(settings.config, extensions)
    return extensions


async def build_agent(settings: Settings, clock: Clock) -> Agent:
    """Create the agent without starting it. Raises AgentStartError and ConfigError, if possible before any change is made."""
    flags = settings.flags
    settings.node_name(read_hostname())
    providers = None
    if flags.image_credential_provider_config:
        providers = load_providers(
            flags.image_credential_provider_config,
            flags.image_credential_provider_bin_dir,
            tokens=settings.enabled("KubeletServiceAccountTokenForCredentialProviders"),
        )
    extensions = extensions_of(settings)
    cluster = None
    if not settings.standalone:
        from pykubelet.app.wiring_cluster import join_cluster  # a standalone node does not need it

        cluster = join_cluster(settings, clock)
    machine = prepare_machine(settings, settings.paths)
    containerd = ContainerdApi(flags.containerd, flags.containerd_namespace)
    timeout_s = settings.config.runtimeRequestTimeout.s
    cri = CriClient(settings.config.containerRuntimeEndpoint, settings.image_endpoint, timeout_s, containerd)
    configured = CgroupDriver(settings.config.cgroupDriver)
    answered = await ask_driver(cri, configured, settings.behavior.runtime_config_required_in)
    driver = answered or configured
    cgroups = cgroups_of(driver)
    runtime = Runtime(cri, driver, driver_is_known=answered is not None)
    machinery = make_machinery(settings, clock, machine, cgroups, runtime, providers)
    machinery = replace(machinery, kernel_log=read_kernel_log())
    return Agent(machinery, node_facts(settings, machine, driver, cgroups.version), cluster, extensions)


def make_machinery(
    settings: Settings,
    clock: Clock,
    machine: Machine,
    cgroups: Cgroups,
    runtime: Runtime,
    providers: Providers | None = None,
    periods: Periods | None = None,
) -> SharedParts:
    """Create the shared objects, with new mailboxes and threads."""
    sources: Mailbox[SourceChanged] = Mailbox("sources")
    gates = field_gates(settings)
    flight = SingleFlight("work")
    quarantine = Quarantine(settings.flags.root_dir, clock, flight)
    return SharedParts(
        settings=settings,
        clock=clock,
        machine=machine,
        cgroups=cgroups,
        cri=runtime.client,
        flight=flight,
        volume_flight=SingleFlight("volumes", VOLUME_THREADS),
        quotas=VolumeQuotas(is_on=settings.enabled("LocalStorageCapacityIsolationFSQuotaMonitoring")),
        driver=runtime.driver,
        driver_is_known=runtime.driver_is_known,
        providers=providers,
        recorder=Mailbox("recorder"),
        touched=Mailbox("touched"),
        sources=sources,
        pod_updates=quarantine.between(sources if gates == ALL_ON else GatedPods(sources, gates)),
        quarantine=quarantine,
        outbox=Mailbox("outbox"),
        usage_wanted=Mailbox("usage-wanted"),
        node_wanted=Mailbox("node-wanted"),
        images_reclaim=Mailbox("images-reclaim"),
        containers_reclaim=Mailbox("containers-reclaim"),
        extensions_wanted=Mailbox("extensions-wanted"),
        periods=periods or Periods(cgroups_s=settings.flags.global_housekeeping_interval_s),
    )
