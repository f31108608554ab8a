"""CNI plugins that are shell scripts, which record how they were called, and the directories of a node that uses them."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pykubelet.edges.host.fs.errors import HostError
from pykubelet_cri_docker.network.model import SandboxNetwork
from pykubelet_cri_docker.network.pinned_namespaces import PinnedNamespaces
from pykubelet_cri_docker.network.pod_networks import CniDirectories

RESULT: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "cni0", "mac": "00:00:00:00:00:01"}, {"name": "eth0", "sandbox": "/proc/7/ns/net"}],
    "ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 1}],
    "routes": [{"dst": "0.0.0.0/0"}],
    "dns": {"nameservers": ["10.1.0.10"]},
}
_SCRIPT = """#!/bin/sh
folder={folder}
type=${{0##*/}}
call=$folder/calls/$(printf %03d $(ls $folder/calls | wc -l))-$CNI_COMMAND-$type
mkdir $call
env | grep ^CNI_ > $call/variables
cat > $call/config
if [ -e $folder/behavior/$type-$CNI_COMMAND ]; then . $folder/behavior/$type-$CNI_COMMAND
elif [ $CNI_COMMAND = ADD ]; then cat $folder/result
fi
"""


@dataclass(frozen=True)
class Called:
    """A call that a plugin got."""

    command: str
    type: str
    variables: dict[str, str]
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """CniCommand and plugin: `ADD first`."""
        return f"{self.command} {self.type}"


class NamespaceFiles(PinnedNamespaces):
    """Files in place of mounts: nothing that needs root, or stays mounted after a test."""

    def _mount(self, netns: str, target: str) -> None:
        if not os.path.exists(netns):
            raise HostError("mount", target, "ENOENT", "no such file or directory")

    def _is_mounted(self, target: str) -> bool:
        return os.path.exists(target)

    def _unmount(self, target: str) -> None:
        pass


class ScriptedPlugins:
    """Plugins below a folder. `directories`: those of a node that has no others."""

    def __init__(self, folder: Path, *types: str) -> None:
        self._folder = folder
        self.directories = CniDirectories(f"{folder}/net.d", (f"{folder}/missing", f"{folder}/bin"), f"{folder}/kept")
        self.namespaces = NamespaceFiles(f"{folder}/pinned")
        for name in ("net.d", "bin", "calls", "behavior"):
            (folder / name).mkdir()
        for type_ in (*types, "loopback"):
            self.install(type_)
        self.give(RESULT)

    def install(self, type_: str) -> None:
        """A plugin of this type."""
        path = self._folder / "bin" / type_
        path.write_text(_SCRIPT.format(folder=shlex.quote(str(self._folder))))
        path.chmod(0o755)

    def remove(self, type_: str) -> None:
        """Uninstall a plugin."""
        (self._folder / "bin" / type_).unlink()

    def give(self, result: dict[str, Any]) -> None:
        """What ADD of all plugins prints from now on."""
        (self._folder / "result").write_text(json.dumps(result))

    def on(self, type_: str, command: str, script: str) -> None:
        """What a plugin does from now on when it gets a command; an empty script: what it did at first."""
        path = self._folder / "behavior" / f"{type_}-{command}"
        path.unlink(missing_ok=True)
        if script:
            path.write_text(script)

    def fail(self, type_: str, command: str, text: str, code: int = 11) -> None:
        """Let a plugin report an error."""
        self.on(type_, command, f"echo {shlex.quote(json.dumps({'code': code, 'msg': text}))}; exit 1")

    def configure(self, *types: str, name: str = "10-test.conflist", **fields: Any) -> None:
        """A configuration list with plugins of these types."""
        plugins = [{"type": type_, "capabilities": {"portMappings": True}} for type_ in types]
        document = {"cniVersion": "1.0.0", "name": "test", "plugins": plugins} | fields
        (self._folder / "net.d" / name).write_text(json.dumps(document))

    def write(self, name: str, text: str) -> None:
        """A file in the directory of configurations."""
        (self._folder / "net.d" / name).write_text(text)

    def calls(self) -> list[Called]:
        """The calls since the last time, in their order."""
        found = []
        for path in sorted((self._folder / "calls").iterdir()):
            _, command, type_ = path.name.split("-", 2)
            lines = (path / "variables").read_text().splitlines()
            config = json.loads((path / "config").read_text())
            found.append(Called(command, type_, dict(line.split("=", 1) for line in lines), config))
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        return found

    def call_names(self) -> list[str]:
        """The names of `calls`."""
        return [call.name for call in self.calls()]

    def kept(self) -> list[str]:
        """The names of the files of attachments."""
        return sorted(path.name for path in Path(self.directories.kept, "results").glob("*"))


def known(*container_ids: str) -> Callable[[], Awaitable[Collection[str]]]:
    """Lists these sandboxes."""

    async def find() -> Collection[str]:
        return container_ids

    return find


def sandbox_network(container_id: str = "c1", netns: str = "/proc/self/ns/net", **fields: Any) -> SandboxNetwork:
    """The sandbox of the pod `default/web`."""
    return SandboxNetwork(container_id, netns, "default", "web", "u-1", **fields)
