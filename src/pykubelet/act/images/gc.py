"""The image collector: looks at the runtime's images every five minutes and removes what `decide_gc.py` names.

Owns: sightings of images, their removal, and the Events about it. Reads the runtime's images and containers, the file
system that holds the images, and `Lifecycles` for images that pods mount as volumes. It also tidies the pull records:
it is the one who knows which images are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from pykubelet.act.images import decide_gc
from pykubelet.act.images.decide import joined_errors
from pykubelet.act.images.decide_gc import Candidate, Sightings, StoredImage
from pykubelet.act.images.metrics import COLLECTED
from pykubelet.act.images.model import ImageSettings
from pykubelet.act.images.record_store import RecordStore
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, Flight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.values import Value
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.mounts import FsUsage, read_fs_usage

log = Log("images")
_FIRST_LOOK_RETRY_S = 10.0
_STATFS_DEADLINE_S = 10.0
_HANDOUT_GRACE_S = 120.0


class CollectedRuntime(Protocol):
    """The part of the CRI client that the collector needs."""

    async def list_images(self) -> Sequence[pb.Image]: ...

    async def list_containers(self, uid: str | None = None) -> Sequence[pb.Container]: ...

    async def remove_image(self, image: pb.ImageSpec) -> None: ...

    async def image_fs_info(self) -> pb.ImageFsInfoResponse: ...

    async def status(self, verbose: bool = False) -> pb.StatusResponse: ...


class ImageGcError(Exception):
    """A round of collection did not reach its aim; the message is what the reference says."""


class _RuntimeConfig(msgspec.Struct, frozen=True):
    """The part of the runtime's verbose status that counts here."""

    sandboxImage: str = ""


class _Look(Value):
    """What the runtime has, and when the look began (monotonic, wall). `protected`: names that must stay."""

    images: tuple[StoredImage, ...]
    used: frozenset[str]
    protected: frozenset[str]
    at: float
    wall: float


class ImageCollector:
    """One per runtime. `run_gc_loop` is its life; the others are for eviction and tests."""

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
        self._flight = Flight("image-statfs", workers=1)
        self._sightings = Sightings()
        self._began = clock.monotonic()
        self._turn = asyncio.Lock()
        self._failed_before = False

    async def run_gc_loop(self) -> None:
        """Look and collect, every `gc_period_s`; until the first look has succeeded, more often."""
        while True:
            await self.run_round()
            period_s = self._settings.gc_period_s
            await asyncio.sleep(period_s if self._sightings.begun else min(period_s, _FIRST_LOOK_RETRY_S))

    async def run_round(self) -> None:
        """One look, and one collection if it is switched on. What goes wrong is told, never raised."""
        try:
            if decide_gc.is_enabled(self._settings):
                await self.collect()
            else:
                async with self._turn:
                    await self._look()
        except (ImageGcError, CriError) as error:
            if self._failed_before:
                self._recorder.post(decide_gc.tell_gc_failed(str(error)))
            else:
                log.warning("image garbage collection failed", error=error)
            self._failed_before = True
            return
        if self._failed_before:
            log.info("image garbage collection works again")
        self._failed_before = False

    async def collect(self) -> int:
        """Remove images by age and by disk usage; the bytes freed. Raises ImageGcError or CriError."""
        async with self._turn:
            look = await self._look()
            candidates = decide_gc.rank_candidates(self._sightings, look.images, look.used, look.protected)
            removed: set[str] = set()
            try:
                old, rest = decide_gc.split_by_age(candidates, self._settings, look.at, self._began)
                freed, errors = await self._remove(old, "age", removed)
                if errors:
                    raise ImageGcError(decide_gc.age_deletion_failed(self._settings.max_age_s, joined_errors(errors)))
                return freed + await self._make_room(rest, look, removed)
            finally:
                await self._prune(look, removed)

    async def delete_unused(self) -> int:
        """Remove every image that may go to make room: the node is short of disk. The bytes freed."""
        async with self._turn:
            look = await self._look()
            candidates = decide_gc.rank_candidates(self._sightings, look.images, look.used, look.protected)
            removed: set[str] = set()
            eligible = [c for c in candidates if decide_gc.may_free(c, look.at, self._settings.min_age_s)]
            try:
                freed, errors = await self._remove(eligible, "space", removed)
            finally:
                await self._prune(look, removed)
            if errors:
                wanted = sum(c.image.size_bytes for c in eligible)
                raise ImageGcError(decide_gc.deletion_failed(wanted, freed, joined_errors(errors)))
            return freed

    async def _look(self) -> _Look:
        at, wall = self._clock.monotonic(), self._clock.wall()
        images = tuple(_stored(image) for image in await self._runtime.list_images())
        containers = await self._runtime.list_containers()
        told = [c.image_id or c.image_ref or c.image.image for c in containers]
        used = decide_gc.find_used(images, told, self._volume_images())
        self._sightings = decide_gc.look(self._sightings, images, used, at)
        await self._records.settle_leftovers([(image.id, image.names) for image in images])
        sandbox_image = _sandbox_image(await self._runtime.status(verbose=True))
        return _Look(images, used, self._settings.protected | sandbox_image, at, wall)

    def _volume_images(self) -> set[str]:
        return {
            volume.image.reference
            for lifecycle in self._lifecycles.get().pods.values()
            for volume in lifecycle.pod.spec.volumes
            if volume.image is not None and volume.image.reference
        }

    async def _make_room(self, candidates: Sequence[Candidate], look: _Look, removed: set[str]) -> int:
        usage = await self._image_fs_usage()
        if usage.capacity_bytes <= 0:
            self._recorder.post(decide_gc.tell_invalid_capacity())
            raise ImageGcError(decide_gc.INVALID_CAPACITY)
        wanted = decide_gc.bytes_to_free(usage.capacity_bytes, usage.available_bytes, self._settings)
        if wanted <= 0:
            return 0
        log.info("the image file system is over its high threshold", bytes_to_free=wanted)
        eligible = [c for c in candidates if decide_gc.may_free(c, look.at, self._settings.min_age_s)]
        freed, errors = await self._remove(eligible, "space", removed, wanted)
        if errors:
            raise ImageGcError(decide_gc.deletion_failed(wanted, freed, joined_errors(errors)))
        if freed < wanted:
            message = decide_gc.too_little_freed(usage.capacity_bytes, usage.available_bytes, freed)
            self._recorder.post(decide_gc.tell_too_little_freed(message))
            raise ImageGcError(message)
        return freed

    async def _remove(
        self, candidates: Iterable[Candidate], why: str, removed: set[str], enough: int | None = None
    ) -> tuple[int, list[str]]:
        """Remove in order until `enough` bytes are free; the bytes, and what went wrong."""
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

    async def _prune(self, look: _Look, removed: set[str]) -> None:
        await self._records.prune({image.id for image in look.images} - removed, look.wall)

    async def _image_fs_usage(self) -> FsUsage:
        info = await self._runtime.image_fs_info()
        mountpoint = info.image_filesystems[0].fs_id.mountpoint if info.image_filesystems else ""
        if not mountpoint:
            raise ImageGcError("the runtime does not tell which file system holds its images")
        outcome = await self._flight.run("statfs", lambda: self._read_usage(mountpoint), _STATFS_DEADLINE_S)
        if isinstance(outcome, Done):
            return outcome.value
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, HostError):
                raise ImageGcError(str(outcome.error)) from outcome.error
            raise outcome.error
        raise ImageGcError(f"statfs {mountpoint}: the file system does not answer")


def _sandbox_image(status: pb.StatusResponse) -> frozenset[str]:
    """The image of the sandboxes: runtimes that cannot pin images (containerd before 1.7) tell it in their config."""
    try:
        config = msgspec.json.decode(status.info.get("config", "{}"), type=_RuntimeConfig)
    except msgspec.DecodeError:
        return frozenset()
    return frozenset({config.sandboxImage}) if config.sandboxImage else frozenset()


def _stored(image: pb.Image) -> StoredImage:
    return StoredImage(image.id, (*image.repo_tags, *image.repo_digests), image.size, image.pinned)
