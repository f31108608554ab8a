"""The networks of pods: attaches sandboxes with CNI plugins, and detaches them.

Owns: which configuration is used, and what is kept on disk. A record is written before the first plugin is called and removed after the
last one has undone its work, so whenever the process or the machine ends, DEL can be called with what ADD was called with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value, replace
from pykubelet.edges.host.fs import files
from pykubelet_cri_docker.network.chain import arguments_of, capabilities_of
from pykubelet_cri_docker.network.config import NetworkList, check_name, read_kept, read_list
from pykubelet_cri_docker.network.config_folder import ConfigFolder, FoundNetwork
from pykubelet_cri_docker.network.disk import CniDisk
from pykubelet_cri_docker.network.gate import OperationGate
from pykubelet_cri_docker.network.model import POD_INTERFACE, Attachment, CniError, NetworkResult, SandboxNetwork
from pykubelet_cri_docker.network.pinned_namespaces import PinnedNamespaces
from pykubelet_cri_docker.network.plugins import CniPlugins
from pykubelet_cri_docker.network.result_cache import ResultCache
from pykubelet_cri_docker.network.results import read_result

#: The words of other runtimes for a node without a network.
NOT_INITIALIZED = "cni plugin not initialized"
LOOPBACK = read_list(b'{"cniVersion":"0.4.0","name":"cni-loopback","plugins":[{"type":"loopback"}]}')
#: Of all plugins of one operation: seconds. The kubelet waits for four minutes.
DEADLINE_S = 220.0
#: Of the plugins that undo a failed ADD or clean up, and of STATUS: seconds.
SHORT_DEADLINE_S = 30.0
log = Log("cni")


class CniDirectories(Value):
    """Where CNI has its files: configurations, programs, and what is kept of attachments."""

    configs: str = "/etc/cni/net.d"
    plugins: tuple[str, ...] = ("/opt/cni/bin", "/usr/lib/cni")
    kept: str = "/var/lib/cni"


class PodNetworks:
    """The network of all pods of the node: the first in the directory of configurations.

    `deadline_s`: for all plugins of ADD, DEL, CHECK or GC together. The text of a CniError names pod, network and plugin. Operations on one
    container run one after the other, and none runs beside `collect`.
    """

    def __init__(
        self, directories: CniDirectories, namespaces: PinnedNamespaces, deadline_s: float = DEADLINE_S
    ) -> None:
        self._deadline_s = deadline_s
        self._disk = CniDisk()
        self._plugins = CniPlugins(directories.plugins, self._disk)
        self._folder = ConfigFolder(directories.configs)
        self._cache = ResultCache(directories.kept)
        self._namespaces = namespaces
        self._reading = asyncio.Lock()
        self._gate = OperationGate()

    async def add(self, pod: SandboxNetwork) -> NetworkResult:
        """Attach a sandbox that runs, and set up its loopback interface. After an error, nothing stays attached. Raises CniError."""
        async with self._gate.container(pod.container_id):
            with _naming(pod):
                network = await self._need_network()
                attachment = _attachment(replace(pod, netns=self._namespaces.path(pod.container_id)), network)
                try:
                    await self._disk.run(lambda: self._keep(attachment, pod.netns))
                    return await self._attach(network, attachment)
                except (CniError, asyncio.CancelledError):
                    await self._undo(attachment)
                    raise

    async def delete(self, pod: SandboxNetwork) -> None:
        """Detach a sandbox from all networks that it is attached to. Does nothing if it has been detached. Raises CniError.

        It is done with the configuration and the result of ADD; if there is no record of it, with the present configuration.
        """
        async with self._gate.container(pod.container_id):
            with _naming(pod):
                kept, netns = await self._disk.run(lambda: self._find_kept(pod))
                for attachment in kept or await self._guess(pod):
                    await self._detach(replace(attachment, netns=netns), self._deadline_s)
                await self._disk.run(lambda: self._namespaces.release(pod.container_id))

    async def check(self, pod: SandboxNetwork) -> None:
        """Raise CniError if the network of an attached sandbox is not as ADD has left it.

        Without effect for networks that switch it off, and for those before 0.4.0, which cannot be checked.
        """
        async with self._gate.container(pod.container_id):
            with _naming(pod):
                attachments, netns = await self._disk.run(lambda: self._find_kept(pod))
                for kept in attachments:
                    network = read_kept(kept.config)
                    if network.disable_check or not network.is_at_least("0.4.0"):
                        continue
                    if kept.result is None:
                        raise CniError(f'network "{network.name}" was not set up to its end')
                    await self._plugins.check(network, replace(kept, netns=netns), self._deadline_s)

    async def status(self) -> str:
        """Why no pod can be attached now: the message of the condition `NetworkReady`. Empty if the network is ready."""
        try:
            network = await self._need_network()
            await self._plugins.find(LOOPBACK)
            if network.is_at_least("1.1.0"):
                await self._plugins.status(network, SHORT_DEADLINE_S)
            else:
                await self._plugins.find(network)
        except CniError as error:
            return f"Network plugin returns error: {error}"
        return ""

    async def collect(self, find_sandboxes: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Detach what is left of containers that are gone. `find_sandboxes`: returns the ids of all that there are; its errors pass.

        Records of other runtimes stay while the namespaces that they name exist. What fails is logged, and is done by a later call.
        """
        async with self._gate.alone():  # no sandbox is attached between the list and the records
            keep = await find_sandboxes()
            try:
                stays = [kept for kept in await self._disk.run(self._list_kept) if not await self._clean(kept, keep)]
                await self._disk.run(lambda: self._release_others({kept.container_id for kept in stays}))
                network = (await self._find_network()).network
                if network is not None and network.is_at_least("1.1.0") and not network.disable_gc:
                    valid = [(kept.container_id, kept.interface) for kept in stays if kept.network == network.name]
                    await self._plugins.collect(network, valid, self._deadline_s)
            except CniError as error:
                log.warning("networks cannot be cleaned up", error=str(error))

    async def find_result(self, container_id: str) -> NetworkResult | None:
        """What `add` has returned for a container that is still attached, also before a restart; None for any other.

        Raises CniError if its record cannot be read.
        """
        for kept in await self._disk.run(lambda: self._cache.find(container_id)):
            if kept.interface == POD_INTERFACE and kept.result is not None:
                return read_result(kept.result, read_kept(kept.config).version)
        return None

    # The parts of operations

    async def _attach(self, network: NetworkList, attachment: Attachment) -> NetworkResult:
        loopback = replace(attachment, network=LOOPBACK.name, interface="lo", capabilities={})
        await self._plugins.add(LOOPBACK, loopback, self._deadline_s)
        raw = await self._plugins.add(network, attachment, self._deadline_s)
        try:
            result = read_result(raw, network.version)
        except CniError as error:
            raise CniError(f'network "{network.name}": {error}') from error
        if not result.pod_ips:
            raise CniError(f'network "{network.name}" has given no address to the pod')
        await self._disk.run(lambda: self._cache.save(replace(attachment, result=raw)))
        return result

    async def _undo(self, attachment: Attachment) -> None:
        """DEL after a failed ADD. If it fails too, the record stays for `delete` and `collect`."""
        try:
            netns = await self._disk.run(lambda: self._namespaces.find(attachment.container_id))
            await self._detach(replace(attachment, netns=netns), SHORT_DEADLINE_S)
            await self._disk.run(lambda: self._namespaces.release(attachment.container_id))
        except CniError as error:
            log.warning("network of a failed sandbox cannot be removed", pod=attachment.pod, cause=str(error))

    async def _detach(self, attachment: Attachment, deadline_s: float) -> None:
        await self._plugins.delete(await self._network_of(attachment), attachment, deadline_s)
        await self._disk.run(lambda: self._cache.remove(attachment))

    async def _network_of(self, attachment: Attachment) -> NetworkList:
        """The configuration that was used; if it cannot be read, the present one of the same name."""
        try:
            return read_kept(attachment.config)
        except CniError as error:
            network = (await self._find_network()).network
            if network is None or network.name != attachment.network:
                raise CniError(f'the record of network "{attachment.network}" has no configuration: {error}') from error
            return network

    async def _guess(self, pod: SandboxNetwork) -> list[Attachment]:
        """The attachment of a pod without a record: to the present network, if it can have been attached at all."""
        network = (await self._find_network()).network
        try:
            return [] if network is None else [_attachment(pod, network)]
        except CniError:
            return []

    async def _clean(self, kept: Attachment, keep: Collection[str]) -> bool:
        """Detach a container that is gone. Returns whether nothing is left of it."""
        if kept.container_id in keep or await self._disk.run(lambda: self._is_of_others(kept)):
            return False
        try:
            netns = await self._disk.run(lambda: self._namespaces.find(kept.container_id))
            await self._detach(replace(kept, netns=netns), SHORT_DEADLINE_S)
        except CniError as error:
            log.warning("network of a container that is gone cannot be removed", pod=kept.pod, cause=str(error))
            return False
        return True

    # Files

    async def _find_network(self) -> FoundNetwork:
        async with self._reading:
            return await self._disk.run(self._folder.find_network)

    async def _need_network(self) -> NetworkList:
        found = await self._find_network()
        if found.network is None:
            raise CniError(f"{NOT_INITIALIZED}: {found.problem}")
        return found.network

    def _find_kept(self, pod: SandboxNetwork) -> tuple[list[Attachment], str]:
        """The attachments of a pod, and its namespace if that is still there. Blocks."""
        return self._cache.find(pod.container_id), self._namespaces.find(pod.container_id) or _present(pod.netns)

    def _keep(self, attachment: Attachment, netns: str) -> None:
        """Record an attachment, and then keep the namespace at `netns` for it. Blocks."""
        self._cache.save(attachment)
        self._namespaces.pin(attachment.container_id, netns)

    def _release_others(self, attached: Collection[str]) -> None:
        """Release the namespaces of containers without a record. Blocks."""
        for container_id in self._namespaces.containers():
            if container_id not in attached:
                self._namespaces.release(container_id)

    def _is_of_others(self, kept: Attachment) -> bool:
        """Whether a record is of another runtime, and its namespace exists. Blocks.

        One that is named after a process may be of another process by now.
        """
        own = self._namespaces.path(kept.container_id)
        return kept.netns != own and not kept.netns.startswith("/proc/") and bool(_present(kept.netns))

    def _list_kept(self) -> list[Attachment]:
        self._cache.sweep()
        return self._cache.find_all()


@contextmanager
def _naming(pod: SandboxNetwork) -> Iterator[None]:
    """Name the pod in the errors of the block."""
    try:
        yield
    except CniError as error:
        raise CniError(f"pod {pod.namespace}/{pod.name}: {error}", error.code) from error


def _attachment(pod: SandboxNetwork, network: NetworkList) -> Attachment:
    """The attachment of a pod to a network. CniError if what it asks for cannot be passed to plugins."""
    check_name("container id", pod.container_id)
    return Attachment(
        network.name,
        pod.container_id,
        POD_INTERFACE,
        pod.netns,
        network.text,
        arguments_of(pod),
        capabilities_of(pod),
    )


def _present(netns: str) -> str:
    """The path of a namespace; empty if there is none any more. Plugins do DEL without one."""
    return netns if netns and files.stat_file(netns) is not None else ""
