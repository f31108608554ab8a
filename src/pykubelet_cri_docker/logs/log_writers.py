"""Copies the logs of all containers as they grow.

Owns: which containers are followed, what wakes the copying, and its share of the machine. Nothing happens while no container writes.

All work on files is done in a thread, because a disk that hangs must not stop the event loop, and by one at a time: a call in a thread
costs more than copying what a container writes in some milliseconds, so all containers that have written share a call (a round). A
round takes ROUND_S at most, and a pause follows it. So a container that writes faster than that is read slowly, one slice after the
others' slices, and all that is in memory of the logs is one slice. Files that hang are those of Docker's or the pods' directory, where
all containers have theirs: threads for each would hang too.

A container is watched only while it is copied to the end, for its next event only (`changes.py`). Its first lines, and what it writes
after a while of silence, are copied at once, whatever the others write: they end a pause, and the round of those that write much. Who
reads the log of one that writes all the time has it copied first (`catch_up`).
"""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field
from pykubelet.edges.host.fs.errors import HostError
from pykubelet_cri_docker.logs.changes import Changes
from pykubelet_cri_docker.logs.copier import Copier
from pykubelet_cri_docker.logs.cri_log import open_log
from pykubelet_cri_docker.logs.positions import Positions

T = TypeVar("T")
#: Work of a round, after which the last slices are copied: seconds.
ROUND_S = 0.02
#: Between two rounds, in which others have the processor. What is written meanwhile is late, and costs one round.
PAUSE_S = 0.005
#: After a round that has copied all, the pause is longer: so many times the round, within these bounds. So containers that write a
#: line now and then take a fifth of the processor at most.
REST_FACTOR = 4
REST_S = (0.01, 0.05)
#: Rounds for each second, and at once, that need no pause if they have copied all: a line that comes alone is not delayed, nor the one
#: after it, such as the first of a container that has just started.
FREE_ROUNDS = (20.0, 10)
#: Rounds of the same kind that each container has besides, which the others cannot use up.
OWN_ROUNDS = (0.2, 5)
#: Until a log is tried again that cannot be written or read.
RETRY_S = 2.0
#: For a disk that does not answer.
DEADLINE_S = 10.0
#: For what an ended container has written.
FINISH_S = 30.0
_KEY = "container logs"
log = Log("logs")


class _Followed:
    """A container. `folder`: the directory with Docker's files. `complete_in`: the last round that copied it to the end.

    `free`: its own rounds without a pause. `reported`: the problems that were logged.
    """

    def __init__(self, copier: Copier, docker_path: str) -> None:
        self.copier = copier
        self.folder = posixpath.dirname(docker_path)
        self.complete_in = 0
        self.free = TokenBucket(*OWN_ROUNDS)
        self.reported: set[str] = set()


class _Copied(Value):
    """What a round did for one container. `is_done`: it is copied to the end."""

    is_done: bool = False
    error: HostError | None = None


class _Round(Value):
    """What a round did, by container, and the seconds that it took."""

    copied: dict[str, _Copied] = field(default_factory=dict)
    took_s: float = 0.0

    @property
    def is_done(self) -> bool:
        """Whether all is copied."""
        return all(each.is_done for each in self.copied.values())


_UNFINISHED = _Copied()


class LogWriters:
    """The logs of all containers. `state_dir`: the directory of the positions. `start` it before use, and `close` it at the end."""

    def __init__(self, state_dir: str, flight: SingleFlight, clock: Callable[[], float] = time.monotonic) -> None:
        self._positions = Positions(state_dir)
        self._flight = flight
        self._clock = clock
        self._changes = Changes()
        self._lane = asyncio.Lock()  # one call at a time
        self._followed: dict[str, _Followed] = {}
        self._dirty: set[str] = set()
        self._later: set[str] = set()
        self._wake = asyncio.Event()
        self._copying: set[str] = set()
        self._rounds = 0
        self._free = TokenBucket(*FREE_ROUNDS)
        self._hurry, self._copied = asyncio.Event(), asyncio.Event()
        self._is_hung = False

    def start(self, tasks: Supervisor) -> None:
        """Begin to copy."""
        tasks.start_root("changes of container logs", self._notice())
        tasks.start_root("container logs", self._copy())

    async def close(self) -> None:
        """Save the positions, after the tasks have ended. What cannot be saved is found again at the next start."""
        copiers = [each.copier for each in self._followed.values()]
        self._followed.clear()
        with suppress(HostError):
            await self._call("close", "", partial(_close_all, copiers))
            self._changes.close()

    async def stored(self) -> list[str]:
        """The containers that have a position from this run or an earlier one. Raises HostError."""
        return await self._call("list", "", self._positions.containers)

    async def create(self, cri_log_path: str) -> None:
        """Create the log of a container that is about to start, so that who has started it finds the file. Raises HostError."""
        await self._call("create", cri_log_path, lambda: open_log(cri_log_path).close())

    def follow(self, container_id: str, docker_log_path: str, cri_log_path: str) -> None:
        """Copy Docker's log, from where an earlier run has stopped, and go on as it grows. Does nothing if it is followed already.

        `docker_log_path`: Docker's `LogPath`, which may not exist yet, but its directory does. `cri_log_path`: of the kubelet.
        """
        if container_id in self._followed:
            return
        copier = Copier(container_id, docker_log_path, cri_log_path, self._positions)
        self._followed[container_id] = _Followed(copier, docker_log_path)
        self._mark_changed({container_id})

    async def catch_up(self, container_id: str, deadline_s: float) -> None:
        """Wait until the log has all that Docker has of it now, in a round that begins at once. Gives up at the deadline.

        Does nothing, and does not wait, if all is copied or the container is not followed.
        """
        begun = self._rounds
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while self._is_behind(container_id, begun):
                    self._hurry.set()
                    await self._copied.wait()

    def _is_behind(self, container_id: str, begun: int) -> bool:
        """Whether the container may have written what is not copied, and no round after that one has copied it to the end."""
        followed = self._followed.get(container_id)
        if followed is None or followed.complete_in > begun:
            return False
        self._mark_changed(self._changes.take())
        return container_id in self._dirty or container_id in self._copying

    async def reopen(self, container_id: str) -> None:
        """Write to the file that is at the container's path from now on, and create it: the kubelet has renamed the log.

        Raises HostError if the container is not followed, or the file cannot be created. Then the old file is still written to.
        """
        followed = self._followed.get(container_id)
        if followed is None:
            raise HostError("reopen", f"the log of container {container_id}", "", "it is not written any more")
        await self._call("reopen", container_id, followed.copier.reopen)

    async def finish(self, container_id: str, deadline_s: float = FINISH_S) -> bool:
        """Copy what the container, which has ended, has written, and close its log. False if that is not done in time.

        Then it is still followed, and `finish` may be called again.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        while (followed := self._followed.get(container_id)) is not None and (left := until - loop.time()) > 0:
            try:
                copied = (await self._round([container_id], min(left, DEADLINE_S))).copied.get(
                    container_id, _UNFINISHED
                )
                if copied.is_done:
                    await self._call("close", container_id, followed.copier.close)
                    self._drop(container_id)
            except HostError:
                copied = _UNFINISHED
            if not copied.is_done:
                await asyncio.sleep(min(PAUSE_S if copied.error is None else RETRY_S, left))
        return container_id not in self._followed

    async def forget(self, container_id: str) -> None:
        """Close the log of a container that is removed, and forget its position. Raises HostError."""
        followed = self._followed.get(container_id)

        def remove() -> None:
            if followed is not None:
                with suppress(HostError):
                    followed.copier.close()
            self._positions.remove(container_id)

        await self._call("forget", container_id, remove)
        self._drop(container_id)

    async def _notice(self) -> None:
        while True:
            await self._changes.wait()
            self._mark_changed(self._changes.take())

    async def _copy(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._hurry.clear()
            self._rounds += 1
            self._copying, self._dirty = self._dirty, set()
            done = await self._round(self._copying, DEADLINE_S)
            for container_id in self._copying & done.copied.keys() & self._followed.keys():
                if done.copied[container_id].is_done:
                    self._followed[container_id].complete_in = self._rounds
            self._copying = set()
            self._copied.set()
            self._copied.clear()
            await self._pause(done)

    async def _pause(self, done: _Round) -> None:
        """The time for others after a round; shorter, if someone waits for the next one."""
        if not done.is_done:
            pause_s = PAUSE_S
        elif self._free.take(asyncio.get_running_loop().time()):
            return
        else:
            least, most = REST_S
            pause_s = min(max(REST_FACTOR * done.took_s, least), most)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._hurry.wait()

    def _mark_changed(self, ids: set[str]) -> None:
        """Have these containers copied, which have written: without a pause, if one of them has a round of its own left."""
        now = asyncio.get_running_loop().time()
        free = [each for each in ids & self._followed.keys() if self._followed[each].free.take(now)]
        if free:
            self._hurry.set()
        self._mark(*ids)

    def _mark(self, *ids: str) -> None:
        """Have these containers copied in the next round."""
        if ids:
            self._dirty.update(ids)
            self._wake.set()

    def _retry(self, container_id: str) -> None:
        self._later.discard(container_id)
        self._mark(container_id)

    async def _round(self, ids: Iterable[str], deadline_s: float) -> _Round:
        """Copy for these containers, and note the outcome. Those that are not done are marked, at once or after a pause."""
        followed: dict[str, _Followed] = {}
        done = _Round()
        try:
            async with self._lane:
                followed = {each: self._followed[each] for each in ids if each in self._followed}
                work = partial(_copy_round, list(followed.values()), self._changes, self._clock, self._hurry.is_set)
                outcome = await self._flight.run_next(_KEY, work, deadline_s)
            if isinstance(outcome, Failed):
                raise outcome.error
            if isinstance(outcome, Done) or deadline_s >= DEADLINE_S:
                self._note_hung(not isinstance(outcome, Done))
            done = outcome.value if isinstance(outcome, Done) else done
        finally:
            for container_id, each in followed.items():
                self._note(container_id, each, done.copied.get(container_id))
        return done

    def _note(self, container_id: str, followed: _Followed, copied: _Copied | None) -> None:
        if self._followed.get(container_id) is not followed:
            return
        if copied is not None:
            self._report(container_id, followed, copied.error)
        if copied is None or copied.error is not None:
            if container_id not in self._later:
                self._later.add(container_id)
                asyncio.get_running_loop().call_later(RETRY_S, self._retry, container_id)
        elif not copied.is_done:
            self._mark(container_id)

    def _report(self, container_id: str, followed: _Followed, error: HostError | None) -> None:
        """Log what is new, each problem once."""
        copier, reported = followed.copier, followed.reported
        if error is not None and "error" not in reported:
            reported.add("error")
            log.warning("a container's log cannot be copied; trying again", containerID=container_id, error=str(error))
        elif error is None and "error" in reported:
            reported.discard("error")
            log.info("the container's log is copied again", containerID=container_id)
        if copier.skipped and "skipped" not in reported:
            reported.add("skipped")
            log.warning("Docker's log has entries that cannot be read; they are left out", containerID=container_id)
        if copier.lost and "lost" not in reported:
            reported.add("lost")
            log.warning(
                "Docker's log was removed or cut off before it was copied; lines may be missing",
                containerID=container_id,
            )

    def _note_hung(self, is_hung: bool) -> None:
        if is_hung and not self._is_hung:
            log.warning("the disk of the containers' logs does not answer; trying again")
        elif self._is_hung and not is_hung:
            log.info("the disk of the containers' logs answers again")
        self._is_hung = is_hung

    def _drop(self, container_id: str) -> None:
        self._followed.pop(container_id, None)
        self._changes.forget(container_id)

    async def _call(self, op: str, path: str, work: Callable[[], T]) -> T:
        """Do work on files between two rounds. Raises HostError, also if the disk does not answer."""
        async with self._lane:
            outcome = await self._flight.run_next(_KEY, work, DEADLINE_S)
        if isinstance(outcome, Failed):
            raise outcome.error
        if not isinstance(outcome, Done):
            raise HostError(op, path, "ETIMEDOUT", "the disk does not answer")
        return outcome.value


def _copy_round(
    followed: list[_Followed], changes: Changes, clock: Callable[[], float], is_awaited: Callable[[], bool]
) -> _Round:
    """Copy one slice of each after the other, until all is copied, ROUND_S has passed or the next round is awaited.

    Those that are done are watched at once: what they write meanwhile may end the round.
    """
    began = clock()
    copied: dict[str, _Copied] = {}
    waiting = followed
    while waiting:
        copied |= {each.copier.container_id: _copy_slice(each, changes) for each in waiting}
        waiting = [each for each in waiting if copied[each.copier.container_id] == _UNFINISHED]
        if clock() - began >= ROUND_S or is_awaited():
            break
    return _Round(copied, clock() - began)


def _copy_slice(followed: _Followed, changes: Changes) -> _Copied:
    try:
        if not followed.copier.step():
            return _UNFINISHED
        try:
            changes.watch(followed.copier.container_id, followed.folder)
        except HostError as error:
            if error.is_not_found:  # Docker has removed it
                return _Copied(is_done=True)
            raise
        return _Copied(is_done=followed.copier.step())  # what was written before the watch has no event
    except HostError as error:
        return _Copied(error=error)


def _close_all(copiers: list[Copier]) -> None:
    for copier in copiers:
        with suppress(HostError):
            copier.close()
