"""The CRI log file of one container, to which lines are appended. Blocks."""

from __future__ import annotations

import os
import stat

from pykubelet.base.model.paths import Beneath, log_file
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.errors import HostError, Translating
from pykubelet.edges.host.fs.files import FileKind

#: As containerd creates it.
MODE = 0o640


class CriLog:
    """An open log. `inode`: the file. `size`: its bytes, without those of a write that failed. All methods raise HostError."""

    def __init__(self, place: Beneath) -> None:
        """Open the file, which is created if it is missing. The directory must exist. A link is not followed."""
        self._place = place
        beneath.create_file(place, MODE)
        with beneath.opened(place) as found, Translating("open", place):
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise HostError("open", place, "EINVAL", "not a regular file")
            self._fd = os.open(f"/proc/self/fd/{found}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            status = os.fstat(self._fd)
        self.inode, self.size = status.st_ino, status.st_size
        self._is_torn = False

    def write(self, text: bytes) -> None:
        """Append lines: all of them, or none if it fails."""
        self.settle()
        with Translating("write", self._place):
            self._is_torn = True
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        self._is_torn = False
        self.size += len(text)

    def settle(self) -> None:
        """Remove what a write has left that failed."""
        if self._is_torn:
            self.cut(self.size)
            self._is_torn = False

    def cut(self, size: int) -> None:
        """Remove what is behind the first `size` bytes."""
        with Translating("truncate", self._place):
            os.ftruncate(self._fd, size)
        self.size = size

    def read(self, at: int, most: int) -> bytes:
        """At most `most` bytes from the offset `at` on."""
        with Translating("read", self._place):
            return os.pread(self._fd, most, at)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def open_log(path: str, inode: int = 0) -> CriLog:
    """Open the log at a path of the kubelet, or the file beside it that was the log and has this inode: the kubelet has renamed it."""
    place = log_file(path)
    for entry in beneath.list_entries(place.parent) if inode else ():
        if entry.kind is FileKind.FILE and entry.name.startswith(place.name):
            found = beneath.stat_file(place.parent / entry.name)
            if found is not None and found.inode == inode:
                return CriLog(place.parent / entry.name)
    return CriLog(place)
