"""The directory of CNI configurations, of which the first valid file counts. Blocks: use `base.kit.flight`.

Owns: which file is used, and the warnings about the others. The directory is read when a network is needed, and only its attributes
and those of its files while nothing has changed.
"""

from __future__ import annotations

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet_cri_docker.network.config import MAX_CONFIG_BYTES, NetworkList, read_list, read_single
from pykubelet_cri_docker.network.model import CniError

SUFFIXES = (".conflist", ".conf", ".json")
#: Files with these suffixes beyond this number are ignored.
MAX_FILES = 64
_Stamp = tuple[tuple[str, int, int, int], ...]
log = Log("cni")


class FoundNetwork(Value):
    """The network of a directory of configurations. `problem`: why there is none; empty if there is."""

    network: NetworkList | None
    problem: str = ""


class ConfigFolder:
    """The configurations in `directory`. Not for several threads at once."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._stamp: _Stamp | None = None
        self._found = FoundNetwork(None)

    def find_network(self) -> FoundNetwork:
        """The network of the first valid file in the order of names; each invalid one is logged once."""
        try:
            stamp = self._look()
        except HostError as error:
            self._stamp = None
            return FoundNetwork(None, f"no network config found in {self._directory}: {error.message}")
        if stamp != self._stamp:
            self._found = self._read([name for name, *_ in stamp])
            self._stamp = stamp
        return self._found

    def _look(self) -> _Stamp:
        """The names of the files, and what changes with their contents."""
        names = [entry.name for entry in files.list_dir(self._directory) if entry.name.endswith(SUFFIXES)]
        stamp = []
        for name in names[:MAX_FILES]:
            found = files.stat_file(f"{self._directory}/{name}")
            if found is not None and not found.is_dir:
                stamp.append((name, found.inode, found.mtime_ns, found.size))
        return tuple(stamp)

    def _read(self, names: list[str]) -> FoundNetwork:
        problems = []
        for name in names:
            path = f"{self._directory}/{name}"
            try:
                data = files.read_bytes(path, MAX_CONFIG_BYTES)
                network = read_list(data) if name.endswith(".conflist") else read_single(data)
            except (CniError, HostError) as error:
                problem = error.message if isinstance(error, HostError) else str(error)
                log.warning("network configuration is skipped", file=path, error=problem)
                problems.append(f"{name}: {problem}")
                continue
            log.info("network configuration is used", file=path, network=network.name, version=network.version)
            return FoundNetwork(network)
        return FoundNetwork(None, "; ".join([f"no network config found in {self._directory}", *problems[:3]]))
