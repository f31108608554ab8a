"""Reads Docker's json-file log of one container, across its rotations. Blocks.

Docker closes `<id>-json.log`, renames `.1` to `.2` and so on, the log itself to `.1`, and creates a new one; it may compress `.1` later,
and keeps a number of files. So a file is complete as soon as another one has the log's name. A file is recognized by its first bytes,
because they contain times: its name and its inode change.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pykubelet.base.model.paths import Beneath, log_file
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.errors import HostError, Translating
from pykubelet.edges.host.fs.files import FileKind

if TYPE_CHECKING:
    import gzip

#: Bytes of entries that are read at once.
SLICE = 64 << 10
#: A longer entry is not Docker's, which cuts lines at 16 KiB (96 KiB, if each byte is escaped).
MAX_ENTRY = 256 << 10
#: Bytes by which a file is recognized.
HEAD = 256
#: How often the files are listed again because Docker renames them at the same time.
_TRIES = 20
_NUMBER = re.compile(r"\.([1-9][0-9]{0,5})(\.gz)?")


class _Part(Protocol):
    """An open file of the log."""

    fd: int

    def read(self, at: int, most: int) -> bytes:
        """At most `most` bytes from the offset `at` on."""

    def head(self) -> bytes:
        """The first bytes, HEAD at most."""


class _Plain:
    def __init__(self, fd: int) -> None:
        self.fd = fd

    def read(self, at: int, most: int) -> bytes:
        return os.pread(self.fd, most, at)

    def head(self) -> bytes:
        return os.pread(self.fd, HEAD, 0)


class _Compressed:
    """A file that Docker has compressed. It is read forward only."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._head = _unpack(_gzip(fd), HEAD)
        os.lseek(fd, 0, os.SEEK_SET)
        self._source = _gzip(fd)
        self._at, self._data = 0, b""

    def read(self, at: int, most: int) -> bytes:
        while self._at + len(self._data) < at:
            self._at += len(self._data)
            self._data = _unpack(self._source, min(SLICE, at - self._at))
            if not self._data:
                return b""
        self._data, self._at = self._data[at - self._at :], at
        self._data += _unpack(self._source, most - len(self._data))
        return self._data[:most]

    def head(self) -> bytes:
        return self._head


def _gzip(fd: int) -> gzip.GzipFile:
    import gzip  # needed only for the containers of users who compress their logs

    return gzip.GzipFile(fileobj=open(fd, "rb", closefd=False))


def _unpack(source: gzip.GzipFile, most: int) -> bytes:
    """The next bytes; none at the end, or where the file is damaged."""
    try:
        return source.read(most) if most > 0 else b""
    except (EOFError, zlib.error, OSError):
        return b""


class DockerLog:
    """The log at `path`, read in order from `offset` of one of its files on.

    `is_at_end`: what `entries` has read last was the end of the file. `lost`: lines were or may be missing.

    All methods raise HostError.
    """

    def __init__(self, path: str) -> None:
        self._path = log_file(path)
        self._part: _Part | None = None
        self._before = (b"", 0)
        self.offset = 0
        self.is_at_end = False
        self.lost = False

    @property
    def is_open(self) -> bool:
        """Whether a file is open."""
        return self._part is not None

    def open(self, head: bytes, offset: int) -> None:
        """Open the file that begins with `head` at `offset`, or else the oldest one at its beginning. HostError: `is_not_found`."""
        self._before = (head, offset)
        with Translating("open", self._path):
            files = self._files()
            for number in sorted(files) if head else ():
                with suppress(FileNotFoundError):
                    part = _open(files[number])
                    if part.head().startswith(head):
                        size = os.fstat(part.fd).st_size
                        self._take(part, min(offset, size) if isinstance(part, _Plain) else offset)
                        return
                    os.close(part.fd)
            self.lost = self.lost or bool(head)
            self._take(_open(files[max(files)] if files else self._path), 0)

    def place(self) -> tuple[bytes, int]:
        """What `open` needs to go on here. As long as nothing of a file was read, that is the end of the file before it."""
        if self._part is None or not self.offset:
            return self._before
        with Translating("read", self._path):
            return self._part.head()[: self.offset], self.offset

    def entries(self) -> bytes:
        """The next whole entries, about SLICE bytes; none at the end. Of an entry without an end, the first MAX_ENTRY bytes."""
        part = self._part
        if part is None:
            return b""
        with Translating("read", self._path):
            for most in (SLICE, MAX_ENTRY):
                data = part.read(self.offset, most)
                end = data.rfind(b"\n") + 1
                self.is_at_end = len(data) < most
                if end or self.is_at_end:
                    break
            if not data and self.offset and isinstance(part, _Plain) and os.fstat(part.fd).st_size < self.offset:
                self.offset, self.lost = 0, True  # an administrator has emptied it
                return self.entries()
        return data[:end] if end or len(data) < MAX_ENTRY else data

    def advance(self, number: int) -> None:
        """Go on behind so many bytes."""
        self.offset += number

    def is_complete(self) -> bool:
        """Whether Docker writes to another file by now. What it wrote before is there to be read."""
        if self._part is None:
            return False
        with Translating("stat", self._path):
            try:
                newest = os.stat(self._path)
            except FileNotFoundError:
                return False
            return not os.path.samestat(newest, os.fstat(self._part.fd))

    def go_on(self) -> bool:
        """Open the next file, when this one was read to its end. Returns whether there was one. Half an entry at the end is left out."""
        if self._part is None:
            return False
        with Translating("open", self._path):
            self.lost = self.lost or bool(self._part.read(self.offset, 1))
            for _ in range(_TRIES):
                files = self._files()
                own = self._number(files)
                later = [number for number in files if own is None or number < own]
                if not later:
                    return False
                with suppress(FileNotFoundError):
                    part = _open(files[max(later)])
                    if own is None or self._number(self._files()) == own:
                        self.lost = self.lost or own is None
                        self._before = self.place()
                        self._take(part, 0)
                        return True
                    os.close(part.fd)
        return False

    def close(self) -> None:
        """Close the file."""
        if self._part is not None:
            os.close(self._part.fd)
            self._part = None

    def _take(self, part: _Part, offset: int) -> None:
        self.close()
        self._part, self.offset = part, offset

    def _files(self) -> dict[int, Beneath]:
        """The files of the log by age, the newest is 0; the plain file, if it is just being compressed."""
        found: dict[int, Beneath] = {}
        for entry in beneath.list_entries(self._path.parent):
            suffix = entry.name.removeprefix(self._path.name)
            match = _NUMBER.fullmatch(suffix)
            if entry.kind is FileKind.FILE and entry.name.startswith(self._path.name) and (match or not suffix):
                number = int(match[1]) if match else 0
                if number not in found or not entry.name.endswith(".gz"):
                    found[number] = self._path.parent / entry.name
        return found

    def _number(self, files: dict[int, Beneath]) -> int | None:
        """The age of the open file; None if it was removed."""
        assert self._part is not None
        own = os.fstat(self._part.fd)
        for number, file in files.items():
            there = beneath.stat_file(file)
            if there is not None and (there.inode, there.device) == (own.st_ino, own.st_dev):
                return number
        head = self._part.head()
        for number, file in files.items():
            if file.endswith(".gz"):
                with suppress(FileNotFoundError):
                    part = _open(file)
                    os.close(part.fd)
                    if head and part.head() == head:
                        return number
        return None


def _open(file: Beneath) -> _Part:
    """Open a file of the log. Raises FileNotFoundError if it was renamed meanwhile."""
    try:
        fd = beneath.open_regular(file)
    except HostError as error:
        if error.is_not_found:
            raise FileNotFoundError(errno.ENOENT, error.message, file) from error
        raise
    return _Compressed(fd) if file.endswith(".gz") else _Plain(fd)
