"""Containers in sandboxes.

Owns: the calls of the CRI about containers but exec and statistics. A container of Docker that is none of ours is not found.
Raises RpcError, EngineError and HostError.
"""

from __future__ import annotations

from typing import Protocol

from pykubelet.base.kit.log import Log
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import make_dirs, read_text, stat_file
from pykubelet_cri_docker import labels, views
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.errors import invalid
from pykubelet_cri_docker.host_work import HostWork
from pykubelet_cri_docker.render_container import render_container, render_resources, seccomp_path
from pykubelet_cri_docker.sandboxes import PodSandboxes

log = Log("cri-docker")
#: The most bytes of a seccomp profile.
PROFILE_BYTES = 1 << 20


class Logs(Protocol):
    """Makes logs in the format of the CRI of Docker's."""

    def follow(self, container_id: str, source: str, target: str) -> None:
        """Write what Docker logs at `source` to `target` from now on. Does nothing if it is done already."""
        ...

    async def reopen(self, container_id: str) -> None:
        """Write to a new file at the same path. Raises RpcError."""
        ...

    async def finish(self, container_id: str) -> None:
        """Wait until all that the container has written is there."""
        ...

    def forget(self, container_id: str) -> None:
        """The container is removed."""
        ...


class Containers:
    """The containers of Docker Engine that have a sandbox."""

    def __init__(self, engine: Engine, sandboxes: PodSandboxes, logs: Logs, host: HostWork) -> None:
        self._engine = engine
        self._sandboxes = sandboxes
        self._logs = logs
        self._host = host

    async def create(self, sandbox_id: str, config: pb.ContainerConfig, sandbox: pb.PodSandboxConfig) -> str:
        """Create a container in a sandbox that runs; returns its ID."""
        found = await self._sandboxes.inspect(sandbox_id)
        if found.state.status != "running":
            raise EngineError(500, f"sandbox {sandbox_id} is not running")
        if not config.metadata.name or not config.image.image:
            raise invalid("config", "needs metadata.name and image")
        name = labels.container_name(config.metadata, sandbox.metadata)
        seccomp = await self._host.run(f"create {name}", lambda: prepare(config))
        rendered = render_container(config, sandbox, found.id, await self._sandboxes.facts(seccomp))
        return await self._sandboxes.create(name, rendered)

    async def start(self, container_id: str) -> None:
        """Start a created container, and its log."""
        found = await self.inspect(container_id)
        if found.state.status != "created":
            raise EngineError(500, f"container {container_id} is not in created state but {found.state.status}")
        target = found.labels.get(labels.LOG_PATH, "")
        if target:
            self._logs.follow(found.id, found.log_path or await self._log_path(found.id), target)
        await self._engine.start(found.id)

    async def stop(self, container_id: str, grace_s: int) -> None:
        """Stop a container. Idempotent."""
        try:
            found = await self.inspect(container_id)
        except EngineError as error:
            if error.is_not_found:
                return
            raise
        await self._engine.stop(found.id, max(0, grace_s))
        await self._logs.finish(found.id)

    async def remove(self, container_id: str) -> None:
        """Remove a container; kill it first if it runs. Idempotent."""
        try:
            found = await self.inspect(container_id)
        except EngineError as error:
            if error.is_not_found:
                return
            raise
        await self._engine.remove(found.id)
        self._logs.forget(found.id)

    async def inspect(self, container_id: str) -> docker.DockerContainer:
        """A container. Not found if there is none, or if it is none of ours."""
        found = await self._engine.inspect(container_id)
        if found.labels.get(labels.TYPE) != labels.ContainerKind.CONTAINER:
            raise EngineError(404, f"No such container: {container_id}")
        return found

    async def status(self, container_id: str) -> pb.ContainerStatus:
        """The status of a container. Its log is complete when it is shown as exited."""
        found = await self.inspect(container_id)
        status = views.show_container_status(found)
        if status.state == pb.CONTAINER_EXITED:
            await self._logs.finish(found.id)
        return status

    async def list(self, wanted: pb.ContainerFilter) -> list[pb.Container]:
        """The containers that a filter selects."""
        own = [
            f"{labels.TYPE}={labels.ContainerKind.CONTAINER}",
            *(f"{k}={v}" for k, v in wanted.label_selector.items()),
        ]
        if wanted.pod_sandbox_id:
            own.append(f"{labels.SANDBOX_ID}={wanted.pod_sandbox_id}")
        shown = (views.show_container(found) for found in await self._engine.list_containers(own))
        states = (wanted.state.state,) if wanted.HasField("state") else tuple(pb.ContainerState.values())
        return [item for item in shown if item.state in states and item.id.startswith(wanted.id)]

    async def update(self, container_id: str, resources: pb.LinuxContainerResources) -> None:
        """Set the limits of a container."""
        found = await self.inspect(container_id)
        await self._engine.update(found.id, render_resources(resources))

    async def reopen_log(self, container_id: str) -> None:
        """Begin a new log file at the same path."""
        found = await self.inspect(container_id)
        if found.state.status not in ("running", "paused"):
            raise EngineError(500, f"container {container_id} is not running")
        await self._logs.reopen(found.id)

    async def resume_logs(self) -> None:
        """Go on with the logs of the containers that run, after a start of this program."""
        for found in await self._engine.list_containers([f"{labels.TYPE}={labels.ContainerKind.CONTAINER}"]):
            target = (found.labels or {}).get(labels.LOG_PATH, "")
            if target and found.state != "created":
                try:
                    self._logs.follow(found.id, await self._log_path(found.id), target)
                except (EngineError, HostError) as error:
                    log.warning("cannot go on with a log", id=found.id, error=error)

    async def _log_path(self, container_id: str) -> str:
        return (await self._engine.inspect(container_id)).log_path


def prepare(config: pb.ContainerConfig) -> str:
    """Make directories of what is mounted and missing, as the other runtimes do; returns the text of the seccomp profile. Blocks."""
    for mount in config.mounts:
        if mount.host_path and stat_file(mount.host_path) is None:
            make_dirs(mount.host_path, 0o755)
    path = seccomp_path(config.linux.security_context)
    return read_text(path, PROFILE_BYTES) if path else ""
