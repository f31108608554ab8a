"""The wiring of what brings pods to run: the sources, the roster, the PLEG, images, volumes and the pod workers. It contains no logic.

It is imported after the health port has begun to answer (`wiring.py`): half of the agent's code is behind it.
"""

from __future__ import annotations

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
from pykubelet.app.parts import Cells, Loops, Points, SharedParts
from pykubelet.app.prepare import app_armor_enabled, kernel_version
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.labels import SOURCE_FILE, SOURCE_HTTP
from pykubelet.base.model.selinux import SelinuxHost
from pykubelet.desired.roster.holders import HolderMemory
from pykubelet.desired.roster.loop import RosterInputs, RosterLoop
from pykubelet.desired.roster.model import admission_rules
from pykubelet.desired.roster.size_memory import SizeMemory
from pykubelet.desired.sources.decode import manifest_rules
from pykubelet.desired.sources.file import FileSource
from pykubelet.desired.sources.url import UrlSource
from pykubelet.edges.host.cgroups.cgroup_detect import can_limit_swap
from pykubelet.edges.host.cgroups.cgroup_values import CgroupVersion
from pykubelet.edges.host.selinux import read_selinux
from pykubelet.edges.plugins.credential_provider import run_provider
from pykubelet.edges.plugins.pull_credentials import read_docker_configs
from pykubelet.observe.pleg.loop import Pleg, PlegCells
from pykubelet.provide.cgroups.execute import PodCgroups
from pykubelet.provide.cgroups.loop import ResourceInputs, ResourcesLoop
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

if TYPE_CHECKING:
    from pykubelet.edges.kubeapi.client import ApiClient


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


def wire_host_chains(m: SharedParts) -> Loops:
    """act/network: the kubelet's iptables chains, unless the configuration leaves them out."""
    return [("host-chains", HostChains().run())] if m.settings.config.makeIPTablesUtilChains else []


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


def wire_pleg(m: SharedParts, cells: Cells) -> Pleg:
    """observe/pleg: writes Observed. No pod is acted on before the first relist."""
    pleg_cells = PlegCells(cells.observed.writer, cells.runtime.cell)
    return Pleg(m.cri, m.clock, pleg_cells, m.touched, m.periods.relist, m.recorder)


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
