"""Observes whether the container runtime is ready: by its Status, and by whether it answers at all.

Owns: the cell `RuntimeReady`. Reads: the runtime's Status and Version; its socket file, which is a new one after a restart;
and the time of the last relist in `Observed`, because a runtime that answers Status while its lists hang is not ready.
Calls Status every 5 s, at once when the connection is lost, and again after 0.1 to 1 s while something is wrong. A runtime
that is away is called as soon as it has created its socket again.

A runtime that does not answer counts as down only 30 s after its last good answer, so that a node stays ready while its
runtime restarts. Source: the Kubernetes documentation "Container Runtime Interface", RuntimeReady and NetworkReady
conditions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

from pykubelet.base.kit.cells import Cell, CellWriter, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.durations import format_seconds
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.node import HandlerFeatures, RuntimeReady
from pykubelet.base.model.observed import Observed
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.edges.cri.wire import socket_path
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import stat_file
from pykubelet.edges.host.fs.inotify import EventKind, Watcher

log = Log("node")
NOT_CHECKED = "container runtime status check may not have completed yet"
IS_DOWN = "container runtime is down"
RUNTIME_CONDITION, NETWORK_CONDITION = "RuntimeReady", "NetworkReady"


class RuntimePeriods(Value):
    """Seconds, in the order of the fields: between two Status calls while the runtime is ready; before the next call after each
    failure; for one answer; from the last good answer until the runtime counts as down; from the last relist until relists
    count as late, and until they count as lost."""

    when_well_s: float = 5.0
    retries_s: tuple[float, ...] = (0.1, 0.2, 0.4, 1.0)
    answer_s: float = 5.0
    down_after_s: float = 30.0
    relist_late_s: float = 30.0
    relist_lost_s: float = 180.0


def condition_error(status: pb.StatusResponse, kind: str, what: str) -> str:
    """Empty if the condition holds, else the text of the reference kubelet."""
    for condition in status.status.conditions:
        if condition.type == kind:
            if condition.status:
                return ""
            return f"{what}: {kind}=false reason:{condition.reason} message:{condition.message}"
    return f"{what}: <nil>"


def ready_of(status: pb.StatusResponse, known: RuntimeReady) -> RuntimeReady:
    """The state after an answer to Status. Name, version and epoch are those of `known`. Pure."""
    return replace(
        known,
        checked=True,
        runtime_error=condition_error(status, RUNTIME_CONDITION, "container runtime not ready"),
        network_error=condition_error(status, NETWORK_CONDITION, "container runtime network not ready"),
        handlers={
            handler.name: HandlerFeatures(handler.features.recursive_read_only_mounts, handler.features.user_namespaces)
            for handler in status.runtime_handlers
        },
        supplemental_groups_policy=status.features.supplemental_groups_policy,
        mount_options=status.features.mount_options,
        answer_error="",
        away=False,
    )


def pleg_error(age_s: float | None, lost_s: float) -> str:
    """The error if the PLEG's last relist is older than `lost_s`, else empty. Pure.

    `age_s`: seconds since the last relist began, None before the first. The text has full minutes, so that it does not change
    with every call."""
    if age_s is None:
        return "PLEG is not healthy: pleg has yet to be successful"
    if age_s < lost_s:
        return ""
    ago, threshold = format_seconds(age_s // 60 * 60), format_seconds(lost_s)
    return f"PLEG is not healthy: pleg was last seen active {ago} ago; threshold is {threshold}"


class RuntimeLoop:
    """`run` never returns."""

    def __init__(
        self,
        cri: CriClient,
        clock: Clock,
        runtime: CellWriter[RuntimeReady],
        observed: Cell[Observed],
        periods: RuntimePeriods | None = None,
    ) -> None:
        self._observed = observed
        self._began_at = clock.monotonic()
        self._cri = cri
        self._clock = clock
        self._runtime = runtime
        self._periods = periods or RuntimePeriods()
        self._path = socket_path(cri.endpoint)
        self._socket: tuple[int, int] | None = None
        self._ok_at: float | None = None
        self._late_at: float | None = None
        self._lost = asyncio.Event()

    async def run(self) -> None:
        """Call Status periodically and when the connection is lost; follow relists. Never returns."""
        async with Supervisor("runtime") as supervisor:
            supervisor.start_root("runtime-asked", self._ask_for_ever())
            supervisor.start_root("runtime-link", self._watch_link())
            supervisor.start_root("runtime-relists", self._follow_relists())
            raise await supervisor.wait_failed()

    async def _watch_link(self) -> None:
        while True:
            await self._cri.wait_disconnected()
            self._lost.set()

    async def _follow_relists(self) -> None:
        """Publish at once the first relist, and the first one after relists were lost."""
        while True:
            listed_at = self._observed.get().listed_at
            if listed_at is not None:
                await self._runtime.cell.wait_for(lambda now: bool(now.pleg_error))
            await self._wait_for_relist_after(listed_at)
            self._take(self._runtime.get())

    async def _wait_for_relist_after(self, listed_at: float | None) -> None:
        await self._observed.wait_for(lambda now: now.listed_at != listed_at)

    async def _ask_for_ever(self) -> None:
        failures = 0
        while True:
            self._take(await self._ask())
            now = self._runtime.get()
            well = now.ok and not now.network_error and not now.answer_error
            failures = 0 if well else failures + 1
            retries = self._periods.retries_s
            pause = self._periods.when_well_s if well else retries[min(failures, len(retries)) - 1]
            self._runtime.publish(replace(now, next_at=self._clock.wall() + pause), wake_readers=False)
            if not well:
                failures = 0 if await self._socket_made(pause) else failures
                continue
            await within(pause, self._lost.wait())
            self._lost.clear()

    async def _socket_made(self, within_s: float) -> bool:
        """Wait until the runtime creates its socket, as it does at its start; False if it does not within this time."""
        folder, name = os.path.split(self._path)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                try:
                    with Watcher() as watcher:
                        watcher.add(folder, EventKind.CREATE | EventKind.MOVED_TO)
                        async for event in watcher:
                            if event.name == name:
                                return True
                except HostError:  # the directory does not exist, or cannot be watched
                    await asyncio.sleep(within_s)
        return False

    async def _ask(self) -> RuntimeReady:
        known = self._runtime.get()
        try:
            async with asyncio.timeout(self._periods.answer_s):
                status = await self._cri.status()
                # read after the answer: earlier it may still be the old socket, and one restart would count twice
                socket = self._socket_file()
                restarted = (known.away and known.checked) or (self._socket is not None and socket != self._socket)
                if not known.name or restarted:
                    version = await self._cri.version(self._periods.answer_s)
                    known = replace(known, name=version.runtime_name, version=version.runtime_version)
        except CriError as error:
            return self._without_answer(known, error)
        except TimeoutError:
            problem = CriError(CriCode.DEADLINE_EXCEEDED, f"no answer within {self._periods.answer_s:g} s", "Status")
            return self._without_answer(known, problem)
        self._socket = socket
        found = ready_of(status, replace(known, epoch=known.epoch + 1) if restarted else known)
        if not found.runtime_error:
            self._ok_at = self._clock.monotonic()
        return found

    def _socket_file(self) -> tuple[int, int] | None:
        try:
            found = stat_file(self._path)
        except HostError:
            return None
        return (found.inode, found.mtime_ns) if found is not None else None

    def _without_answer(self, known: RuntimeReady, error: CriError) -> RuntimeReady:
        """The state after a call without an answer. Only the error `Unavailable` means that the runtime is away."""
        known = replace(known, answer_error=str(error), away=known.away or error.is_unavailable)
        if self._ok_at is None:
            return known if known.checked else replace(known, runtime_error=NOT_CHECKED)
        if self._clock.monotonic() - self._ok_at >= self._periods.down_after_s:
            return replace(known, runtime_error=IS_DOWN)
        return known

    def _with_relist_age(self, found: RuntimeReady) -> RuntimeReady:
        listed_at, now = self._observed.get().listed_at, self._clock.monotonic()
        age_s = None if listed_at is None else now - listed_at
        unseen_s = now - self._began_at if age_s is None else age_s
        is_late = unseen_s >= self._periods.relist_late_s
        known = found.unseen_since if listed_at == self._late_at else None
        self._late_at = listed_at
        since = (known or self._clock.wall() - unseen_s) if is_late else None
        return replace(found, pleg_error=pleg_error(age_s, self._periods.relist_lost_s), unseen_since=since)

    def _take(self, found: RuntimeReady) -> None:
        known = self._runtime.get()
        found = self._with_relist_age(replace(found, since=known.since, next_at=known.next_at))
        if found == known:
            return
        found = replace(found, since=self._clock.wall())
        self._runtime.publish(found)
        if found.answer_error and not known.answer_error:
            log.warning("the container runtime does not answer", error=found.answer_error)
        if known.answer_error and not found.answer_error:
            log.info("the container runtime answers again")
        if found.pleg_error and not known.pleg_error and self._observed.get().listed_at is not None:
            log.warning("the container runtime does not list its pods", error=found.pleg_error)
        if found.epoch != known.epoch:
            log.info("the container runtime was restarted", runtime=found.name, version=found.version)
        for error, before, what in (
            (found.runtime_error, known.runtime_error, "container runtime"),
            (found.network_error, known.network_error, "container runtime network"),
        ):
            if error and error != before:
                log.warning(f"{what} is not ready", error=error)
            elif before and not error:
                log.info(f"{what} is ready", runtime=found.name, version=found.version)
