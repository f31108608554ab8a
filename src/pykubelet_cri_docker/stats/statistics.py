"""Statistics: what running containers and ready sandboxes use.

Owns: ContainerStats, ListContainerStats, PodSandboxStats and ListPodSandboxStats. Docker is asked once for each container where its
figures are, and never measures anything. Figures are read when a client asks, in threads. A container that ends meanwhile is left
out of a list. Raises RpcError, EngineError and HostError.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence, Set

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import replace
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker.containers import Containers
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.host_work import HostWork
from pykubelet_cri_docker.sandboxes import PodSandboxes
from pykubelet_cri_docker.stats.group_files import GroupFiles, MeasuredUse
from pykubelet_cri_docker.stats.layers import WritableLayers
from pykubelet_cri_docker.stats.show_stats import pod_group, show_container, show_sandbox
from pykubelet_cri_docker.stats.tracked import ContainerPlaces, CpuReading, Tracked, places_of, storage_of

RUNNING = pb.ContainerStateValue(state=pb.CONTAINER_RUNNING)
READY = pb.PodSandboxStateValue(state=pb.SANDBOX_READY)
#: Calls of Docker at once for containers that are new.
ASKED_AT_ONCE = 4
#: A container that was not measured for so long is forgotten: it has ended, or nothing compares its figures any more. Some 0.9 KiB each.
REMEMBERED_S = 150.0


class Statistics:
    """The statistics of what Docker Engine runs."""

    def __init__(
        self,
        engine: Engine,
        sandboxes: PodSandboxes,
        containers: Containers,
        host: HostWork,
        files: GroupFiles,
        layers: WritableLayers,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._sandboxes = sandboxes
        self._containers = containers
        self._host = host
        self._files = files
        self._layers = layers
        self._clock = clock
        self._tracked: dict[str, Tracked] = {}
        self._measuring = asyncio.Lock()

    async def of_container(self, container_id: str) -> pb.ContainerStats:
        """The statistics of a container, which must run."""
        found = await self._containers.inspect(container_id)
        stats = await self.of_containers(pb.ContainerStatsFilter(id=found.id))
        if not stats:
            raise EngineError(500, f"container {container_id} is not running")
        return stats[0]

    async def of_containers(self, wanted: pb.ContainerStatsFilter) -> list[pb.ContainerStats]:
        """The statistics of the running containers that a filter selects."""
        items = await self._containers.list(
            pb.ContainerFilter(
                id=wanted.id,
                state=RUNNING,
                pod_sandbox_id=wanted.pod_sandbox_id,
                label_selector=wanted.label_selector,
            )
        )
        uses = await self._measure({item.id for item in items})
        return [self._show_container(item, uses[item.id]) for item in items if item.id in uses]

    async def of_sandbox(self, sandbox_id: str) -> pb.PodSandboxStats:
        """The statistics of a sandbox, which must be ready."""
        found = await self._sandboxes.inspect(sandbox_id)
        stats = await self.of_sandboxes(pb.PodSandboxStatsFilter(id=found.id))
        if not stats:
            raise EngineError(500, f"sandbox {sandbox_id} is not ready")
        return stats[0]

    async def of_sandboxes(self, wanted: pb.PodSandboxStatsFilter) -> list[pb.PodSandboxStats]:
        """The statistics of the ready sandboxes that a filter selects, with those of their running containers."""
        pods = await self._sandboxes.list(
            pb.PodSandboxFilter(id=wanted.id, state=READY, label_selector=wanted.label_selector)
        )
        if not pods:
            return []
        sandbox_id = pods[0].id if len(pods) == 1 else ""
        inside: dict[str, list[pb.Container]] = {pod.id: [] for pod in pods}
        for item in await self._containers.list(pb.ContainerFilter(state=RUNNING, pod_sandbox_id=sandbox_id)):
            if item.pod_sandbox_id in inside:
                inside[item.pod_sandbox_id].append(item)
        uses = await self._measure({item.id for items in inside.values() for item in items}, inside.keys())
        return [self._show_sandbox(pod, inside[pod.id], uses) for pod in pods if pod.id in uses]

    # Measuring

    async def _measure(self, containers: Set[str], sandboxes: Set[str] = frozenset()) -> dict[str, MeasuredUse]:
        """What these use now, by ID, without those that have ended. Measures their layers as well."""
        async with self._measuring:
            self._forget_old()
            await self._find_places([each for each in (*sandboxes, *containers) if each not in self._tracked])
            known = {each: self._tracked[each] for each in (*sandboxes, *containers) if each in self._tracked}
            places = {each: tracked.places for each, tracked in known.items()}
            uses = await self._host.run("stats", lambda: self._files.read(places, sandboxes))
            for each in known.keys() - uses.keys():  # ended, or started again as another process
                del self._tracked[each]
            await self._layers.measure([known[each] for each in containers if each in uses])
            now = self._clock.monotonic()
            for each in uses:
                known[each].seen_at = now
        return uses

    async def _find_places(self, new: Sequence[str]) -> None:
        """Ask where the figures of containers are."""
        waiting, found = deque(new), dict[str, ContainerPlaces]()

        async def ask() -> None:
            while waiting:
                container_id = waiting.popleft()
                try:
                    places = places_of(await self._engine.inspect(container_id))
                except EngineError as error:
                    if not error.is_not_found:
                        raise
                    continue
                if places is not None:
                    found[container_id] = places

        await asyncio.gather(*(ask() for _ in range(min(len(waiting), ASKED_AT_ONCE))))
        if any(not places.upper_dir for places in found.values()):
            layers = await self._host.run("mounts", self._files.mounted_layers)
            found = {each: replace(at, upper_dir=at.upper_dir or layers.get(each, "")) for each, at in found.items()}
        self._tracked |= {each: Tracked(places) for each, places in found.items()}

    def _forget_old(self) -> None:
        until = self._clock.monotonic() - REMEMBERED_S
        for each in [each for each, tracked in self._tracked.items() if tracked.seen_at < until]:
            del self._tracked[each]

    # Showing

    def _show_container(self, item: pb.Container, use: MeasuredUse) -> pb.ContainerStats:
        tracked = self._tracked[item.id]
        nano_cores = tracked.rate(CpuReading(use.read_at, use.group.cpu.total_ns))
        return show_container(item, use.group, nano_cores, tracked.layer, storage_of(tracked.places.upper_dir))

    def _show_sandbox(
        self, item: pb.PodSandbox, inside: Sequence[pb.Container], uses: Mapping[str, MeasuredUse]
    ) -> pb.PodSandboxStats:
        own, running = uses[item.id], [each for each in inside if each.id in uses]
        groups = [uses[each.id].group for each in running]
        group = pod_group(own, groups)
        nano_cores = self._tracked[item.id].rate(CpuReading(own.read_at, group.cpu.total_ns))
        shown = show_sandbox(item, group, nano_cores, own.network, groups)
        shown.linux.containers.extend(self._show_container(each, uses[each.id]) for each in running)
        return shown
