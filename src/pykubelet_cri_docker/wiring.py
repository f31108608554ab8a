"""Puts the program together: which part gets which."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.text_files import read_number
from pykubelet.net.grpc.server import Services
from pykubelet_cri_docker.containers import Containers
from pykubelet_cri_docker.daemon import Daemon
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.events import ContainerEvents
from pykubelet_cri_docker.host_work import HostWork
from pykubelet_cri_docker.images import Images
from pykubelet_cri_docker.network.model import CniError
from pykubelet_cri_docker.network.pod_networks import CniDirectories, PodNetworks
from pykubelet_cri_docker.program import Options
from pykubelet_cri_docker.sandboxes import PodSandboxes, SandboxSettings
from pykubelet_cri_docker.service import ServiceParts, build_services

log = Log("cri-docker")
LOWEST = -1000


class NoLogs:
    """Docker keeps what containers write."""

    def follow(self, container_id: str, source: str, target: str) -> None:
        """Write nothing."""

    async def reopen(self, container_id: str) -> None:
        """Do nothing."""

    async def finish(self, container_id: str) -> None:
        """Do nothing."""

    def forget(self, container_id: str) -> None:
        """Do nothing."""


class Program(Value):
    """What is served, and what runs beside it."""

    services: Services
    parts: Mapping[str, Coroutine[Any, Any, None]]
    networks: PodNetworks
    sandboxes: PodSandboxes

    async def clean_up(self) -> None:
        """Disconnect what is left of sandboxes that are gone. Call it before anything is served."""
        try:
            await self.networks.collect(await self.sandboxes.ids())
        except (CniError, EngineError, HostError) as error:
            log.warning("the networks of pods that are gone are not cleaned up", error=error)


def build(options: Options) -> Program:
    """The program with its parts. Call it inside the running event loop."""
    engine, host = Engine(options.docker_socket), HostWork()
    networks = PodNetworks(
        CniDirectories(options.cni_conf_dir, tuple(options.cni_bin_dir.split(",")), options.cni_cache_dir)
    )
    least = read_number("/proc/self/oom_score_adj") if options.restrict_oom_score_adj else None
    settings = SandboxSettings(options.pause_image, LOWEST if least is None else least)
    sandboxes = PodSandboxes(engine, networks, host, settings)
    containers = Containers(engine, sandboxes, NoLogs(), host)
    images = Images(engine, options.pause_image)
    events, daemon = ContainerEvents(engine, sandboxes, containers), Daemon(engine, networks.status)
    parts = ServiceParts(engine, daemon, sandboxes, containers, images, events)
    return Program(build_services(parts), {}, networks, sandboxes)
