"""Puts the program together: which part gets which."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from pykubelet.base.kit.values import Value
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.fs.text_files import read_number
from pykubelet.net.grpc.server import Services
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker.containers import Containers
from pykubelet_cri_docker.daemon import Daemon
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.host_work import HostWork
from pykubelet_cri_docker.images import Images
from pykubelet_cri_docker.program import Options
from pykubelet_cri_docker.sandboxes import PodSandboxes, SandboxSettings
from pykubelet_cri_docker.service import ServiceParts, build_services

LOWEST = -1000
NO_NETWORK = "pods have the host's network only"


class HostNetworkOnly:
    """A network for pods of the host's network alone."""

    async def add(self, sandbox_id: str, netns: str, config: pb.PodSandboxConfig) -> list[str]:  # noqa: ARG002
        """Refuse."""
        raise RpcError(Code.UNIMPLEMENTED, NO_NETWORK)

    async def delete(self, sandbox_id: str, netns: str, config: pb.PodSandboxConfig) -> None:
        """There is nothing to disconnect."""

    def addresses(self, sandbox_id: str) -> list[str]:  # noqa: ARG002
        """None."""
        return []


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


def build(options: Options) -> Program:
    """The program with its parts. Call it inside the running event loop."""
    engine, host = Engine(options.docker_socket), HostWork()
    least = read_number("/proc/self/oom_score_adj") if options.restrict_oom_score_adj else None
    settings = SandboxSettings(options.pause_image, LOWEST if least is None else least)
    sandboxes = PodSandboxes(engine, HostNetworkOnly(), host, settings)
    containers = Containers(engine, sandboxes, NoLogs(), host)
    images = Images(engine, options.pause_image)
    parts = ServiceParts(engine, Daemon(engine, lambda: NO_NETWORK), sandboxes, containers, images)
    return Program(build_services(parts), {})
