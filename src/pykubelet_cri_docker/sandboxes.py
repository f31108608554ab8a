"""PodSandboxes: the containers that hold the namespaces of pods, and their networks.

Owns: RunPodSandbox, StopPodSandbox, RemovePodSandbox, and what is shown of sandboxes. Each step can be repeated: what a
killed process left behind is found by its labels. Raises RpcError, EngineError, CniError and HostError.
"""

from __future__ import annotations

import asyncio
import builtins
import posixpath
from collections.abc import Collection
from contextlib import suppress
from typing import Protocol

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_text, write_in_place
from pykubelet.net.grpc.status import RpcError
from pykubelet_cri_docker import labels, views
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.errors import invalid, name_in_use
from pykubelet_cri_docker.host_work import HostWork
from pykubelet_cri_docker.images import Images
from pykubelet_cri_docker.network.from_cri import network_of
from pykubelet_cri_docker.network.model import CniError, NetworkResult, SandboxNetwork
from pykubelet_cri_docker.render_container import RESOLV_CONF, RenderFacts, render_sandbox, seccomp_path

log = Log("cri-docker")
STOP_S = 10
#: How long RunPodSandbox waits for the removal of what it began: Docker Engine is busy with a container that it starts.
GIVE_UP_S = 2.0


class Network(Protocol):
    """The networks of pods. Its errors are CniErrors."""

    async def add(self, pod: SandboxNetwork) -> NetworkResult:
        """Connect a sandbox."""
        ...

    async def delete(self, pod: SandboxNetwork) -> None:
        """Disconnect it. Idempotent."""

    async def find_result(self, container_id: str) -> NetworkResult | None:
        """What `add` returned, also before a restart; None for a sandbox that is not connected."""
        ...


class SandboxSettings(Value):
    """`pause_image`: of the containers that hold namespaces. `least_oom_score_adj`: as in `RenderFacts`."""

    pause_image: str
    least_oom_score_adj: int = -1000


class PodSandboxes:
    """The sandboxes of Docker Engine."""

    def __init__(self, engine: Engine, network: Network, host: HostWork, settings: SandboxSettings) -> None:
        self._engine = engine
        self._network = network
        self._host = host
        self._settings = settings
        self._images = Images(engine, settings.pause_image)
        self._pull = asyncio.Lock()
        self._making: set[str] = set()
        self._abandoned: set[str] = set()
        self._ending: set[str] = set()

    async def run(self, config: pb.PodSandboxConfig, runtime_handler: str) -> str:
        """Create and start a sandbox with its network; returns its ID.

        One that could not be completed is removed, at once or as soon as Docker Engine can; until then it is not shown.
        """
        if not config.metadata.uid or not config.metadata.name:
            raise invalid("config.metadata", "needs a name and a uid")
        name, path = labels.sandbox_name(config.metadata), seccomp_path(config.linux.security_context)
        seccomp = await self._host.run(f"create {name}", lambda: read_text(path)) if path else ""
        rendered = render_sandbox(config, self._settings.pause_image, await self.facts(seccomp, runtime_handler))
        self._making.add(name)
        try:
            sandbox_id = await self._create(name, rendered)
            try:
                await self._engine.start(sandbox_id)
                await self._set_up(sandbox_id, config)
            except BaseException:
                await self._give_up(sandbox_id)
                raise
            return sandbox_id
        finally:
            self._making.discard(name)

    async def _create(self, name: str, rendered: docker.NewContainer) -> str:
        """Create a sandbox. Its image is pulled if it is missing: no client of the CRI pulls it."""
        try:
            return await self.create("sandbox", name, rendered)
        except EngineError as error:
            if not error.is_not_found:
                raise
        async with self._pull:
            if await self._images.status(rendered.image) is None:
                log.info("pulling the image of sandboxes", image=rendered.image)
                await self._images.pull(rendered.image, pb.AuthConfig())
        return await self.create("sandbox", name, rendered)

    async def create(self, kind: str, name: str, rendered: docker.NewContainer) -> str:
        """Create a container. `kind`: what it is in the CRI, for the error if the name is in use."""
        try:
            return await self._engine.create(name, rendered)
        except EngineError as error:
            if error.is_conflict or error.status == 500:  # of Podman, also for a name in use
                with suppress(EngineError):
                    raise name_in_use(kind, name, (await self._engine.inspect(name)).id) from error
            raise

    async def facts(self, seccomp: str, runtime_handler: str, resolv_conf: str = "") -> RenderFacts:
        """What a container depends on beside its config."""
        least = self._settings.least_oom_score_adj
        return RenderFacts(seccomp, await self._engine.api_version(), least, runtime_handler, resolv_conf)

    async def stop(self, sandbox_id: str) -> None:
        """Kill the containers of a sandbox, disconnect it, and stop it. Idempotent.

        It is not ready from the beginning on: a client that sees a container end must not start it again in this sandbox.
        """
        if (found := await self._find(sandbox_id)) is None:
            return
        self._ending.add(found.id)
        try:
            inside = await self._inside(found.id)
            running = [each.id for each in inside if views.container_state(each.state) == pb.CONTAINER_RUNNING]
            await asyncio.gather(*(self._engine.stop(container_id, 0) for container_id in running))
            await self._disconnect(found)
            await self._engine.stop(found.id, STOP_S)
        finally:
            self._ending.discard(found.id)

    async def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox that has no containers any more. Idempotent."""
        if (found := await self._find(sandbox_id)) is not None:
            await self._remove(found)

    async def remove_incomplete(self) -> None:
        """Remove the sandboxes that a call, a killed program or a killed daemon left half made. Nothing runs in them."""
        begun = [sandbox.id for sandbox in await self._list([]) if sandbox.state in ("created", "running")]
        removals = (self._remove_incomplete(sandbox_id) for sandbox_id in {*begun, *self._abandoned})
        for outcome in await asyncio.gather(*removals, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def inspect_ready(self, sandbox_id: str) -> docker.DockerContainer:
        """A sandbox that containers can be created in."""
        found = await self.inspect(sandbox_id)
        if found.state.status != "running" or found.id in self._ending or not await self._is_complete(found):
            raise EngineError(500, f"sandbox {sandbox_id} is not running")
        return found

    async def inspect(self, sandbox_id: str) -> docker.DockerContainer:
        """A sandbox. Not found if there is none, or if the container is none of ours."""
        if (found := await self._find(sandbox_id)) is None:
            raise EngineError(404, f"No such sandbox: {sandbox_id}")
        return found

    async def status(self, sandbox_id: str) -> pb.PodSandboxStatus:
        """The status of a sandbox with its addresses."""
        found = await self.inspect(sandbox_id)
        result = await self._network.find_result(found.id)
        status = views.show_sandbox_status(found, result.pod_ips if result else ())
        has_network = result is not None or _is_on_host(labels.sandbox_config(found.labels))
        if not has_network or found.id in self._ending:
            status.state = pb.SANDBOX_NOTREADY
        return status

    async def ids(self) -> Collection[str]:
        """The sandboxes that there are, whether they run or not."""
        found = await self._engine.list_containers([labels.OF_SANDBOX], labels.NAMES)
        return {sandbox.id for sandbox in found}

    async def list(self, wanted: pb.PodSandboxFilter) -> list[pb.PodSandbox]:
        """The sandboxes that a filter selects."""
        selectors = [f"{name}={value}" for name, value in wanted.label_selector.items()]
        shown = [views.show_sandbox(found) for found in await self._list(selectors)]
        for item in shown:
            if item.id in self._ending:
                item.state = pb.SANDBOX_NOTREADY
        states = (wanted.state.state,) if wanted.HasField("state") else tuple(pb.PodSandboxState.values())
        return [item for item in shown if item.state in states and item.id.startswith(wanted.id)]

    async def _find(self, sandbox_id: str) -> docker.DockerContainer | None:
        return (
            None
            if sandbox_id in self._abandoned
            else await self._engine.find(sandbox_id, labels.OF_SANDBOX, labels.NAMES)
        )

    async def _list(self, selectors: builtins.list[str]) -> builtins.list[docker.ContainerSummary]:
        """The sandboxes that are complete, as far as this program knows."""
        making = {f"/{name}" for name in self._making}
        found = await self._engine.list_containers([labels.OF_SANDBOX, *selectors], labels.NAMES)
        return [each for each in found if each.id not in self._abandoned and making.isdisjoint(each.names or ())]

    async def _inside(self, sandbox_id: str) -> builtins.list[docker.ContainerSummary]:
        return await self._engine.list_containers(
            [labels.OF_CONTAINER, f"{labels.SANDBOX_ID}={sandbox_id}"], labels.NAMES
        )

    async def _is_complete(self, found: docker.DockerContainer) -> bool:
        """Whether a sandbox that runs has its network."""
        if _is_on_host(labels.sandbox_config(found.labels)):
            return found.state.status != "created"
        return await self._network.find_result(found.id) is not None

    async def _set_up(self, sandbox_id: str, config: pb.PodSandboxConfig) -> None:
        found = await self._engine.inspect(sandbox_id)
        await self._host.run(
            f"resolv.conf {sandbox_id}", lambda: write_resolv_conf(resolv_conf_of(found), config.dns_config)
        )
        if not _is_on_host(config):
            if not found.state.pid:
                raise EngineError(500, f"the sandbox ended with exit code {found.state.exit_code}: {found.state.error}")
            await self._network.add(network_of(found.id, netns_of(found), config))

    async def _disconnect(self, found: docker.DockerContainer) -> None:
        config = labels.sandbox_config(found.labels)
        if not _is_on_host(config):
            await self._network.delete(network_of(found.id, netns_of(found), config))

    async def _give_up(self, sandbox_id: str) -> None:
        self._abandoned.add(sandbox_id)
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await self._remove_incomplete(sandbox_id)
        except (CniError, EngineError, HostError, RpcError, TimeoutError) as error:
            why = f"not removed within {GIVE_UP_S:g} s" if isinstance(error, TimeoutError) else str(error)
            log.warning("a sandbox that could not be completed is removed later", id=sandbox_id, error=why)
            self._engine.lost.set()

    async def _remove_incomplete(self, sandbox_id: str) -> None:
        found = await self._engine.find(sandbox_id, labels.OF_SANDBOX, labels.NAMES)
        is_left = sandbox_id in self._abandoned
        if found is not None and not is_left:
            is_left = not await self._is_complete(found) and not await self._inside(found.id)
        if found is not None and is_left:
            log.info("removing a sandbox that was not completed", id=found.id)
            await self._remove(found)
        self._abandoned.discard(sandbox_id)

    async def _remove(self, found: docker.DockerContainer) -> None:
        await self._disconnect(found)
        await self._engine.remove(found.id)


def netns_of(found: docker.DockerContainer) -> str:
    """The network namespace of a sandbox; empty if it does not run."""
    return f"/proc/{found.state.pid}/ns/net" if found.state.pid else ""


def resolv_conf_of(found: docker.DockerContainer) -> str:
    """The resolv.conf of a sandbox: the engine's, or beside the engine's other files if it makes none, as Podman does without a network."""
    return found.resolv_conf_path or (
        f"{posixpath.dirname(found.hostname_path)}/resolv.conf" if found.hostname_path else ""
    )


def _is_on_host(config: pb.PodSandboxConfig) -> bool:
    return config.linux.security_context.namespace_options.network == pb.NODE


def write_resolv_conf(path: str, wanted: pb.DNSConfig) -> None:
    """Write the file that all containers of a sandbox see: of the pod, or a copy of the host's. Blocks."""
    if path:
        text = resolv_conf(wanted) or read_text(RESOLV_CONF)
        write_in_place(path, text.encode())


def resolv_conf(wanted: pb.DNSConfig) -> str:
    """The pod's resolv.conf; empty if it has no DNS configuration of its own. Pure."""
    search = [f"search {' '.join(wanted.searches)}"] if wanted.searches else []
    options = [f"options {' '.join(wanted.options)}"] if wanted.options else []
    lines = [*search, *(f"nameserver {server}" for server in wanted.servers), *options]
    return "".join(f"{line}\n" for line in lines)
