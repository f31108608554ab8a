"""The files of a log that is rotated, in the order in which they were written.

A log `0.log` leaves `0.log.<time>` at each rotation, and the next one compresses that to `0.log.<time>.gz` by way of
`....tmp`: names sort by time. Blocks; call it through `base.kit.flight`.
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
#: The first line of a part begins with a time stamp in nanoseconds: so many bytes tell it from the others.
_HEAD = 256
_TRIES = 20


class OpenPart(Value):
    """A file that was opened. `name`: of the rotated part, without `.gz`; "" for the log itself."""

    fd: int
    name: str
    is_gzip: bool


def open_after(path: str, fd: int, name: str, left: str) -> OpenPart | None:
    """The part of the log at `path` that was begun after the one that `fd` reads; None when there is none yet.

    `name`: of the part that `fd` was opened as, "" if it was the log itself. `left`: what the log was renamed to when its
    writer left it, as far as known; where `fd` reads another part it is not yet left, and the answer is None.
    """
    for _ in range(_TRIES):  # the log may be rotated between two looks; that takes longer than a look
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
                continue  # compressed meanwhile
            return None
        if _parts(path).keys() == parts.keys():
            return OpenPart(opened, "", is_gzip=False)
        os.close(opened)
    return None


def gzip_reader(fd: int) -> gzip.GzipFile:
    """Reads what a descriptor of a compressed part holds; closing it leaves the descriptor open."""
    import gzip  # only followed logs that were rotated need it

    return gzip.GzipFile(fileobj=open(fd, "rb", closefd=False))


def read_gzip(source: gzip.GzipFile, most: int) -> bytes:
    """At most so many bytes; nothing at the end, and where the file is damaged."""
    try:
        return source.read(most)
    except (EOFError, zlib.error, OSError):  # gzip's own error of a file that is none is an OSError
        return b""


def _parts(path: str) -> dict[str, str]:
    """By name without `.gz`, the file of each rotated part; the plain one while there are both."""
    folder, name = os.path.split(path)
    with os.scandir(folder) as entries:
        files = [e.name for e in entries if e.name.startswith(f"{name}.") and e.is_file(follow_symlinks=False)]
    whole = [file for file in files if not file.endswith(_TEMPORARY)]
    return {file.removesuffix(_GZIP): file for file in sorted(whole, key=lambda file: not file.endswith(_GZIP))}


def _own_name(path: str, fd: int, parts: dict[str, str]) -> str | None:
    """The name of the part that `fd` reads: "" when it is gone, None when it still is the log itself."""
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
    """The parts that were written to after the last write to `fd`, whose own part was removed."""
    since = os.fstat(fd).st_mtime_ns
    folder = os.path.dirname(path)
    later = []
    for part, file in sorted(parts.items()):
        with contextlib.suppress(FileNotFoundError):
            if os.stat(f"{folder}/{file}", follow_symlinks=False).st_mtime_ns >= since:
                later.append(part)
    return later


def _open(path: str) -> int:
    """A descriptor of a regular file. FileNotFoundError also for what is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise FileNotFoundError(error.errno, os.strerror(error.errno or 0), path) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(0, "not a regular file", path)
    return fd
