"""The wiring of what observes the node and its pods: probes, plugins, usage, eviction, the kernel's log, and shutdown."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.app.parts import Cells, Loops, Points, SharedParts
from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.cells import Cell, Post
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.evictions import Reclaimed, ReclaimWanted
from pykubelet.base.model.ids import PodUID
from pykubelet.edges.host.cgroups.cgroup_stats import detect_reader, own_group
from pykubelet.edges.host.proc.boot_time import read_boot_time
from pykubelet.edges.host.proc.procfs import read_default_routes
from pykubelet.observe.eviction.loop import EvictionInputs, EvictionLoop, EvictionOutputs
from pykubelet.observe.eviction.meter import NodeMeter
from pykubelet.observe.eviction.model import Reclaim, eviction_settings
from pykubelet.observe.eviction.read import NodeSources
from pykubelet.observe.oom.loop import OomLoop
from pykubelet.observe.plugins.flexvolume import FlexLoop
from pykubelet.observe.plugins.loop import PluginsLoop
from pykubelet.observe.probes.decide import earlier_results
from pykubelet.observe.probes.execute import ContainerProber
from pykubelet.observe.probes.limiter import ProbeLimits
from pykubelet.observe.probes.loop import ProbeInputs, ProbesLoop
from pykubelet.observe.shutdown.decide import shutdown_groups
from pykubelet.observe.shutdown.loop import ShutdownLoop
from pykubelet.observe.shutdown.record import NAME as SHUTDOWN_RECORD
from pykubelet.observe.shutdown.record import ShutdownRecord
from pykubelet.observe.stats.files import FileSettings
from pykubelet.observe.stats.loop import StatsInputs, StatsLoop
from pykubelet.observe.stats.own_usage import log_own_usage
from pykubelet.observe.stats.tree import UsageSources
from pykubelet.provide.cgroups.decide import driver_path, node_group
from pykubelet.provide.cgroups.model import resource_settings

EXEC_PROBES_PER_CPU = 2


def wire_own_usage(m: SharedParts) -> Loops:
    """The agent's own usage in the log, if `--log-cadvisor-usage` is given."""
    flags = m.settings.flags
    return [("own-usage", log_own_usage(flags.housekeeping_interval_s))] if flags.log_cadvisor_usage else []


def wire_oom(m: SharedParts) -> Loops:
    """observe/oom: posts Events of the node."""
    return [("oom", OomLoop(m.kernel_log, m.recorder).run())] if m.kernel_log is not None else []


def wire_shutdown(m: SharedParts, cells: Cells) -> Loops:
    """observe/shutdown: writes NodeShutdown if graceful node shutdown is configured."""
    groups = shutdown_groups(m.settings)
    if not groups:
        return []
    from pykubelet.edges.host.services.logind import Logind  # most nodes need neither it nor D-Bus

    is_kept = m.settings.enabled("GracefulNodeShutdownBasedOnPodPriority")
    record = ShutdownRecord(f"{m.settings.flags.root_dir}/{SHUTDOWN_RECORD}" if is_kept else "", m.flight)
    lifecycles, writer = cells.lifecycles.cell, cells.shutdown.writer
    shutdown = ShutdownLoop(groups, Logind, lifecycles, writer, m.recorder, record, m.clock, m.flight)
    return [("shutdown", shutdown.run())]


def wire_stats(m: SharedParts, cells: Cells) -> StatsLoop:
    """observe/stats: writes Usage when it is requested."""
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
    usage_sources = UsageSources(
        detect_reader(), pods_root, capacity, read_boot_time(), system, interface, huge_page_bytes(m)
    )
    inputs = StatsInputs(m.usage_wanted, cells.observed.cell, cells.mounts.cell, cells.plugins.cell)
    conditions = m.recorder if settings.enabled("CSIVolumeHealth") else None
    files = FileSettings(settings.paths, m.quotas, config.volumeStatsAggPeriod.s, conditions)
    return StatsLoop(inputs, cells.usage.writer, usage_sources, files, m.cri, SingleFlight("stats"), m.clock)


def huge_page_bytes(m: SharedParts) -> int:
    """Bytes of the machine's memory that only users of huge pages can have; 0 if that does not count (HugepageAwareEviction)."""
    return sum(amount for _, amount in m.machine.huge_pages) if m.settings.enabled("HugepageAwareEviction") else 0


def wire_eviction(m: SharedParts, cells: Cells, points: Points) -> EvictionLoop:
    """observe/eviction: writes NodePressure, Evictions and SignalStates."""
    settings = m.settings
    resources = resource_settings(settings, m.machine.capacity(), m.driver)
    sources = NodeSources(
        reader=detect_reader(),
        pods_root=driver_path(node_group(resources), m.driver),
        memory_capacity=m.machine.capacity()["memory"],
        root_dir=settings.flags.root_dir,
        huge_pages=huge_page_bytes(m),
        with_stalls=bool(settings.stall_thresholds),
        with_notifiers=settings.config.kernelMemcgNotification,
    )
    reclaims: dict[Reclaim, tuple[Post[ReclaimWanted], Cell[Reclaimed]]] = {
        Reclaim.CONTAINERS: (m.containers_reclaim, cells.containers_reclaimed.cell),
        Reclaim.IMAGES: (m.images_reclaim, cells.images_reclaimed.cell),
    }
    inputs = EvictionInputs(cells.roster.cell, cells.lifecycles.cell, cells.usage.cell, m.usage_wanted, reclaims)
    outputs = EvictionOutputs(cells.pressure.writer, cells.evictions.writer, cells.signals.writer, m.recorder)
    meter = NodeMeter(sources, m.cri, SingleFlight("eviction", workers=4), m.clock)
    return EvictionLoop(
        inputs, outputs, eviction_settings(settings, points.rank_for_eviction), meter, m.clock, m.periods.eviction
    )


def wire_observe(m: SharedParts, cells: Cells, earlier: Mapping[PodUID, PodStatus], points: Points) -> Loops:
    """The rest of observe: the probes write ProbeResults, the plugin watcher writes Plugins."""
    had, keeps = earlier_results(earlier.values()), not m.forgets_probes
    inputs = ProbeInputs(cells.lifecycles.cell, cells.observed.cell, cells.node.cell, cells.starts.cell, had, keeps)
    ends = (cells.probes.writer, cells.probe_diagnostics.writer)
    cpus = max(1, m.machine.cpu_milli // 1000)
    answer_s = m.settings.config.runtimeRequestTimeout.s
    sockets, period_s = m.settings.paths.plugin_sockets, m.periods.plugins_s
    plugins = PluginsLoop(sockets, cells.plugins.writer, m.flight, m.clock, period_s)
    flex = FlexLoop(m.settings.config.volumePluginDir, cells.plugins.writer, m.flight, m.clock, period_s)
    limits = ProbeLimits(EXEC_PROBES_PER_CPU * cpus, exec_few=max(1, cpus // 2), answer_s=answer_s)
    prober = ContainerProber(m.cri, m.settings.release, grpc_redials=m.settings.behavior.grpc_probe_redials)
    asked = prober if points.prober is None else points.prober(prober)
    probes = ProbesLoop(inputs, ends, asked, m.clock, m.recorder, limits)
    return [
        ("probes", probes.run()),
        ("plugins", plugins.run()),
        ("flexvolume", flex.run()),
        *wire_oom(m),
        *wire_shutdown(m, cells),
        ("stats", wire_stats(m, cells).run()),
        ("eviction", wire_eviction(m, cells, points).run()),
        *wire_own_usage(m),
    ]
