"""Puts the program together: which part gets which."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.cgroups.cgroup_detect import detect_cgroups
from pykubelet.edges.host.cgroups.cgroup_stats import detect_reader
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.text_files import read_number
from pykubelet.net.grpc.services import Services
from pykubelet.net.grpc.status import RpcError
from pykubelet_cri_docker.cdi.spec_folders import SpecFolders
from pykubelet_cri_docker.container_limits import ContainerLimits, ContainerScopes
from pykubelet_cri_docker.containers import Containers
from pykubelet_cri_docker.daemon import Daemon
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.events import ContainerEvents
from pykubelet_cri_docker.host_work import HostWork
from pykubelet_cri_docker.images import Images
from pykubelet_cri_docker.logs.log_writers import LogWriters
from pykubelet_cri_docker.network.model import CniError
from pykubelet_cri_docker.network.pinned_namespaces import PinnedNamespaces
from pykubelet_cri_docker.network.pod_networks import CniDirectories, PodNetworks
from pykubelet_cri_docker.options import Options
from pykubelet_cri_docker.sandboxes import PodSandboxes, SandboxSettings
from pykubelet_cri_docker.service import ServiceParts, build_services
from pykubelet_cri_docker.stats.group_files import GroupFiles
from pykubelet_cri_docker.stats.layers import MAX_WALKS, WritableLayers
from pykubelet_cri_docker.stats.statistics import Statistics
from pykubelet_cri_docker.streaming.server import StreamingServer, listen
from pykubelet_cri_docker.streams import DockerStreams

log = Log("cri-docker")
LOWEST = -1000
RESUME_S = 5.0


class Program(Value):
    """What is served, and what runs beside it."""

    services: Services
    engine: Engine
    daemon: Daemon
    networks: PodNetworks
    sandboxes: PodSandboxes
    containers: Containers
    logs: LogWriters
    streaming: StreamingServer

    async def keep_logs(self) -> None:
        """Write the logs of containers, until cancelled. Begins with what a program before this one may have left."""
        async with Supervisor("logs") as tasks:
            self.logs.start(tasks)
            tasks.start_root("resume", self._resume())
            try:
                raise await tasks.wait_failed()
            finally:
                await tasks.stop()
                await self.logs.close()

    async def _resume(self) -> None:
        """Take up what there is: now, and when Docker Engine was lost meanwhile."""
        while True:
            await _until_done(self._take_up)
            await self.engine.lost.wait()

    async def _take_up(self) -> None:
        """Go on with the containers, and remove what is left of those and of sandboxes that are gone or were not completed."""
        self.engine.lost.clear()
        await self.daemon.usable()
        await self.containers.resume()
        await self.sandboxes.remove_incomplete()
        await self.networks.collect(self.sandboxes.ids)


async def _until_done(step: Callable[[], Awaitable[None]]) -> None:
    """Repeat a step until it is done: Docker Engine may not answer yet."""
    problem = ""
    while True:
        try:
            await step()
            return
        except (CniError, EngineError, HostError, RpcError) as error:
            if str(error) != problem:
                log.warning("cannot go on; it is tried again", error=error)
            problem = str(error)
        await asyncio.sleep(RESUME_S)


def build(options: Options) -> Program:
    """The program with its parts. Call it inside the running event loop."""
    engine, host = Engine(options.docker_socket), HostWork()
    networks = PodNetworks(
        CniDirectories(options.cni_conf_dir, tuple(options.cni_bin_dir.split(",")), options.cni_cache_dir),
        PinnedNamespaces(options.netns_dir),
    )
    least = read_number("/proc/self/oom_score_adj") if options.restrict_oom_score_adj else None
    settings = SandboxSettings(options.pause_image, LOWEST if least is None else least)
    logs = LogWriters(f"{options.state_dir}/logs", SingleFlight("logs"))
    sandboxes = PodSandboxes(engine, networks, host, settings)
    limits = ContainerLimits(detect_cgroups(), ContainerScopes(), host, f"{options.state_dir}/limits")
    devices = SpecFolders(options.cdi_spec_dirs.split(","), f"{options.state_dir}/devices")
    containers = Containers(engine, sandboxes, logs, limits, devices, host)
    images = Images(engine, options.pause_image)
    events, daemon = ContainerEvents(engine, sandboxes, containers), Daemon(engine, networks.status)
    streaming = StreamingServer(DockerStreams(engine, sandboxes, containers), listen("127.0.0.1", 0))
    clock = SystemClock()
    files, layers = GroupFiles(detect_reader(), clock), WritableLayers(clock, SingleFlight("layers", MAX_WALKS))
    statistics = Statistics(engine, sandboxes, containers, host, files, layers, clock)
    parts = ServiceParts(engine, daemon, sandboxes, containers, images, events, streaming, statistics)
    return Program(build_services(parts), engine, daemon, networks, sandboxes, containers, logs, streaming)
