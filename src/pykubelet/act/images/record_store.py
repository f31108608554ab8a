"""Keeps the pull records: in memory for decisions, on disk for the next start.

Owns: `<records_dir>/pulling` (an intent for each started pull) and `<records_dir>/pulled` (one record for each image
pulled here). Does not decide who may use what (`decide.py`). Used by `ImagePuller` and the image collector only.

Rules: an intent is written before the runtime is asked; it goes when the pull has failed for certain, or when its
record is written. An image that is present while its intent is still there may only be used by those who pull it
again. A file that cannot be read is set aside and means an image that was pulled here by somebody unknown; writes that
fail keep the intent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

from pykubelet.act.images.metrics import INTENTS, RECORDS
from pykubelet.act.images.names import InvalidImage, bare_name, complete_name
from pykubelet.act.images.records import (
    ImageAccess,
    PulledRecord,
    RecordError,
    file_name,
    parse_intent,
    parse_pulled,
    render_intent,
    render_pulled,
)
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, Flight
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError

log = Log("images")
T = TypeVar("T")

_LIMIT = 4 << 20
_WRITE_DEADLINE_S = 30.0
_DIR_MODE = 0o700
_SET_ASIDE = ".corrupt"


class RecordStore:
    """Pull records of one root directory. `load` reads the disk and must come first."""

    def __init__(self, directory: str, clock: Clock) -> None:
        self._pulling = f"{directory}/pulling"
        self._pulled = f"{directory}/pulled"
        self._clock = clock
        self._flight = Flight("image-records", workers=1)
        self._records: dict[str, PulledRecord] = {}
        self._unreadable: set[str] = set()
        self._intents: set[str] = set()
        self._running: Counter[str] = Counter()
        self._unsure: set[str] = set()
        self._handed_out: dict[str, float] = {}
        self._turn = asyncio.Lock()
        self._writes = itertools.count()

    def load(self) -> None:
        """Read what the last run left. Never raises: what cannot be read is set aside with a warning."""
        for directory in (self._pulling, self._pulled):
            try:
                files.make_dirs(directory, _DIR_MODE)
                files.remove_temporaries(directory)
            except HostError as error:
                log.warning("image pull records cannot be kept", error=error)
                return
        self._intents = set(self._read_all(self._pulling, parse_intent)[0])
        records, self._unreadable = self._read_all(self._pulled, parse_pulled)
        self._records = {record.image_ref: record for record in records}
        self._unsure = set(self._intents)
        self._tell_sizes()

    def _tell_sizes(self) -> None:
        INTENTS.set(len(self._intents))
        RECORDS.set(len(self._records))

    def record(self, image_ref: str) -> PulledRecord | None:
        return self._records.get(image_ref)

    def is_pulling(self, image: str) -> bool:
        """A pull of this image was begun, and how it ended is not recorded."""
        return image in self._intents

    def is_unreadable(self, image_ref: str) -> bool:
        """The image was pulled here, but its record cannot be read."""
        return file_name(image_ref) in self._unreadable

    def hand_out(self, image_ref: str) -> None:
        """A container is about to be made from this image, though the runtime does not show it yet."""
        self._handed_out[image_ref] = self._clock.monotonic()

    def handed_out_at(self, image_ref: str) -> float | None:
        """When a container start last got this image (monotonic seconds); None: not since the agent started."""
        return self._handed_out.get(image_ref)

    async def begin(self, image: str) -> str | None:
        """Before a pull. An error text when it cannot be recorded: then nothing may be pulled."""
        async with self._turn:
            if image not in self._intents:
                path = f"{self._pulling}/{file_name(image)}"
                error = await self._write(lambda: _replace(path, render_intent(image)))
                if error is not None:
                    return f'Failed to record image pull intent for container image "{image}": {error}'
                self._intents.add(image)
                self._tell_sizes()
            self._running[image] += 1
            return None

    async def failed(self, image: str) -> None:
        """A pull failed for certain: nothing came of it."""
        async with self._turn:
            self._running[image] -= 1
            self._unsure.discard(image)
            await self._drop_intent(image)

    def unsure(self, image: str) -> None:
        """A pull was abandoned: the runtime may have finished it all the same, so the intent stays."""
        self._running[image] -= 1
        self._unsure.add(image)

    async def pulled(self, image: str, image_ref: str, access: Iterable[ImageAccess]) -> None:
        """A pull succeeded, with what each of those waiting for it has proven."""
        async with self._turn:
            self._running[image] -= 1
            written = [await self._add(image, image_ref, each) for each in access]
            if all(written):
                self._unsure.discard(image)
                await self._drop_intent(image)

    async def learn(self, image: str, image_ref: str, access: ImageAccess) -> None:
        """A pod has shown credentials that are as good as recorded ones."""
        async with self._turn:
            await self._add(image, image_ref, access)

    async def settle_leftovers(self, images: Collection[tuple[str, tuple[str, ...]]]) -> None:
        """Heartbeat the intents of pulls that nobody follows any more into records without access, or drop them.

        `images`: what the runtime has now, as (reference, names).
        """
        left = {image for image in self._intents if not self._running[image]}
        if not left:
            return
        present: dict[str, str] = {}
        for image_ref, names in images:
            present.update((name, image_ref) for name in names)
        async with self._turn:
            for image in sorted(left):
                if self._running[image]:
                    continue
                found = present.get(image) or present.get(complete_name(image))
                if found is None or await self._add(image, found, None):
                    self._unsure.discard(image)
                    await self._drop_intent(image)

    async def prune(self, present: Collection[str], before: float) -> None:
        """Forget records of images that are gone; those updated at or after `before` (wall seconds) stay."""
        self._handed_out = {ref: at for ref, at in self._handed_out.items() if ref in present}
        async with self._turn:
            gone = [r for r in self._records.values() if r.image_ref not in present and r.updated_at < before]
            for record in gone:
                path = f"{self._pulled}/{file_name(record.image_ref)}"
                error = await self._write(partial(files.remove_file, path))
                if error is None:
                    del self._records[record.image_ref]
                else:
                    log.warning("an image pull record cannot be removed", image=record.image_ref, error=error)
            self._tell_sizes()
            for name in self._unreadable - {file_name(image_ref) for image_ref in present}:
                await self._drop_unreadable(name)

    async def _drop_unreadable(self, name: str) -> None:
        if name in self._unreadable:
            error = await self._write(partial(files.remove_file, f"{self._pulled}/{name}{_SET_ASIDE}"))
            if error is None:
                self._unreadable.discard(name)

    async def _add(self, image: str, image_ref: str, access: ImageAccess | None) -> bool:
        now = self._clock.wall()
        old = self._records.get(image_ref)
        new = old or PulledRecord(image_ref, now)
        if access is not None:
            try:
                new = new.with_access(bare_name(image), access, now)
            except InvalidImage as problem:
                log.warning("an image pull cannot be recorded", image=image, error=problem)
                return False
        if new is old:
            return True
        path = f"{self._pulled}/{file_name(image_ref)}"
        error = await self._write(lambda: _replace(path, render_pulled(new)))
        if error is not None:
            log.warning("an image pull record cannot be written", image=image, error=error)
            return False
        self._records[image_ref] = new
        self._tell_sizes()
        await self._drop_unreadable(file_name(image_ref))
        return True

    async def _drop_intent(self, image: str) -> None:
        if self._running[image] > 0 or image in self._unsure or image not in self._intents:
            return
        path = f"{self._pulling}/{file_name(image)}"
        error = await self._write(lambda: files.remove_file(path))
        if error is None:
            self._intents.discard(image)
            self._tell_sizes()
            del self._running[image]
        else:
            log.warning("an image pull intent cannot be removed", image=image, error=error)

    async def _write(self, work: Callable[[], object]) -> str | None:
        # One thread keeps the order; a key of its own, or a write that was given up would refuse the next one.
        outcome = await self._flight.run(f"record {next(self._writes)}", work, _WRITE_DEADLINE_S)
        if isinstance(outcome, Done):
            return None
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, HostError):
                return str(outcome.error)
            raise outcome.error
        return "the disk does not answer"

    def _read_all(self, directory: str, parse: Callable[[bytes], T]) -> tuple[list[T], set[str]]:
        """What can be read, and the names of the files that cannot."""
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
