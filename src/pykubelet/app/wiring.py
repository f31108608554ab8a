"""The wiring: creates the cells and the components, and gives the writing end of each cell to its owner.

Read it from top to bottom to see which components exist, what each reads and what it writes. It contains no logic.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from pykubelet.act.network.loop import HostChains
from pykubelet.act.pods.decide import Rules
from pykubelet.act.pods.hooks import HookRecords
from pykubelet.act.pods.loop import PodInputs, PodOutputs, PodsLoop
from pykubelet.act.pods.needs import NEEDS
from pykubelet.act.pods.tools import PodCells, PodTools
from pykubelet.act.runtime.collect.gc import ContainerCollector, GcInputs, gc_settings
from pykubelet.act.runtime.collect.log_rotation import LogRotation, rotation_settings
from pykubelet.act.runtime.lifecycle.hooks import HookRunner
from pykubelet.act.runtime.lifecycle.resize import ContainerResizer
from pykubelet.act.runtime.lifecycle.sandbox import SandboxCells, Sandboxes
from pykubelet.act.runtime.lifecycle.start import ContainerStarter
from pykubelet.act.runtime.lifecycle.stop import ContainerStopper
from pykubelet.act.runtime.lifecycle.userns import UserNamespaceManager
from pykubelet.act.runtime.render.context import render_settings
from pykubelet.app.advice import advice, read_circumstances
from pykubelet.app.driver import ask_driver, cgroups_of, insist_on_driver
from pykubelet.app.parts import Cells, Loops, Periods, Points, Runtime, SharedParts
from pykubelet.app.prepare import AgentStartError, app_armor_enabled, forget_outdated, kernel_version, prepare_machine
from pykubelet.app.wiring_observe import forgets_probes, wire_observe
from pykubelet.app.wiring_placement import load_claims, wire_claims, wire_placement
from pykubelet.app.wiring_server import HEALTH_PORT, wire_ports
from pykubelet.app.wiring_standalone import wire_standalone
from pykubelet.app.wiring_tracing import wire_tracing
from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.cells import Mailbox
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import SOURCE_API, SOURCE_FILE, SOURCE_HTTP
from pykubelet.base.model.roster import SourceChanged
from pykubelet.base.model.selinux import SelinuxHost
from pykubelet.config.settings import Settings
from pykubelet.desired.roster.holders import HolderMemory
from pykubelet.desired.roster.loop import RosterInputs, RosterLoop
from pykubelet.desired.roster.model import admission_rules
from pykubelet.desired.roster.size_memory import SizeMemory
from pykubelet.desired.sources.decode import manifest_rules
from pykubelet.desired.sources.file import FileSource
from pykubelet.desired.sources.gated import ALL_ON, GatedPods, field_gates
from pykubelet.desired.sources.quarantine import Quarantine
from pykubelet.desired.sources.url import UrlSource
from pykubelet.edges.cri.client import ContainerdApi, CriClient
from pykubelet.edges.host.cgroups.cgroup_detect import can_limit_cpu, can_limit_swap
from pykubelet.edges.host.cgroups.cgroup_values import CgroupVersion
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.edges.host.proc.kmsg import KernelLog, open_kernel_log
from pykubelet.edges.host.proc.machine import Machine
from pykubelet.edges.host.proc.procfs import read_hostname
from pykubelet.edges.host.selinux import read_selinux
from pykubelet.edges.plugins.credential_config import Providers, load_providers
from pykubelet.edges.plugins.credential_provider import run_provider
from pykubelet.edges.plugins.pull_credentials import read_docker_configs
from pykubelet.observe.node.decide import NodeFacts, node_capacity, node_labels
from pykubelet.observe.node.loop import NodeLoop, NodeLoopInputs, first_node_view
from pykubelet.observe.node.runtime import RuntimeLoop
from pykubelet.observe.pleg.loop import Pleg, PlegCells
from pykubelet.provide.cgroups.decide import node_allocatable
from pykubelet.provide.cgroups.execute import PodCgroups
from pykubelet.provide.cgroups.kubelet_cgroup import KubeletCgroup
from pykubelet.provide.cgroups.loop import ResourceInputs, ResourcesLoop
from pykubelet.provide.cgroups.model import CgroupDriver, NodeResources, ResourcesError, resource_settings
from pykubelet.provide.cgroups.system_cgroup import SystemCgroup
from pykubelet.provide.images.credentials import PullCredentials
from pykubelet.provide.images.execute import ImagePuller
from pykubelet.provide.images.gc import ImageCollector
from pykubelet.provide.images.model import image_settings
from pykubelet.provide.images.providers import CredentialProviders, TokenSource
from pykubelet.provide.images.record_store import RecordStore
from pykubelet.provide.placement.devices.device_plugins import NodeDevicePlugins
from pykubelet.provide.volumes.execute import VolumeAdapters
from pykubelet.provide.volumes.expand import ApiAttachments, ApiClaims, Expander
from pykubelet.provide.volumes.loop import VolumeInputs, Volumes
from pykubelet.provide.volumes.subpath import Subpaths
from pykubelet.report.events.loop import EventsLoop
from pykubelet.report.status.loop import StatusInputs, StatusLoop
from pykubelet.report.status.memory import StatusMemory
from pykubelet.serve.auth.auth_filter import Reviewers

if TYPE_CHECKING:
    from pykubelet.app.extensions.load import LoadedExtensions
    from pykubelet.app.wiring_cluster import Cluster
    from pykubelet.edges.kubeapi.client import ApiClient

log = Log("app")
#: Volumes are set up in few threads of their own: a pod of thousands delays neither the other work of pods nor the event loop.
VOLUME_THREADS = 2
#: The first kernel in which a container at memory.high makes progress.
SOUND_MEMORY_HIGH = (5, 9)
CPU_LIMITS_MISSING = "CPU hardcapping unsupported"
NOT_DELEGATED = (
    " (if no cgroup is delegated to this user namespace: set cgroupsPerQOS: false and enforceNodeAllocatable: [] in the"
    " configuration, or have cgroup v2 and systemd delegate one; see docs/rootless.md)"
)


def wire_sources(m: SharedParts, node_name: str) -> tuple[Loops, frozenset[str]]:
    """desired/sources: each posts to the roster. Returns the loops and the names of the sources to wait for."""
    settings, config = m.settings, m.settings.config
    loops: Loops = [("quarantine", m.quarantine.run())]
    names = set()
    rules = manifest_rules(settings, node_name, m.quarantine.problem)
    if config.staticPodPath:
        period = settings.config.fileCheckFrequency.s
        source = FileSource(config.staticPodPath, rules, period, m.pod_updates, m.clock, m.flight)
        loops.append(("manifests", source.run()))
        names.add(SOURCE_FILE)
    if config.staticPodURL:
        headers, period = config.staticPodURLHeader, settings.config.httpCheckFrequency.s
        url = UrlSource(config.staticPodURL, headers, rules, period, m.pod_updates, m.clock)
        loops.append(("manifest-url", url.run()))
        names.add(SOURCE_HTTP)
    return loops, frozenset(names)


def wire_roster(m: SharedParts, cells: Cells, expected: frozenset[str], points: Points) -> Loops:
    """desired/roster: writes Roster. `expected`: the sources that must deliver their pods before Roster is ready."""
    rules = admission_rules(m.settings, kernel_version(m.machine), points.admit, app_armor=app_armor_enabled())
    sizes = SizeMemory(m.settings.flags.root_dir, m.flight)
    holders = HolderMemory(m.settings.flags.root_dir, m.flight)
    in_cluster = bool(m.settings.flags.kubeconfig)
    inputs = RosterInputs(
        cells.node.cell,
        cells.runtime.cell,
        cells.observed.cell,
        cells.lifecycles.cell,
        cells.shutdown.cell,
        cells.pressure.cell,
        sizes.load(m.clock.wall()) if in_cluster else {},
        m.node_wanted,
        cells.roster_heartbeat.writer,
        cells.placements.cell,
        cells.mounts.cell,
        holders.load(),
    )
    roster = RosterLoop(m.sources, expected, inputs, rules, cells.roster.writer, m.recorder, m.clock)
    return [
        ("roster", roster.run()),
        ("pod-sizes", sizes.follow(cells.roster.cell, resizable=in_cluster)),
        ("static-pods", holders.follow(cells.roster.cell)),
    ]


def status_memory(m: SharedParts) -> StatusMemory:
    """The statuses on disk. They have their own thread, so that they do not wait for blocking work on volumes."""
    return StatusMemory(f"{m.settings.flags.root_dir}/pod_statuses", SingleFlight("statuses", workers=1))


def wire_pleg(m: SharedParts, cells: Cells) -> Pleg:
    """observe/pleg: writes Observed. No pod is acted on before the first relist."""
    pleg_cells = PlegCells(cells.observed.writer, cells.runtime.cell)
    return Pleg(m.cri, m.clock, pleg_cells, m.touched, m.periods.relist, m.recorder)


def earlier_statuses(m: SharedParts) -> dict[PodUID, PodStatus]:
    """The statuses that the agent published before its restart; empty if a restart resets the results of probes."""
    return {} if forgets_probes(m) else status_memory(m).load()


def wire_images(
    m: SharedParts, cells: Cells, tokens: TokenSource | None, points: Points
) -> tuple[ImagePuller, ImageCollector]:
    """provide/images: the puller pulls images; the collector removes unused ones."""
    settings = image_settings(m.settings, points.rank_images_for_removal, points.pull)
    records = RecordStore(settings.records_dir, m.clock)
    records.load()
    plugins = CredentialProviders(m.providers.configs, run_provider, m.clock, tokens) if m.providers else None
    root = m.settings.flags.root_dir
    credentials = PullCredentials(partial(read_docker_configs, root), plugins)
    puller = ImagePuller(m.cri, credentials, records, m.clock, settings, cells.image_diagnostics.writer, m.recorder)
    lifecycles = cells.lifecycles.cell
    collector = ImageCollector(m.cri, records, m.clock, settings, lifecycles, m.recorder)
    return puller, collector


def _make_volumes(
    m: SharedParts, cells: Cells, client: ApiClient | None, selinux: SelinuxHost, points: Points
) -> Volumes:
    """provide/volumes: writes Mounts."""
    node, settings = cells.node.cell, m.settings
    inputs = VolumeInputs(
        cells.roster.cell,
        cells.lifecycles.cell,
        cells.observed.cell,
        node,
        cells.content.cell,
        cells.plugins.cell,
        cells.api_node.cell,
        selinux,
        settings.config.enableControllerAttachDetach is not False,
        settings.enabled("InPlacePodVerticalScalingMemoryBackedVolumes"),
        cells.extensions.cell if points.volumes else None,
    )
    expander = Expander(ApiClaims(client) if client is not None else None, node.get().name, m.clock, m.recorder)
    attachments = ApiAttachments(client) if client is not None else None
    edges = VolumeAdapters(m.quotas, m.volume_flight, expander, attachments, points.volumes)
    outputs = cells.mounts.writer, cells.volume_diagnostics.writer
    return Volumes(settings.paths, inputs, outputs, edges, m.clock, m.recorder)


def wire_act(
    m: SharedParts,
    cells: Cells,
    puller: ImagePuller,
    pod_cgroups: PodCgroups,
    devices: NodeDevicePlugins,
    client: ApiClient | None,
    points: Points,
) -> Loops:
    """act: the volumes write Mounts, the pods write Lifecycles; the cgroups and the garbage collectors read them."""
    settings, paths = m.settings, m.settings.paths
    roster, lifecycles, observed = cells.roster.cell, cells.lifecycles.cell, cells.observed.cell
    mounts, node, runtime = cells.mounts.cell, cells.node.cell, cells.runtime.cell
    content = cells.content.cell
    selinux = replace(read_selinux(), mounts_all=settings.enabled("SELinuxMount"))
    volumes = _make_volumes(m, cells, client, selinux, points)
    v2 = m.cgroups.version is CgroupVersion.V2
    swap = can_limit_swap(m.cgroups.version)
    render = render_settings(settings, node.get(), cgroup_v2=v2, swap_controller=swap, machine=m.machine)
    render = replace(render, selinux_enabled=selinux.is_enabled, ask_extensions=points.cgroup)
    userns = UserNamespaceManager(m.cri, m.flight, paths, settings.user_namespace_ids_per_pod)
    hooks = HookRunner(m.cri, m.recorder, m.settings.release)
    stopper = ContainerStopper(m.cri, hooks, m.clock, m.recorder, m.touched)
    hook_records = HookRecords(settings.flags.root_dir, SingleFlight("hooks", workers=1))
    hook_records.load(paths.pods)
    sandbox_cells = SandboxCells(node, runtime, content, cells.placements.cell, mounts)
    tools = PodTools(
        clock=m.clock,
        flight=m.flight,
        cells=PodCells(
            mounts, observed, node, runtime, cells.statuses.cell, content, cells.claims.cell, cells.placements.cell
        ),
        sandboxes=Sandboxes(m.cri, m.flight, render, sandbox_cells, settings.config.resolvConf, m.recorder, userns),
        starter=ContainerStarter(m.cri, hooks, stopper, m.flight, m.recorder, pod_cgroups.give_realtime),
        stopper=stopper,
        resizer=ContainerResizer(m.cri, runtime, pod_cgroups.give_realtime),
        images=puller,
        subpaths=Subpaths(mounts, paths, m.flight),
        cgroups=pod_cgroups,
        supervisor=Supervisor("pod-work"),
        starts=cells.starts.writer,
        recorder=m.recorder,
        hook_records=hook_records,
        needs=NEEDS + points.needs,
        extended_claims=settings.enabled("DRAExtendedResource"),
        devices=devices,
        reports_secrets_at_once=settings.behavior.reports_secrets_at_once,
        asks_again=points.cgroup is not None,
    )
    rules = Rules(
        container_hash, settings.crash_backoff, settings.config.syncFrequency.s, cells.probes.cell.get(), points.restart
    )
    pod_inputs = PodInputs(roster, observed, cells.probes.cell, content, cells.evictions.cell, cells.shutdown.cell)
    pod_outputs = PodOutputs(cells.lifecycles.writer, cells.pod_diagnostics.writer, cells.pods_heartbeat.writer)
    pods = PodsLoop(pod_inputs, pod_outputs, tools, rules, m.touched)
    resources = ResourcesLoop(
        pod_cgroups, ResourceInputs(lifecycles, roster, observed, mounts), period_s=m.periods.cgroups_s
    )
    gc_inputs = GcInputs(observed, lifecycles, roster)
    garbage = ContainerCollector(
        m.cri, m.clock, m.flight, gc_inputs, gc_settings(settings, m.periods.garbage_s), m.touched, m.recorder
    )
    return [
        ("volumes", volumes.run()),
        ("pods", pods.run()),
        ("cgroups", resources.run()),
        ("container-gc", garbage.run()),
        ("container-reclaim", garbage.answer_reclaims(m.containers_reclaim, cells.containers_reclaimed.writer)),
        ("log-rotation", LogRotation(m.cri, m.clock, m.flight, observed, rotation_settings(settings)).run()),
    ]


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
        tokens = cluster.pull_identity(m) if cluster and m.providers else None
        puller, collector = wire_images(m, cells, tokens, points)
        self._closing.push_async_callback(puller.stop)
        self._begin(wire_report(m, cells, self._facts, cluster.reviewers if cluster else None, points))
        v2 = m.cgroups.version is CgroupVersion.V2
        for event in advice(read_circumstances(m.settings.config, m.machine, m.settings.flags.root_dir, cgroup_v2=v2)):
            m.recorder.post(event)
        if cluster:
            self._begin(cluster.wire_identity(m, cells))
            self._begin(cluster.wire_node(m, cells))
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
        if m.settings.config.makeIPTablesUtilChains:
            self._begin([("host-chains", HostChains().run())])
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
