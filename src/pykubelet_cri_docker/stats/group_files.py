"""Reads what containers use from the kernel's files. Blocks.

Owns: how the cgroup of a container is found, whatever the cgroup driver is: by its first process. The cgroup is named after the
container, which proves that the process is still the container's. A container that has ended is left out. Source: cgroups(7), proc(5).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from posixpath import basename, dirname

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.base.model.usage import GroupUse, NetworkUse
from pykubelet.edges.host.cgroups.cgroup_stats import GroupReader
from pykubelet.edges.host.fs.mounts import read_mounts_of_type
from pykubelet.edges.host.fs.text_files import read_file
from pykubelet.edges.host.proc.network_stats import read_network_use
from pykubelet_cri_docker.container_groups import group_of
from pykubelet_cri_docker.stats.tracked import ContainerPlaces

_UPPER = "upperdir="


class MeasuredUse(Value):
    """What a container uses. `read_at`: monotonic seconds.

    Of a sandbox whose pod has a cgroup, `group` is the pod's, and `is_whole_pod` is set. `network`: of a sandbox with one of its own.
    """

    group: GroupUse
    read_at: float
    is_whole_pod: bool = False
    network: NetworkUse | None = None


class GroupFiles:
    """The cgroups and processes of this machine."""

    def __init__(self, reader: GroupReader, clock: Clock, proc: str = "/proc") -> None:
        self._reader = reader
        self._clock = clock
        self._proc = proc

    def read(self, places: Mapping[str, ContainerPlaces], sandboxes: Collection[str]) -> dict[str, MeasuredUse]:
        """What each container uses, by its ID. `sandboxes`: those of them that are sandboxes."""
        found = {}
        for container_id, place in places.items():
            own = group_of(read_file(f"{self._proc}/{place.pid}/cgroup"), container_id, "cpuacct", "")
            use = self._read(own, place, is_sandbox=container_id in sandboxes) if own else None
            if use is not None:
                found[container_id] = use
        return found

    def mounted_layers(self) -> dict[str, str]:
        """The writable layers of containers by ID, if Docker keeps images in containerd: their file systems are mounted at `.../ID`."""
        return {
            basename(mount.target): option.removeprefix(_UPPER)
            for mount in read_mounts_of_type("overlay", proc=self._proc)
            for option in mount.super_options
            if option.startswith(_UPPER)
        }

    def _read(self, own: str, place: ContainerPlaces, *, is_sandbox: bool) -> MeasuredUse | None:
        read_at, wall = self._clock.monotonic(), self._clock.wall()
        is_whole_pod = is_sandbox and bool(place.cgroup_parent)
        group = self._reader.read(dirname(own) if is_whole_pod else own, wall, brief=True)
        if group is None:
            return None
        has_network = is_sandbox and not place.on_host_network
        network = read_network_use(wall, place.pid, proc=self._proc) if has_network else None
        return MeasuredUse(group, read_at, is_whole_pod, network)
