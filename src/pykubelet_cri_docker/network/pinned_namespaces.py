"""Network namespaces of sandboxes, kept until their networks are taken down: mounts of the namespaces in a directory. Blocks.

Without its namespace, a plugin cannot find out what it has set up: the addresses that the rules of the firewall are for, for
example. Docker Engine ends a namespace with the sandbox's process.
"""

from __future__ import annotations

from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath, files, libc, mounts
from pykubelet.edges.host.fs.errors import HostError

_NSFS = 0x6E736673


class PinnedNamespaces:
    """The mounts in `folder`, which is made when it is needed; it is empty after a start of the machine. All methods raise HostError."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, container_id: str) -> str:
        """Where the namespace of a container is kept."""
        return f"{self.folder}/{container_id}"

    def pin(self, container_id: str, netns: str) -> None:
        """Keep the namespace at the path `netns`. What was kept of the container before is released."""
        target = self.path(container_id)
        files.make_dirs(self.folder, 0o700)
        while not files.create_file(target, 0o400):
            self.release(container_id)
        self._mount(netns, target)

    def find(self, container_id: str) -> str:
        """The path of the kept namespace; empty if there is none."""
        target = self.path(container_id)
        try:
            return target if self._is_mounted(target) else ""
        except HostError as error:
            if error.is_not_found:
                return ""
            raise

    def release(self, container_id: str) -> None:
        """Keep the namespace no longer. Idempotent."""
        target = self.path(container_id)
        self._unmount(target)
        files.remove_file(target)

    def containers(self) -> list[str]:
        """The containers that have a file here, with or without a namespace."""
        try:
            return [entry.name for entry in beneath.list_entries(Beneath(self.folder, ""))]
        except HostError as error:
            if error.is_not_found:
                return []
            raise

    def _mount(self, netns: str, target: str) -> None:
        mounts.bind(netns, target)

    def _is_mounted(self, target: str) -> bool:
        return libc.file_system_type(target) == _NSFS

    def _unmount(self, target: str) -> None:
        mounts.unmount(target, detach=True)
