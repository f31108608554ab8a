"""What was told of each pod, kept over restarts of the agent.

Owns: a journal of statuses, one line for each that changed, written within a twentieth of a second and not forced to the
disk; and its rewriting when most of it is out of date. After a restart they are told again until the runtime has been
looked at, and then are what new ones follow on from: a start time or the time of a transition does not change because
the agent was away, a container that vanished meanwhile is noticed, and what had ended stays ended. A line that was cut
or damaged costs that line; losing the file loses no more than the above.

A line: CRC-32 in hexadecimal, a space, a JSON array of UID and status (null: the pod is gone).
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Mapping

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.flight import Done, Failed, Flight
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.host.errors import HostError
from pykubelet.edges.host.files import append, make_dirs, read_bytes, write_atomic

log = Log("status")
MODE = 0o600
LIMIT_BYTES = 64 << 20
REWRITE_BYTES = 512 << 10
SAVE_DEADLINE_S = 10.0
SETTLE_S = 0.05
LOCK_DEADLINE_S = 1.0
Pods = Mapping[PodUID, PodStatus]


def line_of(uid: PodUID, status: PodStatus | None) -> bytes:
    body = encode((uid, status))
    return b"%08x %s\n" % (zlib.crc32(body), body)


def read_line(line: bytes) -> tuple[PodUID, PodStatus | None]:
    """DecodeError when the line is not whole."""
    check, _, body = line.partition(b" ")
    if check != b"%08x" % zlib.crc32(body):
        raise DecodeError("", "the checksum does not match")
    return decode(tuple[PodUID, PodStatus | None], body)


class StatusMemory:
    """The journal at `path`, in a directory that exists or can be made. `rewrite_bytes`: shorter ones are let grow."""

    def __init__(
        self, path: str, flight: Flight, rewrite_bytes: int = REWRITE_BYTES, settle_s: float = SETTLE_S
    ) -> None:
        self._path = path
        self._flight = flight
        self._rewrite_bytes = rewrite_bytes
        self._settle_s = settle_s
        self._saved: Pods = {}
        self._size = 0
        self._whole_size = 0
        self._must_rewrite = True
        self._problem = ""
        self._lock = threading.Lock()
        self._orders = 0
        self._done = 0

    def load(self) -> dict[PodUID, PodStatus]:
        """What was told before; empty when there is nothing or nothing that can be used. Never raises."""
        try:
            data = read_bytes(self._path, LIMIT_BYTES)
        except HostError as error:
            if not error.is_not_found:
                log.warning("the statuses of before cannot be read", path=self._path, error=error)
            return {}
        found: dict[PodUID, PodStatus] = {}
        damaged = 0
        for line in data.splitlines():
            try:
                uid, status = read_line(line)
            except DecodeError:
                damaged += 1
                continue
            if status is not None:
                found[uid] = status
            else:
                found.pop(uid, None)
        if damaged:
            log.warning("a part of the statuses of before cannot be used", path=self._path, lines=damaged)
        self._saved = dict(found)
        self._size = len(data)
        self._must_rewrite = bool(damaged) or not data.endswith(b"\n")
        return found

    async def follow(self, statuses: Cell[Statuses]) -> None:
        """Keep the journal up with the cell. Never returns; what is left is written when it is cancelled."""
        try:
            async for _ in statuses.changes():
                # a pod's changes come in bursts: one write for each burst
                await asyncio.sleep(self._settle_s)
                await self._save(statuses.get().pods)
        finally:
            told = statuses.get()
            if told.pods is not self._saved and (told.pods or self._saved):
                self._orders += 1
                self._note(self._write(told.pods, self._orders))

    async def _save(self, pods: Pods) -> None:
        if pods is self._saved or (not pods and not self._saved):
            return
        self._orders += 1
        order = self._orders
        outcome = await self._flight.run(f"save:{self._path}", lambda: self._write(pods, order), SAVE_DEADLINE_S)
        match outcome:
            case Done(problem):
                self._note(problem)
            case Failed(error):
                raise error
            case _:
                self._note("no answer in time")

    def _write(self, pods: Pods, order: int) -> str:
        """Blocks. What is wrong, or an empty string. A write that comes after a later one is left out."""
        if not self._lock.acquire(timeout=LOCK_DEADLINE_S):
            return "an earlier write has not ended"
        try:
            if order < self._done:
                return ""
            self._done = order
            return self._write_changes(pods)
        finally:
            self._lock.release()

    def _write_changes(self, pods: Pods) -> str:
        """After an error everything is written again the next time."""
        lines = [line_of(uid, status) for uid, status in pods.items() if self._saved.get(uid) is not status]
        lines += [line_of(uid, None) for uid in self._saved if uid not in pods]
        data = b"".join(lines)
        try:
            if self._must_rewrite or self._size + len(data) > self._rewrite_bytes + 2 * self._whole_size:
                self._rewrite(pods)
            elif data:
                append(self._path, data, MODE)
                self._size += len(data)
        except HostError as error:
            self._must_rewrite = True
            return str(error)
        self._saved = pods
        return ""

    def _rewrite(self, pods: Pods) -> None:
        data = b"".join(line_of(uid, status) for uid, status in pods.items())
        make_dirs(self._path.rpartition("/")[0])
        write_atomic(self._path, data, MODE)
        self._size = self._whole_size = len(data)
        self._must_rewrite = False

    def _note(self, problem: str) -> None:
        if problem and not self._problem:
            log.warning("statuses cannot be kept over a restart", path=self._path, error=problem)
        elif self._problem and not problem:
            log.info("statuses can be kept again", path=self._path)
        self._problem = problem
