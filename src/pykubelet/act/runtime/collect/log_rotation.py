"""Rotates the logs of running containers that have grown too large.

Owns: the sizes of the logs of running containers, and their rotation. Reads: `Observed`.
A missing log is opened again: another program has removed it, or the agent ended in the middle of a rotation. If the
runtime does not open the new log, the old one gets its name back, and the next round tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from pykubelet.act.runtime.collect.log_rotation_plan import plan_rotation, rotated_name
from pykubelet.base.kit.bulkhead import Bulkhead
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import ContainerID, PodRef
from pykubelet.base.model.observed import ContainerView, Observed
from pykubelet.base.model.paths import Beneath, log_file
from pykubelet.config.settings import Settings
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.beneath import gzip_file, list_dir, remove_file, rename, stat_file
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind

T = TypeVar("T")
log = Log("runtime")
SIZES_DEADLINE_S = 10.0
FILES_DEADLINE_S = 300.0
SLOT_HOLD_S = 5.0  # a slow ReopenContainerLog call or a slow compression does not block others


class RotationSettings(Value):
    """`max_bytes` below zero: no rotation. `max_files`: at least 2, with the current log. `workers`: logs rotated in parallel."""

    max_bytes: int = 10 << 20
    max_files: int = 5
    workers: int = 1
    period_s: float = 10.0


def rotation_settings(settings: Settings) -> RotationSettings:
    """The settings of log rotation from the agent's configuration."""
    config = settings.config
    return RotationSettings(
        max_bytes=settings.container_log_max_bytes,
        max_files=config.containerLogMaxFiles,
        workers=config.containerLogMaxWorkers,
        period_s=settings.config.containerLogMonitorInterval.s,
    )


class RotationError(Exception):
    """A log could not be rotated; the message is for the log."""


class LogRotation:
    """Rotates container logs every `period_s`. `run` never returns."""

    def __init__(
        self, cri: CriClient, clock: Clock, flight: SingleFlight, observed: Cell[Observed], settings: RotationSettings
    ) -> None:
        self._cri = cri
        self._clock = clock
        self._flight = flight
        self._observed = observed
        self._settings = settings
        self._supervisor = Supervisor("log-rotation")
        self._slots = Bulkhead(settings.workers, SLOT_HOLD_S)
        self._busy: set[ContainerID] = set()
        self._failing: set[ContainerID] = set()

    async def run(self) -> None:
        """Run log rotation until its root task fails, and raise its error."""
        async with self._supervisor as supervisor:
            supervisor.start_root("log-rotation-rounds", self._go_round())
            raise await supervisor.wait_failed()

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(self._settings.period_s)
            await self.run_round()

    async def run_round(self) -> list[asyncio.Task[None]]:
        """Read the sizes of all logs once. Returns the tasks that rotate or reopen logs."""
        if self._settings.max_bytes < 0:
            return []
        writers = [
            (view.ref, container)
            for view in self._observed.get().pods.values()
            for container in view.running
            if container.log_path and container.id not in self._busy
        ]
        self._failing.intersection_update([container.id for _, container in writers] + list(self._busy))
        logs = [log_file(container.log_path) for _, container in writers]
        try:
            sizes = await self._files("log-sizes", partial(_sizes, logs), SIZES_DEADLINE_S)
        except RotationError as error:
            log.warning("cannot read the sizes of container logs", error=error)
            return []
        return [
            self._start(ref, container, is_missing=size is None)
            for (ref, container), size in zip(writers, sizes, strict=True)
            if size is None or size >= self._settings.max_bytes
        ]

    def _start(self, ref: PodRef, container: ContainerView, *, is_missing: bool) -> asyncio.Task[None]:
        self._busy.add(container.id)
        work = self._treat(ref, container, is_missing=is_missing)
        return self._supervisor.start_child(f"log-rotation-{container.id[:12]}", work, _logged_already)

    async def _treat(self, ref: PodRef, container: ContainerView, *, is_missing: bool) -> None:
        try:
            async with self._slots.slot():
                if is_missing:
                    await self._reopen(container)
                else:
                    await self._rotate(container)
        except RotationError as error:
            if container.id not in self._failing:
                log.warning("cannot rotate a log", pod=ref, uid=ref.uid, container=container.name, error=error)
                self._failing.add(container.id)
        else:
            self._failing.discard(container.id)
            log.info("log opened again" if is_missing else "log rotated", pod=ref, container=container.name)
        finally:
            self._busy.discard(container.id)

    async def _rotate(self, container: ContainerView) -> None:
        key = f"log:{container.id}"
        current = log_file(container.log_path)
        await self._files(key, partial(_remove_excess, current, self._settings.max_files), FILES_DEADLINE_S)
        rotated = current.parent / rotated_name(current.name, self._clock.wall())
        await self._files(key, partial(_move, current, rotated), FILES_DEADLINE_S)
        try:
            await self._reopen(container)
        except RotationError:
            await self._files(key, partial(_move_back, rotated, current), FILES_DEADLINE_S)
            raise

    async def _reopen(self, container: ContainerView) -> None:
        try:
            await self._cri.reopen_container_log(container.id)
        except CriError as error:
            raise RotationError(f"failed to reopen container log: {error}") from error

    async def _files(self, key: str, work: Callable[[], T], deadline_s: float) -> T:
        outcome = await self._flight.run(key, work, deadline_s)
        if isinstance(outcome, Done):
            return outcome.value
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, HostError):
                raise RotationError(str(outcome.error)) from outcome.error
            raise outcome.error
        raise RotationError("the file system of the logs does not answer")


def _logged_already(_: BaseException) -> None:
    return


# Work on files; each function blocks


def _sizes(logs: Sequence[Beneath]) -> list[int | None]:
    """The size of each file in bytes; None for a missing file, 0 for one whose size cannot be read and what is no regular file."""
    sizes: list[int | None] = []
    for place in logs:
        try:
            found = stat_file(place)
        except HostError as error:
            log.debug("cannot read the size of a container log", path=place, error=error)
            sizes.append(0)
        else:
            sizes.append(None if found is None else found.size if found.is_file else 0)
    return sizes


def _remove_excess(current: Beneath, max_files: int) -> None:
    """Remove the oldest rotated logs beyond `max_files`, and compress the others. Only regular files count, as the runtime makes."""
    names = (entry.name for entry in list_dir(current.parent) if entry.kind is FileKind.FILE)
    plan = plan_rotation(current.name, names, max_files)
    for old in plan.remove:
        remove_file(current.parent / old)
    for old in plan.compress:
        gzip_file(current.parent / old)


def _move(current: Beneath, rotated: Beneath) -> None:
    if stat_file(rotated) is not None:
        raise HostError("rename", current, "EEXIST", f"{rotated} exists: two rotations in one second")
    rename(current, rotated.name)


def _move_back(rotated: Beneath, current: Beneath) -> None:
    """Give the log its old name back, unless the runtime has opened a new log despite its error."""
    if stat_file(current) is None:
        rename(rotated, current.name)
