"""The wiring: makes the cells, gives each writing end to its one owner, and lists what runs.

Read it from top to bottom to know which room exists, what it reads and what it writes. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pykubelet.act.images.credentials import PullCredentials
from pykubelet.act.images.execute import ImagePuller
from pykubelet.act.images.gc import ImageCollector
from pykubelet.act.images.model import image_settings
from pykubelet.act.images.providers import CredentialProviders, TokenSource
from pykubelet.act.images.record_store import RecordStore
from pykubelet.act.network.loop import HostChains
from pykubelet.act.pods.decide import Rules
from pykubelet.act.pods.loop import PodInputs, PodsLoop
from pykubelet.act.pods.tools import PodCells, PodTools
from pykubelet.act.resources.decide import node_allocatable
from pykubelet.act.resources.execute import PodCgroups, ResourcesError
from pykubelet.act.resources.home import Home
from pykubelet.act.resources.loop import ResourceInputs, ResourcesLoop
from pykubelet.act.resources.model import CgroupDriver, NodeResources, resource_settings
from pykubelet.act.resources.names import driver_path, node_group
from pykubelet.act.runtime.collect.gc import ContainerCollector, GcInputs, gc_settings
from pykubelet.act.runtime.collect.log_rotation import LogRotation, rotation_settings
from pykubelet.act.runtime.lifecycle.hooks import HookRunner
from pykubelet.act.runtime.lifecycle.resize import ContainerResizer
from pykubelet.act.runtime.lifecycle.sandbox import SandboxCells, Sandboxes
from pykubelet.act.runtime.lifecycle.start import ContainerStarter
from pykubelet.act.runtime.lifecycle.stop import ContainerStopper
from pykubelet.act.runtime.lifecycle.userns import UserNamespaces
from pykubelet.act.runtime.render.container_hash import container_hash
from pykubelet.act.runtime.render.context import render_settings
from pykubelet.act.volumes.loop import VolumeInputs, Volumes
from pykubelet.act.volumes.subpath import Subpaths
from pykubelet.app.advice import advice, look_around
from pykubelet.app.driver import ask_driver, insist_on_driver
from pykubelet.app.parts import Cells, Loops, Machinery, Periods, Runtime
from pykubelet.app.prepare import StartError, app_armor_enabled, kernel_version, prepare_machine
from pykubelet.app.wiring_server import wire_ports
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Flight
from pykubelet.base.kit.lag import watch_lag
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Mailbox
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.labels import SOURCE_API, SOURCE_FILE, SOURCE_HTTP
from pykubelet.base.model.roster import SourceChanged
from pykubelet.config.settings import CRASH_BACKOFF_RESET_S, Settings
from pykubelet.desired.roster.loop import RosterInputs, RosterLoop
from pykubelet.desired.roster.model import admission_rules
from pykubelet.desired.roster.size_memory import SizeMemory
from pykubelet.desired.sources.file import FileSource
from pykubelet.desired.sources.gated import ALL_ON, GatedPods, field_gates
from pykubelet.desired.sources.url import UrlSource
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.host.cgroups.cgroup_detect import detect_cgroups
from pykubelet.edges.host.cgroups.cgroup_stats import detect_reader, own_group, read_boot_time
from pykubelet.edges.host.cgroups.cgroup_values import CgroupVersion
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.proc.machine import Machine
from pykubelet.edges.host.proc.procfs import read_default_routes, read_hostname
from pykubelet.edges.plugins.credential_config import Providers, load_providers
from pykubelet.edges.plugins.credential_provider import run_provider
from pykubelet.edges.plugins.pull_credentials import read_docker_configs
from pykubelet.observe.node.decide import NodeFacts, node_capacity, node_labels
from pykubelet.observe.node.loop import NodeLoop, first_node_view
from pykubelet.observe.node.runtime import RuntimeLoop
from pykubelet.observe.pleg.loop import Pleg, PlegCells
from pykubelet.observe.probes.decide import earlier_results
from pykubelet.observe.probes.execute import ContainerProber
from pykubelet.observe.probes.limiter import ProbeLimits
from pykubelet.observe.probes.loop import ProbeInputs, ProbesLoop
from pykubelet.observe.stats.loop import StatsInputs, StatsLoop, StatsSettings
from pykubelet.observe.stats.tree import Ground
from pykubelet.report.events.loop import EventsLoop
from pykubelet.report.status.loop import StatusInputs, StatusLoop
from pykubelet.report.status.memory import StatusMemory
from pykubelet.serve.auth.auth_filter import Reviewers

if TYPE_CHECKING:
    from pykubelet.app.wiring_cluster import Cluster

log = Log("app")
EXEC_PROBES_PER_CPU = 2


def wire_sources(m: Machinery, node_name: str) -> tuple[Loops, frozenset[str]]:
    """desired/sources: each posts to the roster. Returns the loops and the names of the sources to wait for."""
    settings, config = m.settings, m.settings.config
    loops: Loops = []
    names = set()
    if config.staticPodPath:
        period = settings.file_check_frequency_s
        source = FileSource(config.staticPodPath, node_name, period, m.pod_updates, m.clock, m.flight)
        loops.append(("manifests", source.run()))
        names.add(SOURCE_FILE)
    if config.staticPodURL:
        headers, period = config.staticPodURLHeader, settings.http_check_frequency_s
        url = UrlSource(config.staticPodURL, headers, node_name, period, m.pod_updates, m.clock)
        loops.append(("manifest-url", url.run()))
        names.add(SOURCE_HTTP)
    return loops, frozenset(names)


def wire_roster(m: Machinery, cells: Cells, expected: frozenset[str]) -> Loops:
    """desired/roster: the one writer of Roster. `expected`: the sources that must have told their pods once."""
    rules = admission_rules(m.settings, kernel_version(m.machine), app_armor=app_armor_enabled())
    sizes = SizeMemory(f"{m.settings.root_dir}/pod_sizes", m.flight)
    in_cluster = bool(m.settings.flags.kubeconfig)
    inputs = RosterInputs(
        cells.node.cell,
        cells.runtime.cell,
        cells.observed.cell,
        cells.lifecycles.cell,
        sizes.load() if in_cluster else {},
        m.node_wanted,
        cells.roster_heartbeat.writer,
    )
    roster = RosterLoop(m.sources, expected, inputs, rules, cells.roster.writer, m.recorder, m.clock)
    memory: Loops = [("pod-sizes", sizes.follow(cells.roster.cell))] if in_cluster else []
    return [("roster", roster.run()), *memory]


def status_memory(m: Machinery) -> StatusMemory:
    """Its thread is its own: what is told of a pod does not wait behind the volumes of others."""
    return StatusMemory(f"{m.settings.root_dir}/pod_statuses", Flight("statuses", workers=1))


def wire_pleg(m: Machinery, cells: Cells) -> Pleg:
    """observe/pleg: writes Observed. No pod is acted on before the first relist."""
    pleg_cells = PlegCells(cells.observed.writer, cells.runtime.cell)
    return Pleg(m.cri, m.clock, pleg_cells, m.touched, m.periods.relist, m.recorder)


def wire_observe(m: Machinery, cells: Cells) -> Loops:
    """The rest of observe: the probes write ProbeResults and ProbeWaits."""
    forgets = m.settings.enabled("ChangeContainerStatusOnKubeletRestart")
    had = {} if forgets else earlier_results(status_memory(m).load().values())
    inputs = ProbeInputs(cells.lifecycles.cell, cells.observed.cell, cells.node.cell, had, not forgets)
    ends = (cells.probes.writer, cells.probe_waits.writer)
    cpus = max(1, m.machine.cpu_milli // 1000)
    answer_s = m.settings.runtime_request_timeout_s
    limits = ProbeLimits(EXEC_PROBES_PER_CPU * cpus, exec_few=max(1, cpus // 2), answer_s=answer_s)
    probes = ProbesLoop(inputs, ends, ContainerProber(m.cri), m.clock, m.recorder, limits)
    return [
        ("probes", probes.run()),
        ("stats", wire_stats(m, cells).run()),
        ("lag", watch_lag(m.periods.lag_s)),
    ]


def wire_stats(m: Machinery, cells: Cells) -> StatsLoop:
    """observe/stats: writes Usage when somebody wants to know."""
    settings, flags = m.settings, m.settings.flags
    resources = resource_settings(settings, m.machine.capacity(), m.driver)
    config = settings.config
    named = {"runtime": flags.runtime_cgroups, "misc": config.systemCgroups}
    named["kubelet"] = config.kubeletCgroups or own_group()
    pods_root = driver_path(node_group(resources), m.driver)
    system = {name: path for name, path in named.items() if path} | {"pods": pods_root}
    capacity = m.machine.capacity()["memory"]
    routes = read_default_routes()
    interface = routes[0].interface if routes else "eth0"
    ground = Ground(detect_reader(), pods_root, capacity, read_boot_time(), system, interface)
    inputs = StatsInputs(m.usage_wanted, cells.observed.cell, cells.mounts.cell)
    stats = StatsSettings(settings.paths, config.volumeStatsAggPeriod.s)
    return StatsLoop(inputs, cells.usage.writer, ground, stats, m.cri, Flight("stats"), m.clock)


def wire_images(m: Machinery, cells: Cells, tokens: TokenSource | None) -> tuple[ImagePuller, Loops]:
    """act/images: the puller writes Pulls; the collector removes what nobody uses."""
    settings = image_settings(m.settings)
    records = RecordStore(settings.records_dir, m.clock)
    records.load()
    plugins = CredentialProviders(m.providers.configs, run_provider, m.clock, tokens) if m.providers else None
    root = m.settings.root_dir
    credentials = PullCredentials(lambda: read_docker_configs(root), plugins)
    puller = ImagePuller(m.cri, credentials, records, m.clock, settings, cells.pulls.writer, m.recorder)
    lifecycles = cells.lifecycles.cell
    collector = ImageCollector(m.cri, records, m.clock, settings, lifecycles, m.recorder)
    return puller, [("image-gc", collector.run_gc_loop())]


def wire_act(m: Machinery, cells: Cells, puller: ImagePuller, pod_cgroups: PodCgroups) -> Loops:
    """act: volumes write Mounts, pods write Lifecycles; cgroups and garbage follow them."""
    settings, paths = m.settings, m.settings.paths
    roster, lifecycles, observed = cells.roster.cell, cells.lifecycles.cell, cells.observed.cell
    mounts, node, runtime = cells.mounts.cell, cells.node.cell, cells.runtime.cell
    content = cells.content.cell
    inputs = VolumeInputs(roster, lifecycles, observed, node, content)
    volumes = Volumes(paths, inputs, cells.mounts.writer, m.flight, m.clock, m.recorder)
    v2 = m.cgroups.version is CgroupVersion.V2
    render = render_settings(settings, node.get(), cgroup_v2=v2, machine=m.machine)
    supervisor = Supervisor("pod-work")
    userns = UserNamespaces(m.cri, paths, settings.user_namespace_ids_per_pod)
    hooks = HookRunner(m.cri, m.recorder)
    stopper = ContainerStopper(m.cri, hooks, m.clock, m.recorder, m.touched)
    sandbox_cells = SandboxCells(node, runtime, content)
    tools = PodTools(
        clock=m.clock,
        flight=m.flight,
        cells=PodCells(mounts, observed, node, runtime, cells.statuses.cell, content),
        sandboxes=Sandboxes(m.cri, render, sandbox_cells, settings.config.resolvConf, m.recorder, userns),
        starter=ContainerStarter(m.cri, hooks, stopper, m.flight, m.recorder),
        stopper=stopper,
        resizer=ContainerResizer(m.cri),
        images=puller,
        subpaths=Subpaths(mounts, paths, m.flight),
        cgroups=pod_cgroups,
        supervisor=supervisor,
        recorder=m.recorder,
    )
    crash = BackoffPolicy(settings.crash_backoff_initial_s, settings.crash_backoff_max_s, CRASH_BACKOFF_RESET_S)
    rules = Rules(container_hash, crash, settings.sync_frequency_s, cells.probes.cell.get())
    pod_inputs, turn = PodInputs(roster, observed, cells.probes.cell, content), cells.pods_heartbeat.writer
    pods = PodsLoop(pod_inputs, cells.lifecycles.writer, tools, rules, m.touched, turn)
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
        ("log-rotation", LogRotation(m.cri, m.clock, m.flight, observed, rotation_settings(settings)).run()),
    ]


def wire_home(m: Machinery) -> Loops:
    """The group of the agent itself, when it is named: there it goes before anything else."""
    group = m.settings.config.kubeletCgroups
    if not group:
        return []
    home = Home(m.cgroups, group)
    home.enter()
    return [("home", home.run())]


def wire_report(m: Machinery, cells: Cells, facts: NodeFacts, reviewers: Reviewers | None) -> Loops:
    """report: statuses, node, events, and the ports that tell them."""
    roster, lifecycles, observed = cells.roster.cell, cells.lifecycles.cell, cells.observed.cell
    node, runtime, probes = cells.node.cell, cells.runtime.cell, cells.probes.cell
    tells_signals = m.settings.enabled("ContainerStopSignals")
    cluster, sandbox = bool(m.settings.flags.kubeconfig), m.settings.enabled("PodReadyToStartContainersCondition")
    inputs = StatusInputs(roster, lifecycles, observed, probes, node, runtime, tells_signals, cluster, sandbox)
    status = StatusLoop(inputs, cells.statuses.writer, m.clock, m.flight, status_memory(m))
    address = NodeLoop(facts, cells.node.writer, m.flight, m.periods.addresses_s)
    ready = RuntimeLoop(m.cri, m.clock, cells.runtime.writer, observed, m.periods.runtime)
    outbox = None if m.settings.standalone else m.outbox
    events = EventsLoop(m.recorder, cells.recent.writer, m.clock, outbox)
    return [
        *wire_ports(m, cells, reviewers),
        ("status", status.run()),
        ("events", events.run()),
        ("node", address.run()),
        ("runtime", ready.run()),
    ]


class Agent:
    """The wired agent. `start` begins all loops; leaving the context ends them, and touches no container.

    `outdated`: set when what it was made with no longer holds, and another one is to be made.
    """

    def __init__(self, m: Machinery, facts: NodeFacts, cluster: Cluster | None = None) -> None:
        self.cells = Cells(first_node_view(facts))
        self.supervisor = Supervisor("agent")
        self.outdated = asyncio.Event()
        self._m = m
        tokens = None
        if cluster is not None and m.providers is not None:
            from pykubelet.app.wiring_cluster import pull_identity

            tokens = pull_identity(m, cluster)
        self._puller, self._image_loops = wire_images(m, self.cells, tokens)
        self._prepared: Loops = [*self._image_loops]
        self._facts = facts
        self._cluster = cluster
        v2 = m.cgroups.version is CgroupVersion.V2
        resources = resource_settings(m.settings, facts.capacity, m.driver, cgroup_v2=v2)
        amounts = NodeResources(facts.capacity, facts.page_sizes, m.machine.cpus)
        self._cgroups = PodCgroups(resources, amounts, m.cgroups, m.flight, m.recorder)

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.supervisor.stop()
        for _name, loop in self._prepared:
            loop.close()  # those that a failed start has not begun
        await self._puller.stop()
        if self._cluster is not None:
            await self._cluster.close()
        await self._m.cri.close()

    async def start(self) -> None:
        """Begin: what tells first, so that the health port answers at once. Raises StartError."""
        m, cells = self._m, self.cells
        self._begin(wire_home(m))
        observers = [("pleg", self._run_pleg(wire_pleg(m, cells))), *wire_observe(m, cells)]
        self._prepared += observers
        reviewers = self._cluster.reviewers if self._cluster is not None else None
        self._begin(wire_report(m, cells, self._facts, reviewers))
        for told in advice(look_around(m.settings.config, m.machine, cgroup_v2=m.cgroups.version is CgroupVersion.V2)):
            m.recorder.post(told)
        if self._cluster is not None:
            from pykubelet.app.wiring_cluster import wire_identity, wire_node

            self._begin(wire_identity(m, cells, self._cluster))
            self._begin(wire_node(m, cells, self._cluster))
        try:
            if m.driver_is_known:
                await self._cgroups.ensure_root()
        except ResourcesError as error:
            raise StartError(str(error)) from error
        sources, names = wire_sources(m, cells.node.cell.get().name)
        if self._cluster is not None:
            from pykubelet.app.wiring_cluster import wire_api_source, wire_cluster_report, wire_content

            self._begin(wire_content(m, cells, self._cluster))
            sources += wire_api_source(m, cells, self._cluster)
            names |= {SOURCE_API}
            self._begin(wire_cluster_report(m, cells, self._cluster))
        self._begin(sources)
        if m.settings.config.makeIPTablesUtilChains:
            self._begin([("host-chains", HostChains().run())])
        self._begin(wire_roster(m, cells, names))
        self._begin(observers)
        self._begin(self._image_loops)
        self._begin(wire_act(m, cells, self._puller, self._cgroups))

    async def _run_pleg(self, pleg: Pleg) -> None:
        """Follow the runtime. One that was away at the start tells its cgroup driver first (`driver.py`)."""
        m = self._m
        if not m.driver_is_known:
            await self.cells.runtime.cell.wait_for(lambda runtime: runtime.checked)
            if await insist_on_driver(m.cri, m.driver) is not m.driver:
                self.outdated.set()
                return
            await self._cgroups.ensure_root()
        await pleg.run()

    def _begin(self, loops: Loops) -> None:
        for name, loop in loops:
            self.supervisor.start_root(name, loop)


def node_facts(settings: Settings, machine: Machine, driver: CgroupDriver) -> NodeFacts:
    """What of the node does not change while the agent runs."""
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
    )


async def build_agent(settings: Settings, clock: Clock) -> Agent:
    """Everything made, nothing started. Raises StartError and ConfigError, before anything is touched where it can."""
    flags = settings.flags
    settings.node_name(read_hostname())
    providers = None
    if flags.image_credential_provider_config:
        providers = load_providers(flags.image_credential_provider_config, flags.image_credential_provider_bin_dir)
    cluster = None
    if not settings.standalone:
        from pykubelet.app.wiring_cluster import join_cluster  # a node that stands alone does not pay for it

        cluster = join_cluster(settings, clock)
    machine = prepare_machine(settings, settings.paths)
    cri = CriClient(settings.runtime_endpoint, settings.image_endpoint, settings.runtime_request_timeout_s)
    configured = CgroupDriver(settings.config.cgroupDriver)
    told = await ask_driver(cri, configured)
    driver = told or configured
    cgroups: Cgroups = detect_cgroups()
    if driver is CgroupDriver.SYSTEMD:
        from pykubelet.edges.host.cgroups.systemd import Systemd, SystemdCgroups  # only the driver in force is loaded

        cgroups = SystemdCgroups(cgroups, Systemd())
    runtime = Runtime(cri, driver, driver_is_known=told is not None)
    machinery = make_machinery(settings, clock, machine, cgroups, runtime, providers)
    return Agent(machinery, node_facts(settings, machine, driver), cluster)


def make_machinery(
    settings: Settings,
    clock: Clock,
    machine: Machine,
    cgroups: Cgroups,
    runtime: Runtime,
    providers: Providers | None = None,
    periods: Periods | None = None,
) -> Machinery:
    """What is shared, with mailboxes and threads of its own."""
    sources: Mailbox[SourceChanged] = Mailbox("sources")
    gates = field_gates(settings)
    return Machinery(
        settings=settings,
        clock=clock,
        machine=machine,
        cgroups=cgroups,
        cri=runtime.client,
        flight=Flight("work"),
        driver=runtime.driver,
        driver_is_known=runtime.driver_is_known,
        providers=providers,
        recorder=Mailbox("recorder"),
        touched=Mailbox("touched"),
        sources=sources,
        pod_updates=sources if gates == ALL_ON else GatedPods(sources, gates),
        outbox=Mailbox("outbox"),
        usage_wanted=Mailbox("usage-wanted"),
        node_wanted=Mailbox("node-wanted"),
        periods=periods or Periods(),
    )
