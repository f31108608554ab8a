"""Containers in sandboxes.

Owns: the calls of the CRI about containers but exec and statistics. A container of Docker that is none of ours is not found.
Raises RpcError, EngineError and HostError.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pykubelet.base.kit.log import Log
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import make_dirs, read_text, stat_file
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker import apparmor, labels, views
from pykubelet_cri_docker.cdi.edits import inject, requested
from pykubelet_cri_docker.cdi.spec_folders import SpecFolders
from pykubelet_cri_docker.container_limits import ContainerLimits
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.errors import invalid, not_running
from pykubelet_cri_docker.host_work import HostWork
from pykubelet_cri_docker.logs.log_writers import LogWriters
from pykubelet_cri_docker.render_container import apparmor_name, render_container, render_resources, seccomp_path
from pykubelet_cri_docker.sandboxes import PodSandboxes, resolv_conf_of

log = Log("cri-docker")
#: The most bytes of a seccomp profile.
PROFILE_BYTES = 1 << 20
#: How long a status waits for the end of the log; a full disk must not delay it for longer.
LOG_S = 2.0
#: How long a status waits for the log of a container that runs, which may write faster than it is copied.
CATCH_UP_S = 0.2


class Containers:
    """The containers of Docker Engine that have a sandbox."""

    def __init__(
        self,
        engine: Engine,
        sandboxes: PodSandboxes,
        logs: LogWriters,
        limits: ContainerLimits,
        devices: SpecFolders,
        host: HostWork,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._devices = devices
        self._sandboxes = sandboxes
        self._logs = logs
        self._host = host

    async def create(self, sandbox_id: str, config: pb.ContainerConfig, sandbox: pb.PodSandboxConfig) -> str:
        """Create a container in a sandbox that runs; returns its ID."""
        found = await self._sandboxes.inspect_ready(sandbox_id)
        if not config.metadata.name or not config.image.image:
            raise invalid("config", "needs metadata.name and image")
        config.linux.resources.CopyFrom(await self._limits.accepted(config.linux.resources))
        name = labels.container_name(config.metadata, sandbox.metadata)
        seccomp = await self._host.run(f"create {name}", lambda: prepare(config))
        own_resolv_conf = "" if found.resolv_conf_path else resolv_conf_of(found)
        facts = await self._sandboxes.facts(seccomp, found.labels.get(labels.RUNTIME_HANDLER, ""), own_resolv_conf)
        rendered = render_container(config, sandbox, found.id, facts)
        if config.CDI_devices:
            rendered = await self._with_devices(name, rendered, [device.name for device in config.CDI_devices])
        return await self._sandboxes.create("container", name, rendered)

    async def _with_devices(
        self, name: str, rendered: docker.NewContainer, devices: Sequence[str]
    ) -> docker.NewContainer:
        """A container with CDI devices. Those with edits that have no field are left to an engine that has CDI itself."""
        injection = await self._host.run(f"CDI {name}", lambda: self._devices.find(devices))
        try:
            return inject(rendered, injection)
        except RpcError as error:
            if error.code is not Code.UNIMPLEMENTED or not (await self._engine.info()).cdi_spec_dirs:
                raise
        return requested(rendered, devices)

    async def start(self, container_id: str) -> None:
        """Start a created container, and its log. One that cannot get its limits is killed."""
        found = await self.inspect(container_id)
        if found.state.status != "created":
            raise EngineError(500, f"container {container_id} is not in created state but {found.state.status}")
        if target := found.labels.get(labels.LOG_PATH, ""):
            await self._logs.create(target)
        try:
            await self._engine.start(found.id)
            started = await self.inspect(found.id)
            self._follow_log(started)
            await self._limits.apply(started)
        except BaseException:
            await self._end_unlimited(found)
            raise

    async def _end_unlimited(self, found: docker.DockerContainer) -> None:
        """Kill a container whose start has failed, or was given up, before it had its limits. It may run all the same."""
        if await self._limits.has(found):
            with suppress(EngineError):  # it does not run
                await self._engine.kill(found.id, "KILL")

    async def stop(self, container_id: str, grace_s: int) -> None:
        """Stop a container. Idempotent."""
        if (found := await self._engine.find(container_id, labels.OF_CONTAINER, labels.NAMES)) is None:
            return
        await self._engine.stop(found.id, max(0, grace_s))
        await self._logs.finish(found.id)

    async def remove(self, container_id: str) -> None:
        """Remove a container; kill it first if it runs. Idempotent."""
        if (found := await self._engine.find(container_id, labels.OF_CONTAINER, labels.NAMES)) is None:
            return
        await self._engine.remove(found.id)
        await self._logs.forget(found.id)
        await self._limits.forget(found.id)

    async def remove_all(self, sandbox_id: str) -> None:
        """Remove the containers of a sandbox."""
        for container in await self._engine.list_containers(
            [labels.OF_CONTAINER, f"{labels.SANDBOX_ID}={sandbox_id}"], labels.NAMES
        ):
            await self.remove(container.id)

    async def inspect(self, container_id: str) -> docker.DockerContainer:
        """A container. Not found if there is none, or if it is none of ours."""
        if (found := await self._engine.find(container_id, labels.OF_CONTAINER, labels.NAMES)) is None:
            raise EngineError(404, f"No such container: {container_id}")
        return found

    async def inspect_running(self, container_id: str) -> docker.DockerContainer:
        """A container that a command can be run in."""
        found = await self.inspect(container_id)
        state = views.container_state(found.state.status)
        if state != pb.CONTAINER_RUNNING:
            raise not_running("failed to exec in container", pb.ContainerState.Name(state))
        return found

    async def status(self, container_id: str) -> pb.ContainerStatus:
        """The status of a container. Its log is complete when it is shown as exited."""
        found = await self.inspect(container_id)
        if views.container_state(found.state.status) == pb.CONTAINER_RUNNING:
            self._follow_log(found)  # its start may not have come that far
        status = views.show_container_status(found, await self._limits.of(found))
        if status.state == pb.CONTAINER_EXITED:
            await self._logs.finish(found.id, LOG_S)
        return status

    async def status_and_log(self, container_id: str) -> pb.ContainerStatus:
        """The status, for a client that may read the log next: it has all that Docker has of the container's output by then."""
        status = await self.status(container_id)
        if status.state == pb.CONTAINER_RUNNING:
            await self._logs.catch_up(status.id, CATCH_UP_S)
        return status

    async def list(self, wanted: pb.ContainerFilter) -> list[pb.Container]:
        """The containers that a filter selects."""
        own = [
            labels.OF_CONTAINER,
            *(f"{k}={v}" for k, v in wanted.label_selector.items()),
        ]
        if wanted.pod_sandbox_id:
            own.append(f"{labels.SANDBOX_ID}={wanted.pod_sandbox_id}")
        shown = (views.show_container(found) for found in await self._engine.list_containers(own, labels.NAMES))
        states = (wanted.state.state,) if wanted.HasField("state") else tuple(pb.ContainerState.values())
        return [item for item in shown if item.state in states and item.id.startswith(wanted.id)]

    async def update(self, container_id: str, resources: pb.LinuxContainerResources) -> None:
        """Set the limits of a container."""
        found = await self.inspect(container_id)
        accepted = await self._limits.accepted(resources)
        await self._engine.update(found.id, render_resources(accepted))
        await self._limits.update(found, accepted)

    async def reopen_log(self, container_id: str) -> None:
        """Begin a new log file at the same path."""
        found = await self.inspect(container_id)
        if found.state.status not in ("running", "paused"):
            raise EngineError(500, f"container {container_id} is not running")
        await self._logs.reopen(found.id)

    async def resume(self) -> None:
        """Go on with all containers after a start of this program, and forget what is kept of those that are gone."""
        stored = {*await self._logs.stored()}  # before the containers: later ones are not gone
        found = await self._engine.list_containers([labels.OF_CONTAINER], labels.NAMES)
        for container in found:
            if container.state != "created":
                await self._resume(container.id)
        present = {container.id for container in found}
        for container_id in stored - present:
            await self._logs.forget(container_id)
        await self._limits.collect(present)

    async def _resume(self, container_id: str) -> None:
        if (found := await self._engine.find(container_id, labels.OF_CONTAINER, labels.NAMES)) is None:
            return  # it was removed after the list was made
        self._follow_log(found)
        try:
            await self._limits.apply(found)  # the program may have been killed between the start and this
        except (HostError, RpcError) as error:
            log.warning("limits of a container cannot be set", id=found.id, error=error)

    def _follow_log(self, found: docker.DockerContainer) -> None:
        """Copy the log of a container that was started. Docker names its file only then."""
        target = found.labels.get(labels.LOG_PATH, "")
        if target and found.log_path:
            self._logs.follow(found.id, found.log_path, target)


def prepare(config: pb.ContainerConfig, kernel: apparmor.AppArmorFiles = apparmor.KERNEL) -> str:
    """Check the AppArmor profile, and make directories of what is mounted and missing, as the other runtimes do.

    Returns the text of the seccomp profile. Blocks.
    """
    if profile := apparmor_name(config.linux.security_context):
        apparmor.check_profile(profile, kernel)
    for mount in config.mounts:
        if mount.host_path and stat_file(mount.host_path) is None:
            make_dirs(mount.host_path, 0o755)
    path = seccomp_path(config.linux.security_context)
    return read_text(path, PROFILE_BYTES) if path else ""
