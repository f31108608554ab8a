"""The whole agent, as wired for production, on a runtime and cgroups that are doubles in this process."""

from __future__ import annotations

from pykubelet.app.parts import Periods, Runtime
from pykubelet.app.wiring import Agent, extensions_of, make_machinery, node_facts
from pykubelet.app.wiring_cluster import join_cluster
from pykubelet.base.kit.clock import Clock
from pykubelet.config.settings import Settings
from pykubelet.edges.host.fs.files import make_dirs
from pykubelet.edges.host.proc.machine import Machine, read_machine
from pykubelet.provide.cgroups.model import CgroupDriver
from pykubelet.testing.cri.in_memory import MemoryRuntime
from pykubelet.testing.host import MemoryCgroups


def prepare_directories(settings: Settings) -> Machine:
    """As `prepare_machine`, without what changes this process and the kernel. Returns the facts of this machine."""
    paths = settings.paths
    for path in (paths.root, paths.pods, paths.logs, paths.log_links):
        make_dirs(path, 0o755)
    return read_machine("/", paths.root)


def doubled_agent(
    settings: Settings,
    clock: Clock,
    machine: Machine,
    runtime: MemoryRuntime,
    cgroups: MemoryCgroups,
    periods: Periods | None = None,
) -> Agent:
    """An agent that is not started: of a cluster if it has a kubeconfig. `machine`: what it takes for its machine."""
    connected = Runtime(runtime.connect(), CgroupDriver.CGROUPFS, driver_is_known=True)
    machinery = make_machinery(settings, clock, machine, cgroups, connected, periods=periods)
    facts = node_facts(settings, machine, CgroupDriver.CGROUPFS, cgroups.version)
    cluster = None if settings.standalone else join_cluster(settings, clock)
    return Agent(machinery, facts, cluster, extensions_of(settings))
