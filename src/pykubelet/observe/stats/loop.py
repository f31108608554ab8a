"""Measures the resource usage of pods and the node, on demand.

Owns: the cell `Usage`. Reads: `Observed`, `Mounts`. While requests come, it measures every `PERIOD_S`, so that rates are
those of the last seconds. It stops `REST_AFTER_S` after the last request. File systems are measured less often, and only
while they are requested: each pod's in its own thread and at its own times. So an answer has the result of the last walk
over files and does not wait for one, and a disk that hangs affects only its pod.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from pykubelet.base.kit.cells import Cell, CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Mailbox, Post
from pykubelet.base.kit.metrics import Histogram
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.mounts import MountedVolume, Mounts
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.usage import ContainerUse, Details, FileSystemUse, NodeUse, PodUse, Usage, UsageWanted
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.edges.host.proc.procfs import read_pid_limit, read_process_count
from pykubelet.observe.stats.drivers import condition_event, measurements
from pykubelet.observe.stats.sandbox_images import SandboxImages
from pykubelet.observe.stats.sizes import PodSizes, read_file_system, read_pod_sizes
from pykubelet.observe.stats.tree import (
    UsageSources,
    node_with_rates,
    pod_with_rates,
    read_details,
    read_node,
    read_pods,
)
from pykubelet.observe.stats.volumes import measure_file_systems

log = Log("stats")
PERIOD_S = 10.0
REST_AFTER_S = 300.0
FIRST_GAP_S = 0.25
RATE_OVER_S = 5.0
MEASURE_DEADLINE_S = 10.0
SIZES_DEADLINE_S = 5.0
#: Older values of the node's file systems are measured again before they are published, which takes at most `FILES_WAIT_S`.
FILES_OLD_S = 60.0
FILES_WAIT_S = 2.0
NOT_WALKED = PodSizes(0.0)
COLLECTIONS = Histogram(
    "kubelet_volume_metric_collection_duration_seconds",
    "Duration in seconds to calculate volume stats",
    ("metric_source",),
)
NO_VOLUMES: Mapping[str, MountedVolume] = {}


class StatsInputs(Value):
    """The cells that the loop reads, and the mailbox that wakes it."""

    wanted: Mailbox[UsageWanted]
    observed: Cell[Observed]
    mounts: Cell[Mounts]
    plugins: Cell[Plugins]


class StatsSettings(Value):
    """`quotas`: what file systems count. `sizes_period_s`: `volumeStatsAggPeriod`; 0 or less: volumes are not measured.

    `conditions`: where Events about abnormal volumes go; None: drivers are not asked about the condition of volumes.
    """

    paths: Paths
    quotas: VolumeQuotas
    sizes_period_s: float = 60.0
    conditions: Post[KubeEvent] | None = None


class _Files(Value):
    """The last measurements of file systems. `layers`: the writable layers of containers, by ID."""

    at: float = float("-inf")
    root: FileSystemUse | None = None
    images: FileSystemUse | None = None
    containers: FileSystemUse | None = None
    layers: Mapping[str, FileSystemUse] | None = None


class StatsLoop:
    """`run` never returns."""

    def __init__(
        self,
        inputs: StatsInputs,
        usage: CellWriter[Usage],
        sources: UsageSources,
        settings: StatsSettings,
        cri: CriClient,
        flight: SingleFlight,
        clock: Clock,
    ) -> None:
        self._inputs = inputs
        self._usage = usage
        self._sources = sources
        self._settings = settings
        self._cri = cri
        self._sandbox_images = SandboxImages(cri)
        self._flight = flight
        self._clock = clock
        self._base: Usage | None = None
        self._files = _Files()
        self._files_until = float("-inf")
        self._sizes: dict[PodUID, PodSizes] = {}
        self._sized_next: dict[PodUID, float] = {}
        self._supervisor = Supervisor("stats")
        self._busy: set[str] = set()

    async def run(self) -> None:
        """Wait for requests and measure. Never returns."""
        async with self._supervisor as supervisor:
            supervisor.start_root("stats-loop", self._follow())
            raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        while True:
            wanted = await self._inputs.wanted.get_all()
            await self._answer(wanted)
            await self._keep_measuring(self._clock.monotonic())

    async def _keep_measuring(self, asked_at: float) -> None:
        """Measure every `PERIOD_S` until `REST_AFTER_S` after the last request."""
        while self._clock.monotonic() - asked_at < REST_AFTER_S:
            try:
                async with asyncio.timeout(PERIOD_S):
                    wanted = await self._inputs.wanted.get_all()
            except TimeoutError:
                await self._measure()
                continue
            asked_at = self._clock.monotonic()
            await self._answer(wanted)
        self._base = None

    async def _answer(self, wanted: list[UsageWanted]) -> None:
        now = self._usage.get()
        with_files, with_details = any(one.with_files for one in wanted), any(one.with_details for one in wanted)
        with_new_files = any(one.with_new_files for one in wanted)
        if with_files:
            self._files_until = self._clock.monotonic() + REST_AFTER_S
        fresh = now.taken_at is not None and now.taken_at >= max(one.at_least for one in wanted)
        if (
            fresh
            and not with_new_files
            and (now.with_files or not with_files)
            and (now.details is not None or not with_details)
        ):
            return
        with_rates = any(one.with_rates for one in wanted)
        if self._base is None and with_rates:
            await self._measure(is_published=False)  # the base for the rates of the next measurement
            await asyncio.sleep(FIRST_GAP_S)
        await self._measure(with_details=with_details, with_new_files=with_new_files)

    async def _measure(
        self, *, with_details: bool = False, with_new_files: bool = False, is_published: bool = True
    ) -> None:
        began, wall = self._clock.monotonic(), self._clock.wall()
        observed = self._inputs.observed.get()
        sources = self._sources
        with_files = began < self._files_until
        if with_files:
            await self._measure_files(observed, wall, all_now=with_new_files)

        if with_details:
            await self._learn_sandbox_images(observed)

        def read() -> tuple[NodeUse | None, dict[PodUID, PodUse], Details | None]:
            brief = not with_details
            node, pods = read_node(sources, wall, brief=brief), read_pods(sources, observed, wall, brief=brief)
            root_dir = self._settings.paths.root
            return node, pods, read_details(sources, node, pods, root_dir) if with_details else None

        outcome = await self._flight.run("stats", read, MEASURE_DEADLINE_S)
        if not isinstance(outcome, Done):
            why = str(outcome.error) if isinstance(outcome, Failed) else "the kernel does not answer"
            self._publish(replace(self._usage.get(), taken_at=began, error=why))
            return
        node, pods, details = outcome.value
        if node is None:
            self._publish(Usage(began, error="the root control group cannot be read"))
            return
        base = self._base
        self._usage_base(Usage(began, node, pods))
        if is_published:
            self._publish(self._complete(Usage(began, node, pods, with_files, details), base))

    def _usage_base(self, now: Usage) -> None:
        """Use a measurement as the base of rates, unless the base is newer than `RATE_OVER_S`: rates need a few seconds."""
        base = self._base
        assert now.taken_at is not None
        if base is None or base.taken_at is None or now.taken_at - base.taken_at >= RATE_OVER_S:
            self._base = now

    def _complete(self, now: Usage, base: Usage | None) -> Usage:
        assert now.node is not None
        node = node_with_rates(now.node, base.node if base is not None else None)
        before: Mapping[PodUID, PodUse] = base.pods if base is not None else {}
        pods = {uid: self._with_files(uid, pod_with_rates(pod, before.get(uid))) for uid, pod in now.pods.items()}
        return replace(now, node=self._node_with_files(node), pods=pods)

    def _node_with_files(self, node: NodeUse) -> NodeUse:
        files = self._files
        return replace(
            node,
            fs=files.root,
            image_fs=files.images,
            container_fs=files.containers,
            max_pids=read_pid_limit(),
            running_pids=read_process_count(),
        )

    def _with_files(self, uid: PodUID, pod: PodUse) -> PodUse:
        sizes = self._sizes.get(uid, NOT_WALKED)
        containers = tuple(self._container_with_files(container, sizes) for container in pod.containers)
        image = self._sandbox_images.known.get(pod.sandbox_id, "")
        return replace(
            pod, containers=containers, volumes=sizes.volumes, host_files=sizes.host_files, sandbox_image=image
        )

    def _container_with_files(self, container: ContainerUse, sizes: PodSizes) -> ContainerUse:
        files = self._files
        logs = None
        taken = sizes.logs.get(container.name)
        if files.root is not None and taken is not None:
            logs = replace(files.root, used=taken[0], inodes_used=taken[1])
        return replace(container, logs=logs, rootfs=(files.layers or {}).get(container.id))

    def _publish(self, usage: Usage) -> None:
        if usage.error and usage.error != self._usage.get().error:
            log.warning("cannot read what is used", error=usage.error)
        self._usage.publish(usage)

    async def _learn_sandbox_images(self, observed: Observed) -> None:
        """Ask for the images of new sandboxes. Waits at most `FILES_WAIT_S`."""
        sandboxes = [sandbox.id for view in observed.pods.values() for sandbox in view.sandboxes[:1]]
        if self._sandbox_images.known.keys() != set(sandboxes):
            task = self._start("sandboxes", self._sandbox_images.learn(sandboxes))
            if task is not None:
                await asyncio.wait([task], timeout=FILES_WAIT_S)

    # File systems

    async def _measure_files(self, observed: Observed, wall: float, *, all_now: bool = False) -> None:
        """Begin the measurements that are due. Waits only for outdated values of the node's file systems, at most `FILES_WAIT_S`."""
        now = self._clock.monotonic()
        if all_now:
            await self._measure_all_files(observed, wall)
            return
        for uid in self._due(observed, now):
            self._start(f"sizes-{uid}", self._measure_pod_files(uid, observed, wall))
        age = now - self._files.at
        if age >= PERIOD_S:
            task = self._start("files", self._measure_node_files(wall))
            if task is not None and age >= FILES_OLD_S:
                await asyncio.wait([task], timeout=FILES_WAIT_S)

    async def _measure_all_files(self, observed: Observed, wall: float) -> None:
        """Measure all file systems now. Running measurements are not awaited: they are at most as old as their deadline."""
        tasks = [self._start(f"sizes-{uid}", self._measure_pod_files(uid, observed, wall)) for uid in observed.pods]
        tasks.append(self._start("files", self._measure_node_files(wall)))
        begun = [task for task in tasks if task is not None]
        if begun:
            await asyncio.wait(begun, timeout=SIZES_DEADLINE_S)

    def _due(self, observed: Observed, now: float) -> list[PodUID]:
        """The pods that are due: each pod at first, and then after one to two periods, so that their walks do not coincide."""
        period = self._settings.sizes_period_s
        for gone in self._sized_next.keys() - observed.pods.keys():
            del self._sized_next[gone]
            self._sizes.pop(gone, None)
        if period <= 0:
            return []
        due = [uid for uid in observed.pods if now >= self._sized_next.get(uid, float("-inf"))]
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

    async def _measure_node_files(self, wall: float) -> None:
        """Measure the node's and the runtime's file systems, and the writable layers of containers."""
        root = await self._file_system(self._settings.paths.root, wall, None)
        known = replace(self._files, root=root or self._files.root)
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
        self._files = replace(known, at=self._clock.monotonic())

    async def _reported_file_system(self, reported: Iterable[pb.FilesystemUsage], wall: float) -> FileSystemUse | None:
        """The last reported file system that can be read, with the usage that the runtime reports."""
        found = None
        for one in reported:
            used = (one.used_bytes.value, one.inodes_used.value)
            found = await self._file_system(one.fs_id.mountpoint, wall, used) or found
        return found

    async def _file_system(self, path: str, wall: float, used: tuple[int, int] | None) -> FileSystemUse | None:
        outcome = await self._flight.run(
            f"stats-fs:{path}", lambda: read_file_system(path, wall, used), SIZES_DEADLINE_S
        )
        return outcome.value if isinstance(outcome, Done) else None

    async def _measure_apart(self, ref: PodRef, apart: list[MountedVolume], wall: float) -> None:
        """Replace what is known of the volumes of CSI drivers and those with a file system of their own, as far as they answer."""
        uid = ref.uid
        conditions = self._settings.conditions
        asked = (
            *measurements(self._inputs.plugins.get(), apart, wall, with_condition=conditions is not None),
            measure_file_systems(self._flight, uid, [one for one in apart if one.has_stats], wall),
        )
        for work in asyncio.as_completed(asked):
            found = {one.use.name: one for one in await work}
            if uid in self._sizes:
                kept = [use for use in self._sizes[uid].volumes if use.name not in found]
                self._sizes[uid] = replace(self._sizes[uid], volumes=(*kept, *(one.use for one in found.values())))
            for one in found.values():
                COLLECTIONS.observe(one.took_s, one.source)
                if conditions is not None and (kube_event := condition_event(ref, one)) is not None:
                    conditions.post(kube_event)

    async def _measure_pod_files(self, uid: PodUID, observed: Observed, wall: float) -> None:
        view = observed.pods[uid]
        mounts = self._inputs.mounts.get().pods.get(uid)
        volumes = mounts.volumes if mounts is not None else NO_VOLUMES
        paths, quotas = self._settings.paths, self._settings.quotas
        outcome = await self._flight.run(
            f"stats-sizes:{uid}", lambda: read_pod_sizes(paths, view.ref, view, volumes, quotas, wall), SIZES_DEADLINE_S
        )
        if isinstance(outcome, Done):
            apart = [volume for volume in volumes.values() if volume.csi is not None or volume.has_stats]
            names = {volume.name for volume in apart}
            # the last answers of drivers and servers stay until there are new ones
            last = tuple(use for use in self._sizes.get(uid, NOT_WALKED).volumes if use.name in names)
            self._sizes[uid] = replace(outcome.value, volumes=(*outcome.value.volumes, *last))
            for source, seconds in outcome.value.took:
                COLLECTIONS.observe(seconds, source)
            if apart:
                await self._measure_apart(view.ref, apart, wall)
        elif isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
