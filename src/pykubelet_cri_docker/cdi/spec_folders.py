"""The directories of CDI spec files. Blocks: use `base.kit.flight`.

Owns: which files are read. They are read when a container has CDI devices, and only their attributes while nothing has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet_cri_docker.cdi.edits import Injection, SpecFile, own_node, resolve
from pykubelet_cri_docker.cdi.own_nodes import OwnNodes, find_node
from pykubelet_cri_docker.cdi.specs import CdiError, CdiNode, read_spec

#: In the order of their priority; the last one counts most.
DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
SUFFIXES = (".json", ".yaml")
#: Files of a directory beyond this number are ignored.
MAX_FILES = 128
MAX_BYTES = 1 << 20
#: Bytes of all files.
MAX_TOTAL = 8 << 20
_Stamp = tuple[tuple[str, int, int, int, int], ...]
log = Log("cdi")


class SpecFolders:
    """The files in `directories`, and in `own_nodes` the device nodes that they describe and the machine lacks. Thread-safe."""

    def __init__(self, directories: Sequence[str], own_nodes: str) -> None:
        self._directories = tuple(directories)
        self._own_nodes = OwnNodes(own_nodes)
        self._stamp: _Stamp = ()
        self._files: list[SpecFile] = []
        self._lock = threading.Lock()

    def find(self, names: Sequence[str]) -> Injection:
        """The edits for devices by full names. Raises RpcError and HostError."""
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                self._files, self._stamp = self._read(stamp), stamp
            known = self._files
        edits = resolve(known, names)
        described = {node for each in edits for node in each.edits.device_nodes}
        nodes = {node.on_host: find_node(node.on_host) for node in described}
        own: dict[CdiNode, str] = {}
        for node in described:
            if (wanted := own_node(node, nodes[node.on_host])) is not None:
                try:
                    own[node] = self._own_nodes.find(wanted)
                except HostError as error:  # the engine may be able to, or the container is refused
                    log.warning("a device node cannot be made", path=node.path, error=error)
        return Injection(edits, {path: node for path, node in nodes.items() if node is not None}, own)

    def _look(self) -> _Stamp:
        """The files, and what changes with their contents."""
        stamp = []
        for priority, directory in enumerate(self._directories):
            for name in sorted(name for name in files.names_in(directory) if name.endswith(SUFFIXES))[:MAX_FILES]:
                path = f"{directory}/{name}"
                found = files.stat_file(path)
                if found is not None and not found.is_dir:
                    stamp.append((path, priority, found.inode, found.mtime_ns, found.size))
        return tuple(stamp)

    def _read(self, stamp: _Stamp) -> list[SpecFile]:
        read: list[SpecFile] = []
        left = MAX_TOTAL
        for path, priority, _, _, size in stamp:
            left -= size
            try:
                if left < 0:
                    raise CdiError(f"the files have more than {MAX_TOTAL} bytes together")
                read.append(SpecFile(path, priority, read_spec(files.read_bytes(path, MAX_BYTES))))
            except (CdiError, HostError) as error:
                problem = error.message if isinstance(error, HostError) else str(error)
                log.warning("a CDI spec file is skipped", file=path, error=problem)
                read.append(SpecFile(path, priority, None, problem))
        return read
