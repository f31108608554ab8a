"""Log rotation: a running container whose log has grown too large goes on writing to a new one.

Owns: the sizes of the logs of running containers and what happens to those that are too large. Reads: `Observed`.
A log that is missing is opened again: somebody removed it, or the agent ended in the middle of a rotation. When the
runtime does not open the new log, the old one gets its name back, and the next round tries again.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from pykubelet.act.runtime.collect.log_rotation_plan import plan_rotation, rotated_name
from pykubelet.base.kit.bulkhead import Bulkhead
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, Flight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import ContainerID, PodRef
from pykubelet.base.model.observed import ContainerView, Observed
from pykubelet.config.settings import Settings
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind, gzip_file, list_dir, remove_file, rename, stat_file

T = TypeVar("T")
log = Log("runtime")
SIZES_DEADLINE_S = 10.0
FILES_DEADLINE_S = 300.0
HOLD_S = 5.0  # a runtime that does not open one log, or a log that takes long to compress, holds up no other


class RotationSettings(Value):
    """`max_bytes` below zero: no rotation. `max_files` counts the present log; at least 2. `workers`: logs at once."""

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
        period_s=settings.container_log_monitor_interval_s,
    )


class RotationError(Exception):
    """A log could not be rotated; the message is for the log."""


class LogRotation:
    """`run` never returns."""

    def __init__(
        self, cri: CriClient, clock: Clock, flight: Flight, observed: Cell[Observed], settings: RotationSettings
    ) -> None:
        self._cri = cri
        self._clock = clock
        self._flight = flight
        self._observed = observed
        self._settings = settings
        self._supervisor = Supervisor("log-rotation")
        self._turns = Bulkhead(settings.workers, HOLD_S)
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
        """Look at all logs once; the work that this led to, under way."""
        if self._settings.max_bytes < 0:
            return []
        writers = [
            (view.ref, container)
            for view in self._observed.get().pods.values()
            for container in view.running
            if container.log_path and container.id not in self._busy
        ]
        self._failing.intersection_update([container.id for _, container in writers] + list(self._busy))
        paths = [container.log_path for _, container in writers]
        try:
            sizes = await self._files("log-sizes", partial(_sizes, paths), SIZES_DEADLINE_S)
        except RotationError as error:
            log.warning("cannot look at container logs", error=error)
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
            async with self._turns.place():
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
        path = container.log_path
        await self._files(key, partial(_make_room, path, self._settings.max_files), FILES_DEADLINE_S)
        directory, name = posixpath.split(path)
        rotated = f"{directory}/{rotated_name(name, self._clock.wall())}"
        await self._files(key, partial(_move, path, rotated), FILES_DEADLINE_S)
        try:
            await self._reopen(container)
        except RotationError:
            await self._files(key, partial(_move_back, rotated, path), FILES_DEADLINE_S)
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


# What touches files; each blocks


def _sizes(paths: Sequence[str]) -> list[int | None]:
    """Bytes of each file; None for one that is missing, 0 for one that cannot be looked at."""
    sizes: list[int | None] = []
    for path in paths:
        try:
            found = stat_file(path)
        except HostError as error:
            log.debug("cannot look at a log", path=path, error=error)
            sizes.append(0)
        else:
            sizes.append(None if found is None else found.size)
    return sizes


def _make_room(path: str, max_files: int) -> None:
    """Remove what is too much, compress what is not the newest. Only regular files count: the runtime makes no others."""
    directory, name = posixpath.split(path)
    names = (entry.name for entry in list_dir(directory) if entry.kind is FileKind.FILE)
    plan = plan_rotation(name, names, max_files)
    for old in plan.remove:
        remove_file(f"{directory}/{old}")
    for old in plan.compress:
        gzip_file(f"{directory}/{old}")


def _move(path: str, rotated: str) -> None:
    if stat_file(rotated, follow=False) is not None:
        raise HostError("rename", path, "EEXIST", f"{rotated} exists: two rotations in one second")
    rename(path, rotated)


def _move_back(rotated: str, path: str) -> None:
    """Unless the runtime did open a new log, whatever it answered."""
    if stat_file(path, follow=False) is None:
        rename(rotated, path)
