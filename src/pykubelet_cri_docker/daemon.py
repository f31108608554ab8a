"""What the CRI asks about the runtime itself: version, conditions, features, the cgroup driver. Raises EngineError."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import NO_SUCH_CALL, EngineError
from pykubelet_cri_docker.logs.log_config import LOG_CONFIG, LOG_DRIVERS

NAME, CRI_VERSION, KUBE_VERSION = "docker", "v1", "0.1.0"
RUNTIME_READY, NETWORK_READY = "RuntimeReady", "NetworkReady"


class Daemon:
    """Docker Engine as the runtime. `network_problem`: why pods get no network; empty if they do."""

    def __init__(self, engine: Engine, network_problem: Callable[[], Awaitable[str]]) -> None:
        self._engine = engine
        self._network_problem = network_problem

    async def version(self) -> pb.VersionResponse:
        """Name and versions."""
        found = await self._engine.version()
        return pb.VersionResponse(
            version=KUBE_VERSION,
            runtime_name=NAME,
            runtime_version=found.version,
            runtime_api_version=CRI_VERSION,
        )

    async def usable(self) -> docker.EngineInfo:
        """The daemon's description. Raises EngineError with the reason if the daemon cannot serve pods."""
        info = await self._engine.info()
        drivers = info.plugins.log
        if drivers and LOG_DRIVERS.isdisjoint(drivers):
            wanted, found = LOG_CONFIG.type, ", ".join(drivers)
            raise EngineError(NO_SUCH_CALL, f"logs of pods need the logging driver {wanted}; the daemon has {found}")
        return info

    async def status(self, *, verbose: bool) -> pb.StatusResponse:
        """The conditions, and what Docker can do. A daemon that does not answer, or cannot serve pods, is not ready; that is no error."""
        runtime = pb.RuntimeCondition(type=RUNTIME_READY, status=True)
        try:
            info = await self.usable()
        except EngineError as error:
            runtime = pb.RuntimeCondition(
                type=RUNTIME_READY, status=False, reason="DockerDaemonNotReady", message=f"docker: {error.message}"
            )
            info = None
        problem = await self._network_problem()
        network = pb.RuntimeCondition(type=NETWORK_READY, status=not problem)
        if problem:
            network.reason, network.message = "NetworkPluginNotReady", f"docker: network plugin is not ready: {problem}"
        api = await self._engine.api_version() if info is not None else (0, 0)
        runtimes = info.runtimes or {} if info is not None else {}
        features = pb.RuntimeHandlerFeatures(recursive_read_only_mounts=api >= (1, 44), user_namespaces=False)
        answer = pb.StatusResponse(
            status=pb.RuntimeStatus(conditions=[runtime, network]),
            runtime_handlers=[pb.RuntimeHandler(name=name, features=features) for name in ("", *sorted(runtimes))],
            features=pb.RuntimeFeatures(supplemental_groups_policy=False),
        )
        if verbose and info is not None:
            answer.info["driver"], answer.info["rootDirectory"] = info.driver, info.docker_root_dir
        return answer

    async def runtime_config(self) -> pb.RuntimeConfigResponse:
        """The cgroup driver of Docker Engine."""
        info = await self._engine.info()
        driver = pb.CgroupDriver.SYSTEMD if info.cgroup_driver == "systemd" else pb.CgroupDriver.CGROUPFS
        return pb.RuntimeConfigResponse(linux=pb.LinuxRuntimeConfiguration(cgroup_driver=driver))
