"""What was told of each pod, kept over restarts of the agent.

Owns: a journal of statuses, one line for each that changed, handed to the kernel before anybody is told, so that it
outlives the agent, and not forced to the disk; and its rewriting when most of it is out of date. That a pod is gone is
written with what comes next or at the next full look at the runtime, for nobody asks for it any more. After a restart the
statuses are told again until the runtime has been looked at, and then are what new ones follow on from: a start time or the time
of a transition does not change because the agent was away, a container that vanished meanwhile is noticed, and what had
ended stays ended. A line that was cut or damaged costs that line; losing the file loses no more than the above.

A line: CRC-32 in hexadecimal, a space, a JSON array of UID and status (null: the pod is gone).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.flight import Done, Failed, Flight
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodUID
from pykubelet.edges.host.errors import HostError
from pykubelet.edges.host.files import append, make_dirs, read_bytes, write_atomic

log = Log("status")
MODE = 0o600
LIMIT_BYTES = 64 << 20
REWRITE_BYTES = 512 << 10
#: A disk that needs longer does not hold back the news; a machine that is busy may need much of it for a thread's turn.
SAVE_DEADLINE_S = 1.0
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

    def __init__(self, path: str, flight: Flight, rewrite_bytes: int = REWRITE_BYTES) -> None:
        self._path = path
        self._flight = flight
        self._rewrite_bytes = rewrite_bytes
        self._saved: Pods = {}
        self._size = 0
        self._whole_size = 0
        self._must_rewrite = True
        self._problem = ""

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

    def lacks(self, pods: Pods) -> bool:
        """Whether one of these is not kept as it is. That others are gone is not asked for."""
        return any(self._saved.get(uid) is not status for uid, status in pods.items())

    def is_behind(self, pods: Pods) -> bool:
        """Something of this is still to be kept, or could not be the last time."""
        return bool(self._problem) or len(pods) != len(self._saved)

    async def keep(self, pods: Pods) -> None:
        """Bring the journal up to `pods`. Await it before they are told: then nothing older is told after a restart."""
        if not pods and not self._saved:
            return
        match await self._flight.run(f"save:{self._path}", lambda: self._write_changes(pods), SAVE_DEADLINE_S):
            case Done(problem):
                self._note(problem)
            case Failed(error):
                raise error
            case _:
                self._note("no answer in time")

    def _write_changes(self, pods: Pods) -> str:
        """Blocks. What is wrong, or an empty string; after an error everything is written again the next time."""
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
