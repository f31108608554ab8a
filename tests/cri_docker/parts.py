"""The parts of the program on a Docker Engine that answers as a test wants."""

from __future__ import annotations

from pathlib import Path

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.edges.host.cgroups.cgroups_v2 import CgroupsV2
from pykubelet_cri_docker.cdi.spec_folders import SpecFolders
from pykubelet_cri_docker.container_limits import ContainerLimits, ContainerScopes
from pykubelet_cri_docker.containers import Containers
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.host_work import HostWork
from pykubelet_cri_docker.logs.log_writers import LogWriters
from pykubelet_cri_docker.network.pinned_namespaces import PinnedNamespaces
from pykubelet_cri_docker.network.pod_networks import CniDirectories, PodNetworks
from pykubelet_cri_docker.sandboxes import PodSandboxes, SandboxSettings


def make_sandboxes(engine: Engine, top: Path) -> PodSandboxes:
    """Sandboxes that keep what they keep below `top`."""
    return PodSandboxes(engine, make_networks(top), HostWork(), SandboxSettings("pause"))


def make_networks(top: Path) -> PodNetworks:
    """Networks that keep what they keep below `top`."""
    return PodNetworks(CniDirectories(kept=str(top)), PinnedNamespaces(str(top / "netns")))


def make_logs(top: Path) -> LogWriters:
    """Logs that keep what they keep below `top`. Close them, as they have a descriptor."""
    return LogWriters(str(top / "logs"), SingleFlight("logs"))


def make_containers(
    engine: Engine, top: Path, limits: ContainerLimits | None = None, logs: LogWriters | None = None
) -> Containers:
    """Containers that keep what they keep below `top`."""
    host = HostWork()
    own = limits or ContainerLimits(CgroupsV2(str(top)), ContainerScopes(), host, str(top / "limits"))
    return Containers(
        engine, make_sandboxes(engine, top), logs or make_logs(top), own, SpecFolders([], str(top / "devices")), host
    )
