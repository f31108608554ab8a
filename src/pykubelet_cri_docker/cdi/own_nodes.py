"""Device nodes that the machine lacks, made for Docker Engine to take. Blocks: use `base.kit.flight`.

Owns: the nodes in a directory. Docker has no field for the number, mode or owner of a device: it gives a container the node that is at
a path of the host, as it is there when the container starts.
"""

from __future__ import annotations

import os
import stat
import threading

from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import Translating
from pykubelet.edges.host.fs.files import FileKind
from pykubelet_cri_docker.cdi.edits import BLOCK, CHARACTER, HostNode

#: With so many nodes, all are removed before the next is made. A container that has one and starts just then fails, and is made again.
MAX_NODES = 4096
_TYPES = {FileKind.CHAR_DEVICE: CHARACTER, FileKind.BLOCK_DEVICE: BLOCK}


class OwnNodes:
    """The nodes in `directory`. Thread-safe."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()

    def find(self, wanted: HostNode) -> str:
        """The path of such a node, which is made if it is missing. Raises HostError."""
        name = f"{wanted.types[0]}-{wanted.major}-{wanted.minor}-{wanted.mode:o}-{wanted.uid}-{wanted.gid}"
        path = f"{self._directory}/{name}"
        with self._lock:
            if find_node(path) != wanted:
                self._make(path, wanted)
        return path

    def _make(self, path: str, wanted: HostNode) -> None:
        files.make_dirs(self._directory, 0o700)
        if len(present := files.names_in(self._directory)) >= MAX_NODES:
            for name in present:
                files.remove_file(f"{self._directory}/{name}")
        files.remove_file(path)  # not finished by a killed program
        kind = stat.S_IFBLK if wanted.types == BLOCK else stat.S_IFCHR
        with Translating("mknod", path):
            os.mknod(path, kind | 0o600, os.makedev(wanted.major, wanted.minor))
        files.change_owner(path, wanted.uid, wanted.gid)
        files.change_mode(path, wanted.mode)


def find_node(path: str) -> HostNode | None:
    """The device at a path; None if there is none."""
    found = files.stat_file(path)
    if found is None or found.kind not in _TYPES:
        return None
    return HostNode(
        _TYPES[found.kind], os.major(found.rdev), os.minor(found.rdev), found.mode & 0o777, found.uid, found.gid
    )
