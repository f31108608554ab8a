"""Measures the node in threads, each part in its own, so that a disk that hangs does not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import replace
from pykubelet.base.model.usage import FileSystemUse
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.observe.eviction.model import FileSystems, NodeMeasures
from pykubelet.observe.eviction.read import NodeSources, read_layout, read_memory, read_processes
from pykubelet.observe.eviction.thresholds import ALLOCATABLE_MEMORY, MEMORY

T = TypeVar("T")
log = Log("eviction")
READ_DEADLINE_S = 5.0


class NodeMeter:
    """What cannot be measured within `READ_DEADLINE_S` is None."""

    def __init__(self, sources: NodeSources, cri: CriClient, flight: SingleFlight, clock: Clock) -> None:
        self._sources = sources
        self._cri = cri
        self._flight = flight
        self._clock = clock
        groups = {MEMORY: sources.memory_root, ALLOCATABLE_MEMORY: sources.pods_root} if sources.with_notifiers else {}
        self._notifiers = {signal: sources.reader.memory_notifier(path) for signal, path in groups.items()}

    async def file_systems(self) -> FileSystems | None:
        """Where the runtime keeps images and writable layers; None: not known."""
        now = self._clock.monotonic()
        try:
            info = await self._cri.image_fs_info()
        except CriError as error:
            log.debug("the runtime does not report where its images are", error=error)
            return None
        images = next((filesystem.fs_id.mountpoint for filesystem in info.image_filesystems), "")
        containers = next((filesystem.fs_id.mountpoint for filesystem in info.container_filesystems), images)
        if not images:
            return None
        layout = await self._read("layout", partial(read_layout, self._sources.root_dir, images, containers))
        return FileSystems(images, containers, layout, now) if layout is not None else None

    async def node(self, places: FileSystems) -> NodeMeasures:
        """All that signals are made from."""
        at, sources = self._clock.wall(), self._sources
        memory, processes, node_fs, image_fs, container_fs = await asyncio.gather(
            self._read("memory", partial(read_memory, sources, at)),
            self._read("processes", partial(read_processes, sources, at)),
            self._fs(sources.root_dir, at),
            self._fs(places.images, at),
            self._fs(places.containers if places.containers != places.images else "", at),
        )
        measures = memory or NodeMeasures(at)
        if processes is not None:
            pids, most = processes.running_pids, processes.max_pids
            measures = replace(measures, running_pids=pids, max_pids=most, stalls=processes.stalls)
        return replace(measures, node_fs=node_fs, image_fs=image_fs, container_fs=container_fs or image_fs)

    async def memory(self) -> NodeMeasures | None:
        """The memory alone."""
        return await self._read("memory-alone", partial(read_memory, self._sources, self._clock.wall()))

    async def stalls(self) -> NodeMeasures | None:
        """The stalls until now; None also if they are not measured on this node."""
        if not self._sources.with_stalls:
            return None
        return await self._read("stalls", partial(read_processes, self._sources, self._clock.wall()))

    def notify_of_memory(self, crossings: Mapping[str, int], crossed: asyncio.Event) -> bool:
        """Request that the kernel sets `crossed` at these bytes of usage, by signal; False if it does not support that."""
        armed = True
        for signal, usage in crossings.items():
            notifier = self._notifiers.get(signal)
            if notifier is None:
                armed = False
                continue
            try:
                notifier.arm(usage, crossed)
            except HostError as error:
                log.warning("the kernel does not notify of memory", signal=signal, error=error)
                armed = False
        return armed

    async def _fs(self, path: str, at: float) -> FileSystemUse | None:
        return await self._read(f"fs:{path}", partial(self._sources.measure_fs, path, at)) if path else None

    async def _read(self, key: str, work: Callable[[], T]) -> T | None:
        outcome = await self._flight.run(f"eviction-{key}", work, READ_DEADLINE_S)
        if isinstance(outcome, Done):
            return outcome.value
        if isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
        log.warning("a part of the node cannot be measured", part=key)
        return None
