"""Limits of containers that Docker Engine has no field for, in the files of their cgroups.

Owns: the files, which are written after each start and each update, and what updates have changed, kept in a small file for each
such container. What a container was created with is in its labels. Raises RpcError and HostError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from google.protobuf.message import DecodeError

from pykubelet.base.kit.log import Log
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet.edges.host.cgroups.cgroups import Cgroups, LimitedUnits
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_text
from pykubelet.edges.host.proc.kernel_waits import process_state
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.container_groups import group_of
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.host_work import HostWork
from pykubelet_cri_docker.limit_values import HUGE_PAGES, cgroup_limits, merged, possible

T = TypeVar("T")
log = Log("cri-docker")
_MAX_KEPT = 1 << 20
_NONE = CgroupLimits()
#: The states of processes that have ended.
_ENDED = "ZX"


class ContainerScopes:
    """The scopes of containers where Docker Engine uses systemd, which otherwise restores its own values when it is reloaded.

    Docker makes and removes them. A cgroup that is no scope has no unit. The client of D-Bus is imported with the first scope.
    """

    def __init__(self, units: LimitedUnits | None = None) -> None:
        self._units = units

    def update(self, path: str, limits: CgroupLimits, version: CgroupVersion) -> None:
        """Set the properties of a scope."""
        if path.endswith(".scope"):
            if self._units is None:
                from pykubelet.edges.host.cgroups.systemd import SliceUnits, Systemd

                self._units = SliceUnits(Systemd())
            self._units.update(path, limits, version)


class ContainerLimits:
    """Writes `unified` and huge page limits. `folder`: of what updates have changed; it is made when it is needed."""

    def __init__(
        self, cgroups: Cgroups, scopes: LimitedUnits, host: HostWork, folder: str, proc: str = "/proc"
    ) -> None:
        self._cgroups = cgroups
        self._scopes = scopes
        self._host = host
        self._folder = Beneath(folder, "")
        self._proc = proc
        self._updates: dict[str, pb.LinuxContainerResources] | None = None
        self._lock = asyncio.Lock()  # of what is read and written together

    async def accepted(self, resources: pb.LinuxContainerResources) -> pb.LinuxContainerResources:
        """The resources without limits of huge pages on a machine that has none. Raises RpcError for others that it does not have."""
        limits = cgroup_limits(resources)
        if limits == _NONE:
            return resources
        found = await self._run("", lambda: self._possible(limits))
        accepted = pb.LinuxContainerResources()
        accepted.CopyFrom(resources)
        if not found.huge_pages:
            accepted.ClearField("hugepage_limits")
        return accepted

    async def apply(self, found: docker.DockerContainer) -> None:
        """Write the limits of a container that was started. Does nothing if it has ended already."""
        async with self._lock:
            await self._apply(found, await self.of(found))

    async def update(self, found: docker.DockerContainer, resources: pb.LinuxContainerResources) -> None:
        """Change limits, now and for the start of a container that was only created. Others stay as they are.

        Call it after any update of Docker's own limits: that may have set the same files.
        """
        async with self._lock:
            wanted = merged(await self.of(found), resources)
            await self._apply(found, wanted)
            if resources.unified or resources.hugepage_limits:
                updates = await self._loaded()
                await self._run(found.id, partial(self._keep, found.id, wanted.SerializeToString(deterministic=True)))
                updates[found.id] = wanted

    async def has(self, found: docker.DockerContainer) -> bool:
        """Whether a container has limits that Docker does not know."""
        own = await self.of(found)
        return bool(own.unified or own.hugepage_limits)

    async def of(self, found: docker.DockerContainer) -> pb.LinuxContainerResources:
        """`unified` and huge page limits of a container, as it was created or updated."""
        updated = (await self._loaded()).get(found.id)
        return labels.container_config(found.labels).linux.resources if updated is None else updated

    async def forget(self, container_id: str) -> None:
        """Forget a container that is removed."""
        async with self._lock:
            if (await self._loaded()).pop(container_id, None) is not None:
                await self._run(container_id, lambda: beneath.remove_file(self._folder / container_id))

    async def collect(self, present: Collection[str]) -> None:
        """Forget containers that are gone."""
        for container_id in (await self._loaded()).keys() - present:
            await self.forget(container_id)

    async def _loaded(self) -> dict[str, pb.LinuxContainerResources]:
        if self._updates is None:
            loaded = await self._run("", self._load)
            if self._updates is None:
                self._updates = loaded
        return self._updates

    async def _apply(self, found: docker.DockerContainer, resources: pb.LinuxContainerResources) -> None:
        limits = cgroup_limits(resources)
        if limits != _NONE and found.state.pid:
            await self._run(found.id, partial(self._write, found.id, found.state.pid, limits))

    async def _run(self, container_id: str, work: Callable[[], T]) -> T:
        return await self._host.run(f"limits {container_id}", work)

    def _possible(self, limits: CgroupLimits) -> CgroupLimits:
        return possible(limits, self._cgroups.version, self._cgroups.controllers())

    def _write(self, container_id: str, pid: int, limits: CgroupLimits) -> None:
        limits = self._possible(limits)
        if limits == _NONE:
            return
        try:
            group = self._group(container_id, pid)
            self._scopes.update(group, limits, self._cgroups.version)
            self._cgroups.update(group, limits)
        except HostError:
            process = process_state(pid, self._proc)
            if process is not None and process.state not in _ENDED:
                raise
            log.debug("a container ended before its limits were set", id=container_id)

    def _group(self, container_id: str, pid: int) -> str:
        controller = "" if self._cgroups.version is CgroupVersion.V2 else HUGE_PAGES
        group = group_of(read_text(f"{self._proc}/{pid}/cgroup"), container_id, controller)
        if not group:
            raise HostError("limit", container_id, "", f"process {pid} is in no cgroup of the container")
        return group

    def _keep(self, container_id: str, data: bytes) -> None:
        place = self._folder / container_id
        try:
            beneath.write_atomic(place, data, 0o600)
        except HostError as error:
            if not error.is_not_found:
                raise
            beneath.make_dirs(self._folder, 0o700)
            beneath.write_atomic(place, data, 0o600)

    def _load(self) -> dict[str, pb.LinuxContainerResources]:
        try:
            beneath.remove_temporaries(self._folder)
        except HostError as error:
            if error.is_not_found:
                return {}
            raise
        found = {entry.name: self._read(entry.name) for entry in beneath.list_entries(self._folder)}
        return {container_id: resources for container_id, resources in found.items() if resources is not None}

    def _read(self, container_id: str) -> pb.LinuxContainerResources | None:
        try:
            data = beneath.read_bytes(self._folder / container_id, _MAX_KEPT)
            return pb.LinuxContainerResources.FromString(data)
        except (DecodeError, HostError) as error:
            log.warning("an update of limits cannot be read; those of the start apply", id=container_id, error=error)
            return None
