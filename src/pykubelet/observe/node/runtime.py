"""Whether the container runtime is well, by its own account and by its answering at all.

Owns: the cell `RuntimeReady`. Reads: the runtime's Status and Version, its socket file, which is another one after a
restart, and in `Observed` when all its pods were last looked at: one that answers Status while its lists hang is not
well. Asks every 5 s, at once when the connection is lost, and again after 0.1 to 1 s while something is wrong; one that
is away is asked as soon as it has made its socket anew.

A runtime that does not answer counts as down only 30 s after its last good answer: a restarting runtime is no reason to
call the node not ready. Source: the Kubernetes documentation "Container Runtime Interface", RuntimeReady and
NetworkReady conditions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

from pykubelet.base.kit.cells import Cell, CellWriter
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
    """Seconds: between two questions when all is well; before asking again, by number of failures; for one answer; and
    since the last good answer until the runtime counts as down; since the last full look at its pods until that is late,
    and until it counts as lost."""

    when_well_s: float = 5.0
    retries_s: tuple[float, ...] = (0.1, 0.2, 0.4, 1.0)
    answer_s: float = 5.0
    down_after_s: float = 30.0
    look_late_s: float = 30.0
    look_lost_s: float = 180.0


def condition_error(status: pb.StatusResponse, kind: str, what: str) -> str:
    """Empty when the condition holds, else the reference's words."""
    for condition in status.status.conditions:
        if condition.type == kind:
            if condition.status:
                return ""
            return f"{what}: {kind}=false reason:{condition.reason} message:{condition.message}"
    return f"{what}: <nil>"


def ready_of(status: pb.StatusResponse, known: RuntimeReady) -> RuntimeReady:
    """What an answer says; name, version and epoch are those already known. Pure."""
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
        answer_error="",
        away=False,
    )


def pleg_error(age_s: float | None, lost_s: float) -> str:
    """`age_s`: since the last full look at the runtime's pods began, None before the first. In full minutes, so that what
    is told of a look that is lost does not change with every look at the clock. Pure."""
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
        async with Supervisor("runtime") as supervisor:
            supervisor.start_root("runtime-asked", self._ask_for_ever())
            supervisor.start_root("runtime-link", self._watch_link())
            supervisor.start_root("runtime-looks", self._follow_looks())
            raise await supervisor.wait_failed()

    async def _watch_link(self) -> None:
        while True:
            await self._cri.wait_disconnected()
            self._lost.set()

    async def _follow_looks(self) -> None:
        """The first look, and the first one after they were lost, is told at once."""
        while True:
            listed_at = self._observed.get().listed_at
            if listed_at is not None:
                await self._runtime.cell.wait_for(lambda now: bool(now.pleg_error))
            await self._wait_for_look_after(listed_at)
            self._take(self._runtime.get())

    async def _wait_for_look_after(self, listed_at: float | None) -> None:
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
            self._runtime.publish(replace(now, next_at=self._clock.wall() + pause), is_news=False)
            if not well:
                failures = 0 if await self._socket_made(pause) else failures
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._lost.wait()
            self._lost.clear()

    async def _socket_made(self, within_s: float) -> bool:
        """Whether the runtime makes its socket within this time, as it does when it begins; until then, or all of it."""
        folder, name = os.path.split(self._path)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                try:
                    with Watcher() as watcher:
                        watcher.add(folder, EventKind.CREATE | EventKind.MOVED_TO)
                        async for event in watcher:
                            if event.name == name:
                                return True
                except HostError:  # no such directory, or no watch to be had
                    await asyncio.sleep(within_s)
        return False

    async def _ask(self) -> RuntimeReady:
        known = self._runtime.get()
        try:
            async with asyncio.timeout(self._periods.answer_s):
                status = await self._cri.status()
                # after the answer: a look before it may still be at the old socket, and count one restart twice
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
        """An error that is not a plain silence (`Unavailable`) does not mean that the runtime was restarted."""
        known = replace(known, answer_error=str(error), away=known.away or error.is_unavailable)
        if self._ok_at is None:
            return known if known.checked else replace(known, runtime_error=NOT_CHECKED)
        if self._clock.monotonic() - self._ok_at >= self._periods.down_after_s:
            return replace(known, runtime_error=IS_DOWN)
        return known

    def _with_looks(self, found: RuntimeReady) -> RuntimeReady:
        listed_at, now = self._observed.get().listed_at, self._clock.monotonic()
        age_s = None if listed_at is None else now - listed_at
        unseen_s = now - self._began_at if age_s is None else age_s
        is_late = unseen_s >= self._periods.look_late_s
        known = found.unseen_since if listed_at == self._late_at else None
        self._late_at = listed_at
        since = (known or self._clock.wall() - unseen_s) if is_late else None
        return replace(found, pleg_error=pleg_error(age_s, self._periods.look_lost_s), unseen_since=since)

    def _take(self, found: RuntimeReady) -> None:
        known = self._runtime.get()
        found = self._with_looks(replace(found, since=known.since, next_at=known.next_at))
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
