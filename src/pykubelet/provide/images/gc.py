"""The image garbage collector: lists the runtime's images every five minutes and removes those that `decide_gc.py` chooses.

Owns: sightings of images, their removal, and the Events about it. Reads the runtime's images and containers, the usage of
the image file system, and `Lifecycles` for images that pods mount as volumes. It also removes pull records of images that
are gone, because it lists the images.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.tracing import span
from pykubelet.base.kit.values import Value
from pykubelet.base.model.evictions import Reclaimed, ReclaimWanted
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.reasons import (
    EVENT_FREE_DISK_SPACE_FAILED,
    EVENT_IMAGE_GC_FAILED,
    EVENT_INVALID_DISK_CAPACITY,
)
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.mounts import FsUsage, read_fs_usage
from pykubelet.provide.images import decide_gc
from pykubelet.provide.images.decide import joined_errors
from pykubelet.provide.images.decide_gc import Sightings
from pykubelet.provide.images.metrics import COLLECTED
from pykubelet.provide.images.model import ImageSettings, RankingFacts, RemovalCandidate, StoredImage
from pykubelet.provide.images.record_store import RecordStore
from pykubelet.provide.images.records import ImageIdentity

log = Log("images")
_FIRST_RETRY_S = 10.0
_STATFS_DEADLINE_S = 10.0
_HANDOUT_GRACE_S = 120.0


class CollectedRuntime(Protocol):
    """The part of the CRI client that the collector needs."""

    async def list_images(self) -> Sequence[pb.Image]:
        """CRI ListImages; CriError."""

    async def list_containers(self, uid: str | None = None) -> Sequence[pb.Container]:
        """CRI ListContainers, running or not; CriError."""

    async def remove_image(self, image: pb.ImageSpec) -> None:
        """CRI RemoveImage; CriError."""

    async def image_fs_info(self) -> pb.ImageFsInfoResponse:
        """CRI ImageFsInfo; CriError."""

    async def status(self, verbose: bool = False) -> pb.StatusResponse:
        """CRI Status; CriError."""


class ImageGcError(Exception):
    """A collection failed or freed too little; most messages are those of the reference kubelet."""


class _RuntimeConfig(msgspec.Struct, frozen=True):
    """The part of the runtime's verbose status that the collector needs."""

    sandboxImage: str = ""


class _Inventory(Value):
    """The runtime's images, and when the inventory began (monotonic, wall seconds). `protected`: names that must stay."""

    images: tuple[StoredImage, ...]
    used: frozenset[str]
    protected: frozenset[str]
    at: float
    wall: float


class ImageCollector:
    """Collects the images of one runtime. `run_gc_loop` never returns; `collect` and `delete_unused` run once."""

    def __init__(
        self,
        runtime: CollectedRuntime,
        records: RecordStore,
        clock: Clock,
        settings: ImageSettings,
        lifecycles: Cell[Lifecycles],
        recorder: Post[KubeEvent],
        read_usage: Callable[[str], FsUsage] = read_fs_usage,
    ) -> None:
        self._runtime = runtime
        self._records = records
        self._clock = clock
        self._settings = settings
        self._lifecycles = lifecycles
        self._recorder = recorder
        self._read_usage = read_usage
        self._flight = SingleFlight("image-statfs", workers=1)
        self._sightings = Sightings()
        self._began = clock.monotonic()
        self._lock = asyncio.Lock()
        self._failed_before = False

    async def run_gc_loop(self) -> None:
        """Take an inventory and collect every `gc_period_s`, or sooner until the first inventory has succeeded."""
        while True:
            await self.run_round()
            period_s = self._settings.gc_period_s
            await asyncio.sleep(period_s if self._sightings.begun else min(period_s, _FIRST_RETRY_S))

    async def run_round(self) -> None:
        """One inventory, and one collection if it is enabled. Failures are logged or recorded as an Event, never raised."""
        try:
            if decide_gc.is_enabled(self._settings):
                await self.collect()
            else:
                async with self._lock:
                    await self._take_inventory()
        except (ImageGcError, CriError) as error:
            if self._failed_before:
                self._recorder.post(warning(EVENT_IMAGE_GC_FAILED, str(error)))
            else:
                log.warning("image garbage collection failed", error=error)
            self._failed_before = True
            return
        if self._failed_before:
            log.info("image garbage collection works again")
        self._failed_before = False

    async def answer_reclaims(self, wanted: Mailbox[ReclaimWanted], reclaimed: CellWriter[Reclaimed]) -> None:
        """Remove all unused images on each request for disk space. Never returns."""
        while True:
            at = max(request.at for request in await wanted.get_all())
            error = ""
            try:
                freed = await self.delete_unused()
                log.info("unused images removed, because the node is short of disk", bytes=freed)
            except (ImageGcError, CriError) as failure:
                error = str(failure)
            reclaimed.publish(Reclaimed(at, error))

    async def collect(self) -> int:
        """Remove images by age and by disk usage; return the bytes freed. Raises ImageGcError or CriError."""
        with span("Images/GarbageCollect"):
            return await self._collect()

    async def _collect(self) -> int:
        async with self._lock:
            inventory = await self._take_inventory()
            candidates = decide_gc.rank_candidates(
                self._sightings, inventory.images, inventory.used, inventory.protected
            )
            removed: set[str] = set()
            try:
                old, rest = decide_gc.split_by_age(candidates, self._settings, inventory.at, self._began)
                freed, errors = await self._remove(self._in_order(old, inventory), "age", removed)
                if errors:
                    raise ImageGcError(decide_gc.age_deletion_failed(self._settings.max_age_s, joined_errors(errors)))
                return freed + await self._free_space(rest, inventory, removed)
            finally:
                await self._prune(inventory, removed)

    async def delete_unused(self) -> int:
        """Remove every unused image, because the node is short of disk; return the bytes freed.

        Images known for less than `min_age_s` stay. Raises ImageGcError or CriError.
        """
        async with self._lock:
            inventory = await self._take_inventory()
            candidates = decide_gc.rank_candidates(
                self._sightings, inventory.images, inventory.used, inventory.protected
            )
            removed: set[str] = set()
            eligible = self._eligible(candidates, inventory)
            try:
                freed, errors = await self._remove(eligible, "space", removed)
            finally:
                await self._prune(inventory, removed)
            if errors:
                wanted = sum(c.image.size_bytes for c in eligible)
                raise ImageGcError(decide_gc.deletion_failed(wanted, freed, joined_errors(errors)))
            return freed

    async def _take_inventory(self) -> _Inventory:
        at, wall = self._clock.monotonic(), self._clock.wall()
        images = tuple(_stored(image) for image in await self._runtime.list_images())
        containers = await self._runtime.list_containers()
        container_images = [c.image_id or c.image_ref or c.image.image for c in containers]
        used = decide_gc.find_used(images, container_images, self._volume_images())
        self._sightings = decide_gc.update_sightings(self._sightings, images, used, at)
        await self._records.settle_leftovers([ImageIdentity(image.id, image.names) for image in images])
        sandbox_image = _sandbox_image(await self._runtime.status(verbose=True))
        return _Inventory(images, used, self._settings.protected | sandbox_image, at, wall)

    def _volume_images(self) -> set[str]:
        return {
            volume.image.reference
            for lifecycle in self._lifecycles.get().pods.values()
            for volume in lifecycle.pod.spec.volumes
            if volume.image is not None and volume.image.reference
        }

    async def _free_space(
        self, candidates: Sequence[RemovalCandidate], inventory: _Inventory, removed: set[str]
    ) -> int:
        usage = await self._image_fs_usage()
        if usage.capacity_bytes <= 0:
            self._recorder.post(warning(EVENT_INVALID_DISK_CAPACITY, decide_gc.INVALID_CAPACITY))
            raise ImageGcError(decide_gc.INVALID_CAPACITY)
        wanted = decide_gc.bytes_to_free(usage.capacity_bytes, usage.available_bytes, self._settings)
        if wanted <= 0:
            return 0
        log.info("the image file system is over its high threshold", bytes_to_free=wanted)
        eligible = self._eligible(candidates, inventory)
        freed, errors = await self._remove(eligible, "space", removed, wanted)
        if errors:
            raise ImageGcError(decide_gc.deletion_failed(wanted, freed, joined_errors(errors)))
        if freed < wanted:
            message = decide_gc.too_little_freed(usage.capacity_bytes, usage.available_bytes, freed)
            self._recorder.post(warning(EVENT_FREE_DISK_SPACE_FAILED, message))
            raise ImageGcError(message)
        return freed

    def _eligible(self, candidates: Sequence[RemovalCandidate], inventory: _Inventory) -> Sequence[RemovalCandidate]:
        """The candidates that may be removed for disk space, in the order of removal."""
        eligible = [c for c in candidates if decide_gc.may_free(c, inventory.at, self._settings.min_age_s)]
        return self._in_order(eligible, inventory)

    def _in_order(self, candidates: Sequence[RemovalCandidate], inventory: _Inventory) -> Sequence[RemovalCandidate]:
        at, settings = inventory.at, self._settings
        if settings.ask_for_order is None:
            return candidates
        old, _ = decide_gc.split_by_age(candidates, settings, at, self._began)
        facts = RankingFacts(at, inventory.wall, frozenset(candidate.image.id for candidate in old))
        return decide_gc.in_order(candidates, settings, facts)

    async def _remove(
        self, candidates: Sequence[RemovalCandidate], why: str, removed: set[str], enough: int | None = None
    ) -> tuple[int, list[str]]:
        """Remove candidates in order until `enough` bytes are freed; return the bytes freed and the errors."""
        freed = 0
        errors: list[str] = []
        for candidate in candidates:
            if enough is not None and freed >= enough:
                break
            image = candidate.image
            handed_out_at = self._records.handed_out_at(image.id)
            if handed_out_at is not None and self._clock.monotonic() - handed_out_at < _HANDOUT_GRACE_S:
                continue  # a container is being made from it
            try:
                await self._runtime.remove_image(pb.ImageSpec(image=image.id))
            except CriError as error:
                errors.append(str(error))
                continue
            log.info("image removed", image=image.id, names=",".join(image.names), bytes=image.size_bytes, cause=why)
            COLLECTED.inc(why)
            removed.add(image.id)
            freed += image.size_bytes
        left = {key: value for key, value in self._sightings.images.items() if key not in removed}
        self._sightings = Sightings(left, self._sightings.begun)
        return freed, errors

    async def _prune(self, inventory: _Inventory, removed: set[str]) -> None:
        left = [ImageIdentity(image.id, image.names) for image in inventory.images if image.id not in removed]
        await self._records.prune(left, inventory.wall)

    async def _image_fs_usage(self) -> FsUsage:
        info = await self._runtime.image_fs_info()
        mountpoint = info.image_filesystems[0].fs_id.mountpoint if info.image_filesystems else ""
        if not mountpoint:
            raise ImageGcError("the runtime does not report which file system holds its images")
        outcome = await self._flight.run("statfs", lambda: self._read_usage(mountpoint), _STATFS_DEADLINE_S)
        if isinstance(outcome, Done):
            return outcome.value
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, HostError):
                raise ImageGcError(str(outcome.error)) from outcome.error
            raise outcome.error
        raise ImageGcError(f"statfs {mountpoint}: the file system does not answer")


def _sandbox_image(status: pb.StatusResponse) -> frozenset[str]:
    """The sandbox image, from the runtime's configuration. Runtimes that cannot pin it (containerd before 1.7) report it there."""
    try:
        config = msgspec.json.decode(status.info.get("config", "{}"), type=_RuntimeConfig)
    except msgspec.DecodeError:
        return frozenset()
    return frozenset({config.sandboxImage}) if config.sandboxImage else frozenset()


def _stored(image: pb.Image) -> StoredImage:
    return StoredImage(image.id, (*image.repo_tags, *image.repo_digests), image.size, image.pinned)
