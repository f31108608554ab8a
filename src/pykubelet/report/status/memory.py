"""The journal of published statuses, kept over restarts of the agent.

Owns: the journal file. A line is written for each changed status before the status is published, so that it survives the
agent; it is not synced to the disk. When most lines are outdated, the journal is rewritten. The removal of a pod is written
with the next change, or at the next relist of the runtime. After a restart, the statuses are published again until the
runtime has been read, and new statuses are based on them: start times and transition times do not change because the agent
was away, a container that vanished meanwhile is noticed, and a terminated one stays terminated. A damaged line loses only
that status; losing the file loses only these properties.

The first line is `pykubelet-statuses <version>`; the first releases wrote none. A journal of an unknown version is set aside.
Each other line: CRC-32 in hexadecimal, a space, a JSON array of UID and status (null: the pod is gone).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import changed_keys
from pykubelet.base.model.ids import PodUID
from pykubelet.edges.host.fs.checkpoint import set_aside
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import append, make_dirs, read_bytes, write_atomic
from pykubelet.edges.host.fs.kept_state import KeptState

log = Log("status")
MODE = 0o600
VERSION = 1
_HEADER = b"pykubelet-statuses "
LIMIT_BYTES = 64 << 20
REWRITE_BYTES = 512 << 10
#: A status does not wait longer for the disk. On a busy machine, much of this may be the wait for a thread.
SAVE_DEADLINE_S = 1.0
Pods = Mapping[PodUID, PodStatus]


def line_of(uid: PodUID, status: PodStatus | None) -> bytes:
    """One line of the file: CRC-32 of the JSON in hexadecimal, a space, and the JSON of UID and status."""
    body = encode((uid, status))
    return b"%08x %s\n" % (zlib.crc32(body), body)


def read_line(line: bytes) -> tuple[PodUID, PodStatus | None]:
    """Parse one line of the file. DecodeError if it is damaged."""
    check, _, body = line.partition(b" ")
    if check != b"%08x" % zlib.crc32(body):
        raise DecodeError("", "the checksum does not match")
    return decode(tuple[PodUID, PodStatus | None], body)


class StatusMemory:
    """The journal at `path`, in a directory that exists or can be made. `rewrite_bytes`: a shorter journal is not rewritten."""

    def __init__(self, path: str, flight: SingleFlight, rewrite_bytes: int = REWRITE_BYTES) -> None:
        self._path = path
        self._kept = KeptState("the statuses of pods", path, flight, log, SAVE_DEADLINE_S)
        self._rewrite_bytes = rewrite_bytes
        self._saved: Pods = {}
        #: What is saved, and the newest statuses of which nothing but removed pods differs from that.
        self._compared: tuple[Pods, Pods] = (self._saved, self._saved)
        self._size = 0
        self._whole_size = 0
        self._must_rewrite = True

    def load(self) -> dict[PodUID, PodStatus]:
        """Read the statuses of the previous run; empty if there are none that can be used. Never raises."""
        try:
            data = read_bytes(self._path, LIMIT_BYTES)
        except HostError as error:
            if not error.is_not_found:
                log.warning("cannot read the statuses of the previous run", path=self._path, error=error)
            return {}
        found: dict[PodUID, PodStatus] = {}
        damaged = 0
        lines = data.splitlines()
        has_header = bool(lines) and lines[0].startswith(_HEADER)
        written = parse_decimal(lines[0].removeprefix(_HEADER)) if has_header else VERSION
        if written is None:
            damaged += 1
        elif written != VERSION:
            set_aside(self._path, f"written as version {written}, expected {VERSION}", f"version-{written}")
            return {}
        for line in lines[1:] if has_header else lines:
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
            log.warning("a part of the statuses of the previous run cannot be used", path=self._path, lines=damaged)
        self._saved = dict(found)
        self._size = len(data)
        self._must_rewrite = bool(damaged) or not has_header or not data.endswith(b"\n")
        return found

    def lacks(self, pods: Pods) -> bool:
        """True if a status is missing in the journal. Removed pods do not count.

        Compared with the last ones that lacked nothing: the pods of a crowd that ends are looked at once each, not again for each other.
        """
        if self._compared[0] is not self._saved:
            self._compared = self._saved, self._saved
        if any(uid in pods for uid in changed_keys(self._compared[1], pods)):
            return True
        self._compared = self._saved, pods
        return False

    def is_behind(self, pods: Pods) -> bool:
        """True if the last write failed, or removed pods are still in the journal."""
        return self._kept.is_failing or len(pods) != len(self._saved)

    async def keep(self, pods: Pods) -> None:
        """Write changes to the journal. Await this before publishing, so that a restart does not publish older statuses."""
        if not pods and not self._saved:
            return
        await self._kept.write(lambda: self._write_changes(pods))

    def _write_changes(self, pods: Pods) -> None:
        """Write the changes. Blocks. Raises HostError; then the next call writes everything."""
        lines = [line_of(uid, pods.get(uid)) for uid in changed_keys(self._saved, pods)]
        data = b"".join(lines)
        try:
            if self._must_rewrite or self._size + len(data) > self._rewrite_bytes + 2 * self._whole_size:
                self._rewrite(pods)
            elif data:
                append(self._path, data, MODE)
                self._size += len(data)
        except HostError:
            self._must_rewrite = True
            raise
        self._saved = pods

    def _rewrite(self, pods: Pods) -> None:
        data = b"".join([b"%s%d\n" % (_HEADER, VERSION), *(line_of(uid, status) for uid, status in pods.items())])
        make_dirs(self._path.rpartition("/")[0])
        write_atomic(self._path, data, MODE)
        self._size = self._whole_size = len(data)
        self._must_rewrite = False
