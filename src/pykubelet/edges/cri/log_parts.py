"""Finds the files (parts) of a rotated log in the order in which they were written.

Each rotation renames `0.log` to `0.log.<time>`; the next rotation compresses that file to `0.log.<time>.gz`, with a
temporary file `....tmp`. So the names sort by time. Blocks; call it through `base.kit.flight`.
"""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from typing import TYPE_CHECKING

from pykubelet.base.kit.values import Value

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


def open_after(path: str, fd: int, name: str, left: str) -> OpenPart | None:
    """Open the part of the log at `path` that follows the one that `fd` reads; None if there is none yet.

    `name`: the name of the part when `fd` was opened; "" if it was the log itself. `left`: the name to which the log was
    renamed and which its writer has closed; "" if not known. If `fd` reads another part, its writer may not have closed that
    one yet, and the result is None.
    """
    for _ in range(_TRIES):  # the log may be rotated between two listings; a rotation takes longer than a listing
        parts = _parts(path)
        own = name or _own_name(path, fd, parts)
        if own is None or (left and own and own != left):
            return None
        later = [part for part in sorted(parts) if part > own] if own else _not_older(path, fd, parts)
        try:
            if later:
                file = parts[later[0]]
                return OpenPart(_open(f"{os.path.dirname(path)}/{file}"), later[0], file.endswith(_GZIP))
            opened = _open(path)
        except FileNotFoundError:
            if later:
                continue  # it was compressed in the meantime
            return None
        if _parts(path).keys() == parts.keys():
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


def _parts(path: str) -> dict[str, str]:
    """The file name of each rotated part, by its name without `.gz`; the plain file if both exist."""
    folder, name = os.path.split(path)
    with os.scandir(folder) as entries:
        files = [e.name for e in entries if e.name.startswith(f"{name}.") and e.is_file(follow_symlinks=False)]
    whole = [file for file in files if not file.endswith(_TEMPORARY)]
    return {file.removesuffix(_GZIP): file for file in sorted(whole, key=lambda file: not file.endswith(_GZIP))}


def _own_name(path: str, fd: int, parts: dict[str, str]) -> str | None:
    """The name of the part that `fd` reads; "" if it was removed, None if it still is the log itself."""
    folder = os.path.dirname(path)
    found = os.fstat(fd)
    for file in (path, *(f"{folder}/{part}" for part in parts.values())):
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(file, follow_symlinks=False), found):
                return None if file == path else os.path.basename(file)
    head = os.pread(fd, _HEAD, 0)
    for part, file in parts.items():
        if file.endswith(_GZIP) and head and _gzip_head(f"{folder}/{file}") == head:
            return part
    return ""


def _gzip_head(path: str) -> bytes:
    try:
        fd = _open(path)
    except FileNotFoundError:
        return b""
    try:
        with gzip_reader(fd) as source:
            return read_gzip(source, _HEAD)
    finally:
        os.close(fd)


def _not_older(path: str, fd: int, parts: dict[str, str]) -> list[str]:
    """The parts whose last write is not older than the last one to `fd`. For a part that was removed itself."""
    since = os.fstat(fd).st_mtime_ns
    folder = os.path.dirname(path)
    later = []
    for part, file in sorted(parts.items()):
        with contextlib.suppress(FileNotFoundError):
            if os.stat(f"{folder}/{file}", follow_symlinks=False).st_mtime_ns >= since:
                later.append(part)
    return later


def _open(path: str) -> int:
    """Open a regular file. Raises FileNotFoundError also for other kinds of files."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise FileNotFoundError(error.errno, os.strerror(error.errno or 0), path) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(0, "not a regular file", path)
    return fd
