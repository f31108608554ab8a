"""Finds and runs the plugins of networks: the only module of the package that starts programs.

Owns: the order of plugins, their environment, their deadline, and the words in which their errors are reported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import run_program
from pykubelet_cri_docker.network.chain import CniCommand, PluginInput, attachment_input, network_input
from pykubelet_cri_docker.network.config import NetworkList
from pykubelet_cri_docker.network.disk import CniDisk
from pykubelet_cri_docker.network.model import Attachment, CniError, JsonObject
from pykubelet_cri_docker.network.results import is_gone, read_failure, read_object

#: Of a plugin's output, and of its errors: bytes.
OUTPUT_BYTES = 1 << 20


class CniPlugins:
    """The plugins in `directories`, of which the first that has a plugin counts.

    A deadline is for all plugins of one call together: seconds. CniError: a plugin is missing, has failed, or was killed at the
    deadline; those after it were not called.
    """

    def __init__(self, directories: Sequence[str], disk: CniDisk) -> None:
        self._directories = tuple(directories)
        self._disk = disk

    async def find(self, network: NetworkList) -> dict[str, str]:
        """The paths of all plugins of a network by type. CniError names the first that is missing."""
        wanted = dict.fromkeys(plugin.type for plugin in network.plugins)
        found = await self._disk.run(lambda: find_plugins(wanted, self._directories))
        for type_ in wanted:
            if type_ not in found:
                places = " ".join(self._directories)
                raise CniError(f'network "{network.name}": failed to find plugin "{type_}" in path [{places}]')
        return found

    async def add(self, network: NetworkList, attachment: Attachment, deadline_s: float) -> JsonObject:
        """Call ADD, each plugin with the result of the one before it. Returns the result of the last one."""
        paths, deadline = await self.find(network), _Deadline(deadline_s)
        result: JsonObject | None = None
        for plugin in network.plugins:
            given = attachment_input(CniCommand.ADD, network, plugin, attachment, result)
            out = await self._call(paths[plugin.type], given, deadline)
            try:
                result = read_object(out)
            except CniError as error:
                raise CniError(f"{given.failed}: {error}") from error
        return result or {}

    async def delete(self, network: NetworkList, attachment: Attachment, deadline_s: float) -> None:
        """Call DEL in the reverse order. What is gone already is no error."""
        paths, deadline = await self.find(network), _Deadline(deadline_s)
        result = attachment.result if network.is_at_least("0.4.0") else None
        for plugin in reversed(network.plugins):
            try:
                await self._call(
                    paths[plugin.type], attachment_input(CniCommand.DEL, network, plugin, attachment, result), deadline
                )
            except CniError as error:
                if not is_gone(error, attachment.netns):
                    raise

    async def check(self, network: NetworkList, attachment: Attachment, deadline_s: float) -> None:
        """Call CHECK with the result of ADD."""
        paths, deadline = await self.find(network), _Deadline(deadline_s)
        for plugin in network.plugins:
            given = attachment_input(CniCommand.CHECK, network, plugin, attachment, attachment.result)
            await self._call(paths[plugin.type], given, deadline)

    async def status(self, network: NetworkList, deadline_s: float) -> None:
        """Call STATUS."""
        paths, deadline = await self.find(network), _Deadline(deadline_s)
        for plugin in network.plugins:
            await self._call(paths[plugin.type], network_input(CniCommand.STATUS, network, plugin), deadline)

    async def collect(self, network: NetworkList, valid: Sequence[tuple[str, str]], deadline_s: float) -> None:
        """Call GC. `valid`: the containers and interfaces of all attachments that stay."""
        paths, deadline = await self.find(network), _Deadline(deadline_s)
        for plugin in network.plugins:
            await self._call(paths[plugin.type], network_input(CniCommand.GC, network, plugin, valid), deadline)

    async def _call(self, path: str, given: PluginInput, deadline: _Deadline) -> bytes:
        """Run a plugin to its end, and return what it printed."""
        variables = {**os.environ, **given.variables, "CNI_PATH": os.pathsep.join(self._directories)}
        try:
            ran = await run_program(
                (path,), stdin=given.stdin, env=variables, timeout_s=deadline.left_s, limit=OUTPUT_BYTES
            )
        except HostError as error:
            is_late = error.errno_name == "ETIMEDOUT"
            late = f"it was killed, because the network did not answer within {deadline.seconds:g} s"
            raise CniError(f"{given.failed}: {late if is_late else error.message}") from error
        if ran.code != 0:
            failure = read_failure(ran.out, ran.err, ran.code)
            raise CniError(f"{given.failed}: {failure}", failure.code)
        if ran.out_cut:
            raise CniError(f"{given.failed}: it printed more than {OUTPUT_BYTES} bytes")
        return ran.out


class _Deadline:
    """The time that several plugins have together, from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = asyncio.get_running_loop().time() + seconds

    @property
    def left_s(self) -> float:
        """What is left of it."""
        return max(0.0, self._until - asyncio.get_running_loop().time())


def find_plugins(types: Iterable[str], directories: Sequence[str]) -> dict[str, str]:
    """The paths of plugins by type; missing ones are left out. Blocks.

    A type is the name of a file: `read_list` refuses all others.
    """
    found = {}
    for type_ in types:
        for directory in directories:
            path = f"{directory}/{type_}"
            if os.path.isfile(path) and os.access(path, os.X_OK):
                found[type_] = path
                break
    return found
