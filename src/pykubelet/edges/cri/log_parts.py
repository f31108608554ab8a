"""Finds the files (parts) of a rotated log in the order in which they were written.

Each rotation renames `0.log` to `0.log.<time>`; the next rotation compresses that file to `0.log.<time>.gz`, with a
temporary file `....tmp`. So the names sort by time. Blocks; call it through `base.kit.flight`.
"""

from __future__ import annotations

import errno
import os
import zlib
from typing import TYPE_CHECKING

from pykubelet.base.kit.values import Value
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind

if TYPE_CHECKING:
    import gzip

_GZIP, _TEMPORARY = ".gz", ".tmp"
#: The first bytes that identify a part among the others: its first line begins with a time stamp in nanoseconds.
_HEAD = 256
_TRIES = 20


class OpenPart(Value):
    """An open file. `name`: that of the rotated part, without `.gz`; "" for the log itself."""

    fd: int
    name: str
    is_gzip: bool


def open_after(log: Beneath, fd: int, name: str, left: str) -> OpenPart | None:
    """Open the part of the log that follows the one that `fd` reads; None if there is none yet.

    `name`: the name of the part when `fd` was opened; "" if it was the log itself. `left`: the name to which the log was
    renamed and which its writer has closed; "" if not known. If `fd` reads another part, its writer may not have closed that
    one yet, and the result is None.
    """
    for _ in range(_TRIES):  # the log may be rotated between two listings; a rotation takes longer than a listing
        parts = _parts(log)
        own = name or _own_name(log, fd, parts)
        if own is None or (left and own and own != left):
            return None
        later = [part for part in sorted(parts) if part > own] if own else _not_older(log, fd, parts)
        try:
            if later:
                file = parts[later[0]]
                return OpenPart(_open(log.parent / file), later[0], file.endswith(_GZIP))
            opened = _open(log)
        except FileNotFoundError:
            if later:
                continue  # it was compressed in the meantime
            return None
        if _parts(log).keys() == parts.keys():
            return OpenPart(opened, "", is_gzip=False)
        os.close(opened)
    return None


def gzip_reader(fd: int) -> gzip.GzipFile:
    """A reader of a compressed part. Closing it leaves the descriptor open."""
    import gzip  # needed only to follow a log that was rotated

    return gzip.GzipFile(fileobj=open(fd, "rb", closefd=False))


def read_gzip(source: gzip.GzipFile, most: int) -> bytes:
    """Read at most `most` bytes; no bytes at the end or if the file is damaged."""
    try:
        return source.read(most)
    except (EOFError, zlib.error, OSError):  # gzip raises an OSError for a file that is not a gzip file
        return b""


def _parts(log: Beneath) -> dict[str, str]:
    """The file name of each rotated part, by its name without `.gz`; the plain file if both exist."""
    entries = beneath.list_dir(log.parent)
    files = [e.name for e in entries if e.name.startswith(f"{log.name}.") and e.kind is FileKind.FILE]
    whole = [file for file in files if not file.endswith(_TEMPORARY)]
    return {file.removesuffix(_GZIP): file for file in sorted(whole, key=lambda file: not file.endswith(_GZIP))}


def _own_name(log: Beneath, fd: int, parts: dict[str, str]) -> str | None:
    """The name of the part that `fd` reads; "" if it was removed, None if it still is the log itself."""
    own = os.fstat(fd)
    for place in (log, *(log.parent / file for file in parts.values())):
        found = beneath.stat_file(place)
        if found is not None and (found.device, found.inode) == (own.st_dev, own.st_ino):
            return None if place == log else place.name
    head = os.pread(fd, _HEAD, 0)
    for part, file in parts.items():
        if file.endswith(_GZIP) and head and _gzip_head(log.parent / file) == head:
            return part
    return ""


def _gzip_head(part: Beneath) -> bytes:
    try:
        fd = _open(part)
    except FileNotFoundError:
        return b""
    try:
        with gzip_reader(fd) as source:
            return read_gzip(source, _HEAD)
    finally:
        os.close(fd)


def _not_older(log: Beneath, fd: int, parts: dict[str, str]) -> list[str]:
    """The parts whose last write is not older than the last one to `fd`. For a part that was removed itself."""
    since = os.fstat(fd).st_mtime_ns
    found = ((part, beneath.stat_file(log.parent / file)) for part, file in sorted(parts.items()))
    return [part for part, status in found if status is not None and status.mtime_ns >= since]


def _open(part: Beneath) -> int:
    """Open a regular file. Raises FileNotFoundError also for other kinds of files."""
    try:
        return beneath.open_regular(part)
    except HostError as error:
        raise FileNotFoundError(errno.ENOENT, error.message, part) from error
