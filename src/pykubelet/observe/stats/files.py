"""Measures file systems while they are requested: the node's, the runtime's, and those of pods.

Each kind of measurement has its own thread and times, so that an answer has the last result and does not wait for a disk that hangs.
Logs are read for every answer. Volumes are measured seldom, each pod's at its own times. An answer waits for a moment for
logs, and for volumes of which nothing recent is known.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from pykubelet.base.kit.cells import Cell, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Histogram
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.mounts import MountedVolume, Mounts
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.usage import ContainerUse, FileSystemUse, NodeUse, PodUse
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.observe.stats.drivers import condition_event, measurements
from pykubelet.observe.stats.sizes import LogSizes, VolumeSizes, read_file_system, read_log_sizes, read_volume_sizes
from pykubelet.observe.stats.volumes import measure_file_systems

log = Log("stats")
PERIOD_S = 10.0
SIZES_DEADLINE_S = 5.0
#: How long an answer waits for logs, and for volumes of which nothing recent is known.
SIZES_WAIT_S = 0.25
#: Older values of the node's file systems are measured again before they are published, which takes at most `FILES_WAIT_S`.
FILES_OLD_S = 60.0
FILES_WAIT_S = 2.0
NOT_MEASURED = VolumeSizes()
COLLECTIONS = Histogram(
    "kubelet_volume_metric_collection_duration_seconds",
    "Duration in seconds to calculate volume stats",
    ("metric_source",),
)
NO_VOLUMES: Mapping[str, MountedVolume] = {}


class FileSettings(Value):
    """`quotas`: what file systems count. `sizes_period_s`: `volumeStatsAggPeriod`; 0 or less: volumes are not measured.

    `conditions`: where Events about abnormal volumes go; None: drivers are not asked about the condition of volumes.
    """

    paths: Paths
    quotas: VolumeQuotas
    sizes_period_s: float = 60.0
    conditions: Post[KubeEvent] | None = None


class _NodeFiles(Value):
    """The last measurements of the node's and the runtime's file systems. `layers`: the writable layers of containers, by ID."""

    at: float = float("-inf")
    root: FileSystemUse | None = None
    images: FileSystemUse | None = None
    containers: FileSystemUse | None = None
    layers: Mapping[str, FileSystemUse] | None = None


class FileUsage:
    """The last measurements, and those under way."""

    def __init__(
        self,
        mounts: Cell[Mounts],
        plugins: Cell[Plugins],
        settings: FileSettings,
        cri: CriClient,
        flight: SingleFlight,
        clock: Clock,
        supervisor: Supervisor,
    ) -> None:
        self._mounts = mounts
        self._plugins = plugins
        self._settings = settings
        self._cri = cri
        self._flight = flight
        self._clock = clock
        self._supervisor = supervisor
        self._node = _NodeFiles()
        self._logs: Mapping[PodUID, LogSizes] = {}
        self._sizes: dict[PodUID, VolumeSizes] = {}
        self._sized_next: dict[PodUID, float] = {}
        self._busy: set[str] = set()

    # What is known

    def of_node(self, node: NodeUse) -> NodeUse:
        """The node's usage with its file systems."""
        files = self._node
        return replace(node, fs=files.root, image_fs=files.images, container_fs=files.containers)

    def of_pod(self, uid: PodUID, pod: PodUse) -> PodUse:
        """The pod's usage with its volumes, logs and other files."""
        logs = self._logs.get(uid)
        return replace(
            pod,
            containers=tuple(self._of_container(container, logs) for container in pod.containers),
            volumes=self._sizes.get(uid, NOT_MEASURED).volumes,
            own_files=self._on_node(logs.at, logs.own) if logs is not None else None,
        )

    def _of_container(self, container: ContainerUse, logs: LogSizes | None) -> ContainerUse:
        used = logs.logs.get(container.name) if logs is not None else None
        return replace(
            container,
            logs=self._on_node(logs.at, used) if logs is not None and used is not None else None,
            rootfs=(self._node.layers or {}).get(container.id),
        )

    def _on_node(self, at: float, used: tuple[int, int]) -> FileSystemUse | None:
        root = self._node.root
        return replace(root, at=at, used=used[0], inodes_used=used[1]) if root is not None else None

    # Measuring

    async def measure(self, observed: Observed, *, all_now: bool = False) -> None:
        """Begin the measurements that are due, and wait for a moment for those whose last result is missing or outdated.

        `all_now`: measure all file systems, and wait for `SIZES_DEADLINE_S` at most. Measurements that were running already are not
        awaited: they are at most as old as their deadline.
        """
        now, known_at = self._clock.monotonic(), self._node.at
        due = dict.fromkeys(observed.pods, True) if all_now else self._due(observed, now)
        sizes = {uid: self._start(f"sizes-{uid}", self._measure_volumes(uid, observed)) for uid in due}
        logs = self._start("logs", self._measure_logs(observed))
        is_due = all_now or now - known_at >= PERIOD_S
        node = self._start("files", self._measure_node_files()) if is_due else None
        if all_now:
            await _wait([logs, node, *sizes.values()], SIZES_DEADLINE_S)
            return
        await _wait([logs, *(sizes[uid] for uid, is_outdated in due.items() if is_outdated)], SIZES_WAIT_S)
        if now - known_at >= FILES_OLD_S:
            await _wait([node], FILES_WAIT_S)

    def _due(self, observed: Observed, now: float) -> dict[PodUID, bool]:
        """The pods with volumes to measure, and whether their last result is missing or outdated.

        Each pod is due at first, and then after one to two periods, so that their walks do not coincide.
        """
        period = self._settings.sizes_period_s
        for gone in (self._sized_next.keys() | self._sizes.keys()) - observed.pods.keys():
            self._sized_next.pop(gone, None)
            self._sizes.pop(gone, None)
        if period <= 0:
            return {}
        since = {uid: self._sized_next.get(uid, float("-inf")) for uid in observed.pods}
        due = {uid: now - at >= FILES_OLD_S for uid, at in since.items() if now >= at}
        self._sized_next |= {uid: now + period * (1 + random.random()) for uid in due}
        return due

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Start a measurement, unless one with this name is running."""
        if name in self._busy:
            work.close()
            return None
        self._busy.add(name)
        task = self._supervisor.start_root(f"stats-{name}", work)
        task.add_done_callback(lambda _: self._busy.discard(name))
        return task

    # The node

    async def _measure_node_files(self) -> None:
        """Measure the node's and the runtime's file systems, and the writable layers of containers."""
        wall = self._clock.wall()
        root = await self._file_system(self._settings.paths.root, wall, None)
        known = replace(self._node, root=root or self._node.root)
        try:
            reported = await self._cri.image_fs_info()
            images = await self._reported_file_system(reported.image_filesystems, wall) or known.images
            containers = await self._reported_file_system(reported.container_filesystems, wall) or images
            known = replace(known, images=images, containers=containers)
            if containers is not None:
                stats = await self._cri.list_container_stats()
                layers = {
                    s.attributes.id: replace(
                        containers,
                        at=s.writable_layer.timestamp / 1e9 or wall,
                        used=s.writable_layer.used_bytes.value,
                        inodes_used=s.writable_layer.inodes_used.value,
                    )
                    for s in stats
                }
                known = replace(known, layers=layers)
        except CriError as error:
            log.debug("the runtime does not report the usage of its file systems", error=error)
        self._node = replace(known, at=self._clock.monotonic())

    async def _reported_file_system(self, reported: Iterable[pb.FilesystemUsage], wall: float) -> FileSystemUse | None:
        """The last reported file system that can be read, with the usage that the runtime reports."""
        found = None
        for usage in reported:
            used = (usage.used_bytes.value, usage.inodes_used.value)
            found = await self._file_system(usage.fs_id.mountpoint, wall, used) or found
        return found

    async def _file_system(self, path: str, wall: float, used: tuple[int, int] | None) -> FileSystemUse | None:
        outcome = await self._flight.run(
            f"stats-fs:{path}", lambda: read_file_system(path, wall, used), SIZES_DEADLINE_S
        )
        return outcome.value if isinstance(outcome, Done) else None

    # Pods

    async def _measure_logs(self, observed: Observed) -> None:
        """Measure the logs and own files of all pods. They are on one disk, so they are measured together."""
        paths, pods = self._settings.paths, tuple(observed.pods.values())
        outcome = await self._flight.run(
            "stats-logs", lambda: read_log_sizes(paths, pods, self._clock.wall()), SIZES_DEADLINE_S
        )
        if isinstance(outcome, Done):
            self._logs = outcome.value
        elif isinstance(outcome, Failed):
            raise outcome.error

    async def _measure_volumes(self, uid: PodUID, observed: Observed) -> None:
        ref = observed.pods[uid].ref
        mounts = self._mounts.get().pods.get(uid)
        volumes = mounts.volumes if mounts is not None else NO_VOLUMES
        pods, quotas = self._settings.paths.pods, self._settings.quotas
        outcome = await self._flight.run(
            f"stats-sizes:{uid}",
            lambda: read_volume_sizes(pods, volumes, quotas, self._clock.wall()),
            SIZES_DEADLINE_S,
        )
        if isinstance(outcome, Done):
            apart = [volume for volume in volumes.values() if volume.csi is not None or volume.has_stats]
            names = {volume.name for volume in apart}
            # the last answers of drivers and servers stay until there are new ones
            last = tuple(use for use in self._sizes.get(uid, NOT_MEASURED).volumes if use.name in names)
            self._sizes[uid] = replace(outcome.value, volumes=(*outcome.value.volumes, *last))
            for source, seconds in outcome.value.took:
                COLLECTIONS.observe(seconds, source)
            if apart:
                await self._measure_apart(ref, apart)
        elif isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error

    async def _measure_apart(self, ref: PodRef, apart: list[MountedVolume]) -> None:
        """Replace what is known of the volumes of CSI drivers and those with a file system of their own, as far as they answer."""
        uid, wall = ref.uid, self._clock.wall()
        conditions = self._settings.conditions
        asked = (
            *measurements(self._plugins.get(), apart, wall, with_condition=conditions is not None),
            measure_file_systems(self._flight, uid, [volume for volume in apart if volume.has_stats], wall),
        )
        for work in asyncio.as_completed(asked):
            found = {measured.use.name: measured for measured in await work}
            if uid in self._sizes:
                kept = [use for use in self._sizes[uid].volumes if use.name not in found]
                self._sizes[uid] = replace(
                    self._sizes[uid], volumes=(*kept, *(measured.use for measured in found.values()))
                )
            for measured in found.values():
                COLLECTIONS.observe(measured.took_s, measured.source)
                if conditions is not None and (kube_event := condition_event(ref, measured)) is not None:
                    conditions.post(kube_event)


async def _wait(tasks: Iterable[asyncio.Task[None] | None], seconds: float) -> None:
    """Wait until the tasks have ended, at most so many seconds."""
    started = [task for task in tasks if task is not None]
    if started:
        await asyncio.wait(started, timeout=seconds)
