"""Keeps the pull records: in memory for decisions, on disk for the next start.

Owns: `<records_dir>/pulling` (an intent for each started pull) and `<records_dir>/pulled` (one record for each image
pulled here). `decide.py` decides which pod may use an image. Only image pulls and the image collector use this module.

Rules: an intent is written before PullImage is called. It is removed when the pull has certainly failed, or when the
record is written, under the ID that ImageStatus has for the pulled image. A pod must pull an image that is present while an
intent of one of its names exists. An unreadable record is renamed to `*.corrupt`; its image counts as pulled here with unknown
credentials. A failed write keeps the intent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.images.metrics import INTENTS, RECORDS
from pykubelet.provide.images.names import InvalidImage, bare_name, complete_name
from pykubelet.provide.images.records import (
    ImageAccess,
    ImageIdentity,
    PulledRecord,
    RecordError,
    RecordIndex,
    content_of,
    file_name,
    parse_intent,
    parse_pulled,
    render_intent,
    render_pulled,
)

log = Log("images")
T = TypeVar("T")

_LIMIT = 4 << 20
_WRITE_DEADLINE_S = 30.0
_DIR_MODE = 0o700
_SET_ASIDE = ".corrupt"


class RecordStore:
    """The pull records of one root directory. `load` reads the disk and must be called first."""

    def __init__(self, directory: str, clock: Clock) -> None:
        self._pulling = f"{directory}/pulling"
        self._pulled = f"{directory}/pulled"
        self._clock = clock
        self._flight = SingleFlight("image-records", workers=1)
        self._records = RecordIndex()
        self._unreadable: set[str] = set()
        self._intents: set[str] = set()
        self._running: Counter[str] = Counter()
        self._unsure: set[str] = set()
        self._handed_out: dict[str, float] = {}
        self._lock = asyncio.Lock()
        self._writes = itertools.count()

    def load(self) -> None:
        """Read the records of the last run. Files that cannot be read are set aside with a warning."""
        for directory in (self._pulling, self._pulled):
            try:
                files.make_dirs(directory, _DIR_MODE)
                files.remove_temporaries(directory)
            except HostError as error:
                log.warning("image pull records cannot be kept", error=error)
                return
        self._intents = set(self._read_all(self._pulling, parse_intent)[0])
        records, self._unreadable = self._read_all(self._pulled, parse_pulled)
        self._records = RecordIndex(records)
        self._unsure = set(self._intents)
        self._set_gauges()

    def _set_gauges(self) -> None:
        INTENTS.set(len(self._intents))
        RECORDS.set(len(self._records))

    def record(self, image: ImageIdentity) -> PulledRecord | None:
        """What the records of an image allow; None when it was not pulled here."""
        return self._records.find(image)

    def is_pulling(self, image: str) -> bool:
        """Whether a pull of this image name was begun and its result is not recorded."""
        return image in self._intents

    def is_unknown(self, image: ImageIdentity) -> bool:
        """Whether the image was pulled here with credentials that are not known.

        Its record cannot be read, or a pull of one of its names was begun and the result is not recorded.
        """
        if not self._unreadable.isdisjoint(map(file_name, image.references)):
            return True
        return any(complete_name(intent) in image.names for intent in self._intents)

    def hand_out(self, image_id: str) -> None:
        """Note that a container is about to be made from this image, before the runtime lists the container."""
        self._handed_out[image_id] = self._clock.monotonic()

    def handed_out_at(self, image_id: str) -> float | None:
        """When `hand_out` was last called for this image (monotonic seconds); None: never."""
        return self._handed_out.get(image_id)

    async def begin(self, image: str) -> str | None:
        """Record the intent to pull. Returns an error text if that fails; then the image must not be pulled."""
        async with self._lock:
            if image not in self._intents:
                path = f"{self._pulling}/{file_name(image)}"
                error = await self._write(lambda: _replace(path, render_intent(image)))
                if error is not None:
                    return f'Failed to record image pull intent for container image "{image}": {error}'
                self._intents.add(image)
                self._set_gauges()
            self._running[image] += 1
            return None

    async def failed(self, image: str) -> None:
        """Record that a pull has certainly failed."""
        async with self._lock:
            self._running[image] -= 1
            self._unsure.discard(image)
            await self._drop_intent(image)

    def unsure(self, image: str) -> None:
        """Record that the result of a pull is unknown: the runtime may still have finished it, so the intent stays."""
        self._running[image] -= 1
        self._unsure.add(image)

    async def pulled(self, image: str, pulled: ImageIdentity, access: Iterable[ImageAccess]) -> None:
        """Record a successful pull with the access that each waiting pod has proven. `image`: the name as in the pods."""
        async with self._lock:
            self._running[image] -= 1
            written = [await self._add(image, pulled, image_access) for image_access in access]
            if all(written):
                self._unsure.discard(image)
                await self._drop_intent(image)

    async def learn(self, image: str, present: ImageIdentity, access: ImageAccess) -> None:
        """Add the access that a pod has proven with its credentials. `image`: the name as in the pod."""
        async with self._lock:
            await self._add(image, present, access)

    async def settle_leftovers(self, images: Collection[ImageIdentity]) -> None:
        """Settle intents without a running pull: if the image is present, write a record without access; then drop the intent.

        `images`: all images of the runtime.
        """
        left = {image for image in self._intents if not self._running[image]}
        if not left:
            return
        present: dict[str, ImageIdentity] = {}
        for identity in images:
            present.update((name, identity) for name in identity.names)
        async with self._lock:
            for image in sorted(left):
                if self._running[image]:
                    continue
                found = present.get(image) or present.get(complete_name(image))
                if found is None or await self._add(image, found, None):
                    self._unsure.discard(image)
                    await self._drop_intent(image)

    async def prune(self, present: Collection[ImageIdentity], before: float) -> None:
        """Forget records of images that are gone; those updated at or after `before` (wall seconds) stay.

        `present`: all images of the runtime.
        """
        ids = {image.id for image in present}
        contents = {content for image in present for content in image.contents}
        self._handed_out = {image_id: at for image_id, at in self._handed_out.items() if image_id in ids}
        async with self._lock:
            gone = [r for r in self._records if content_of(r.image_ref) not in contents and r.updated_at < before]
            for record in gone:
                path = f"{self._pulled}/{file_name(record.image_ref)}"
                error = await self._write(partial(files.remove_file, path))
                if error is None:
                    self._records.remove(record)
                else:
                    log.warning("an image pull record cannot be removed", image=record.image_ref, error=error)
            self._set_gauges()
            for name in self._unreadable - {file_name(ref) for image in present for ref in image.references}:
                await self._drop_unreadable(name)

    async def _drop_unreadable(self, name: str) -> None:
        if name in self._unreadable:
            error = await self._write(partial(files.remove_file, f"{self._pulled}/{name}{_SET_ASIDE}"))
            if error is None:
                self._unreadable.discard(name)

    async def _add(self, image: str, identity: ImageIdentity, access: ImageAccess | None) -> bool:
        now = self._clock.wall()
        old = self._records.find(identity)
        new = old or PulledRecord(identity.id, now)
        if access is not None:
            try:
                new = new.with_access(bare_name(image), access, now)
            except InvalidImage as problem:
                log.warning("an image pull cannot be recorded", image=image, error=problem)
                return False
        if new is old:
            return True
        path = f"{self._pulled}/{file_name(identity.id)}"
        error = await self._write(lambda: _replace(path, render_pulled(new)))
        if error is not None:
            log.warning("an image pull record cannot be written", image=image, error=error)
            return False
        self._records.put(new)
        self._set_gauges()
        for reference in identity.references:
            await self._drop_unreadable(file_name(reference))
        return True

    async def _drop_intent(self, image: str) -> None:
        if self._running[image] > 0 or image in self._unsure or image not in self._intents:
            return
        path = f"{self._pulling}/{file_name(image)}"
        error = await self._write(lambda: files.remove_file(path))
        if error is None:
            self._intents.discard(image)
            self._set_gauges()
            del self._running[image]
        else:
            log.warning("an image pull intent cannot be removed", image=image, error=error)

    async def _write(self, work: Callable[[], object]) -> str | None:
        # One thread keeps the writes in order. Each has its own key, or else a write that was given up would refuse the next one.
        outcome = await self._flight.run(f"record {next(self._writes)}", work, _WRITE_DEADLINE_S)
        if isinstance(outcome, Done):
            return None
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, HostError):
                return str(outcome.error)
            raise outcome.error
        return "the disk does not answer"

    def _read_all(self, directory: str, parse: Callable[[bytes], T]) -> tuple[list[T], set[str]]:
        """The values of the readable files, and the names of the unreadable files."""
        found: list[T] = []
        unreadable: set[str] = set()
        for entry in files.list_dir(directory):
            name, path = entry.name, f"{directory}/{entry.name}"
            if not name.startswith("sha256-") or name.endswith(".tmp"):
                continue
            if name.endswith(_SET_ASIDE):
                unreadable.add(name.removesuffix(_SET_ASIDE))
                continue
            try:
                found.append(parse(files.read_bytes(path, _LIMIT)))
            except (RecordError, HostError) as error:
                log.warning("an image pull record cannot be used", path=path, error=error)
                unreadable.add(name)
                _set_aside(path)
        return found, unreadable


def _set_aside(path: str) -> None:
    try:
        files.rename(path, path + _SET_ASIDE)
    except HostError as error:
        log.warning("an image pull record cannot be set aside", path=path, error=error)


def _replace(path: str, data: bytes) -> None:
    try:
        files.write_atomic(path, data, 0o600)
    except HostError as error:
        if not error.is_not_found:
            raise
        files.make_dirs(path.rpartition("/")[0], _DIR_MODE)
        files.write_atomic(path, data, 0o600)
