"""Copies the log of one container, and goes on after a restart where it was. Blocks.

No line is lost or written twice, wherever the process is killed: the saved position is older than what was written, never newer. What the
CRI log has behind it must be what the entries behind it give, and is skipped; a line that was cut off is removed. If it is something
else, nothing of it is touched. The position is saved before another file is read or written, so that all behind it is in one file.
"""

from __future__ import annotations

import io

from pykubelet.edges.host.fs.errors import HostError
from pykubelet_cri_docker.logs.cri_log import CriLog, open_log
from pykubelet_cri_docker.logs.docker_log import DockerLog
from pykubelet_cri_docker.logs.entries import render
from pykubelet_cri_docker.logs.positions import Position, Positions

#: Bytes of lines after which the position is saved: a restart compares as many, which takes some milliseconds.
SAVE_BYTES = 1 << 20


class Copier:
    """Copies Docker's log at `docker_path` to the CRI log at `cri_path`. All methods but the properties raise HostError.

    `skipped`: the number of entries that cannot be read.
    """

    def __init__(self, container_id: str, docker_path: str, cri_path: str, positions: Positions) -> None:
        self.container_id = container_id
        self.skipped = 0
        self._docker = DockerLog(docker_path)
        self._path = cri_path
        self._cri: CriLog | None = None
        self._start = Position()
        self._positions = positions
        self._unsaved = 0

    @property
    def lost(self) -> bool:
        """Whether lines are or may be missing, because Docker's files were removed or cut off before they were read."""
        return self._docker.lost

    def step(self) -> bool:
        """Copy one slice. Returns whether all is copied that Docker has written until now."""
        cri = self._opened()
        is_complete = self._docker.is_complete()
        entries = self._docker.entries()
        if entries:
            lines = render(entries)
            cri.write(lines.text)
            self._docker.advance(len(entries))
            self.skipped += lines.skipped
            self._unsaved += len(lines.text)
            if self._unsaved >= SAVE_BYTES:
                self._save(cri)
            return self._docker.is_at_end and not is_complete
        if not is_complete:
            return True
        self._save(cri)
        return not self._docker.go_on()

    def reopen(self) -> None:
        """Write to the file that is at the path, which is created if it is missing. If this fails, the old file is still written to."""
        old = self._opened()
        old.settle()
        new = open_log(self._path)
        try:
            if new.inode == old.inode:
                new.close()
                return
            if self._docker.is_open:
                self._save(new)
        except HostError:
            new.close()
            raise
        self._cri = new
        old.close()

    def close(self) -> None:
        """Save the position and close the files. A further step opens them again."""
        try:
            if self._cri is not None and self._docker.is_open:
                self._save(self._cri)
        finally:
            self._docker.close()
            cri, self._cri = self._cri, None
            if cri is not None:
                cri.close()

    def _opened(self) -> CriLog:
        """Open what is not open yet. Docker's log may be missing until the container starts."""
        if self._cri is None:
            self._start = self._positions.load(self.container_id) or Position()
            self._cri = open_log(self._path, self._start.inode)
        if not self._docker.is_open:
            try:
                self._find_place(self._cri)
            except HostError:
                self._docker.close()
                raise
        return self._cri

    def _find_place(self, cri: CriLog) -> None:
        """Open Docker's log behind the entries that were copied, if it is there, and save the position."""
        try:
            self._docker.open(self._start.head, self._start.offset)
        except HostError as error:
            if error.is_not_found:
                return
            raise
        if self._start.inode in (0, cri.inode):
            self._skip_copied(cri, self._start.size)
        if cri.size and cri.read(cri.size - 1, 1) != b"\n":
            cri.write(b"\n")
        self._save(cri)

    def _skip_copied(self, cri: CriLog, at: int) -> None:
        """Go on behind the entries of which the CRI log has the lines from the offset `at` on."""
        while at < cri.size:
            is_complete = self._docker.is_complete()
            entries = self._docker.entries()
            if not entries and not (is_complete and self._docker.go_on()):
                return
            for entry in io.BytesIO(entries):
                text = render(entry).text
                there = cri.read(at, len(text))
                if there != text:
                    if text.startswith(there):
                        cri.cut(at)
                    return
                self._docker.advance(len(entry))
                at += len(text)

    def _save(self, cri: CriLog) -> None:
        head, offset = self._docker.place()
        self._positions.save(self.container_id, Position(head, offset, cri.inode, cri.size))
        self._unsaved = 0
