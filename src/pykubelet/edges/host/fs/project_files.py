"""The system's list of quota projects: `/etc/projects` (the id of each directory) and `/etc/projid` (names of ids).

Owns: parsing both, and changing them under a lock that other programs honor. Lines of other programs and comments are kept.
Blocks. Source: projects(5), projid(5), flock(2); the ids and names of volumes are the reference's (KEP-1029).
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, Translating, suppress_not_found
from pykubelet.edges.host.fs.files import read_bytes, write_atomic

#: The last 32-bit number is no id: it stands for "no project".
FIRST_ID, LAST_ID = 1_048_577, (1 << 32) - 2
#: The search gives up after this many ids that are not listed but that the file system reports as used.
MAX_SEARCHED = 129
MAX_BYTES = 8 << 20
LOCK_S, _LOCK_PAUSE_S = 3.0, 0.02
_PROJECT = re.compile(r"([0-9]+):(.*)")
_NAME = re.compile(r"([^#][^:]*):([0-9]+)")


class ProjectFiles(Value):
    """The paths of the two files."""

    projects: str = "/etc/projects"
    names: str = "/etc/projid"


class _Lines(Value):
    """The lines of both files, without line ends."""

    projects: tuple[str, ...]
    names: tuple[str, ...]


def _project(line: str) -> tuple[int, str] | None:
    """The id and directory of a line of `/etc/projects`; None for other lines."""
    match = _PROJECT.fullmatch(line)
    number = parse_decimal(match[1], LAST_ID) if match is not None else None
    return None if match is None or number is None else (number, match[2])


def _named(line: str) -> int | None:
    """The id of a line of `/etc/projid`; None for other lines."""
    match = _NAME.fullmatch(line)
    return parse_decimal(match[2], LAST_ID) if match is not None else None


def claim_id(files: ProjectFiles, path: str, is_used: Callable[[int], bool]) -> int:
    """The id of a directory: the listed one, else the first free one, which is then added to the list.

    `is_used`: whether the file system counts any usage for an id. Raises HostError, also if no id is free.
    """
    if "\n" in path:
        raise HostError("list", path, "EINVAL", "a line cannot hold this path")
    with _locked(files) as lines:
        listed = [found for line in lines.projects if (found := _project(line)) is not None]
        for number, directory in listed:
            if directory == path:
                return number
        number = _free_id({id for id, _ in listed} | {id for line in lines.names if (id := _named(line))}, is_used)
        names = (*lines.names, f"volume{number}:{number}")
        _write(files, lines, _Lines((*lines.projects, f"{number}:{path}"), names))
        return number


def _free_id(listed: set[int], is_used: Callable[[int], bool]) -> int:
    number, searched = FIRST_ID, 0
    while searched < MAX_SEARCHED and number <= LAST_ID:
        if number not in listed:
            if not is_used(number):
                return number
            searched += 1
        number += 1
    raise HostError("find a project id", "", "", "cannot find available quota ID")


def release_paths(files: ProjectFiles, is_released: Callable[[str], bool]) -> list[tuple[int, str]]:
    """Remove directories from the list, and ids that no directory has any more. Returns the removed entries.

    Without the files, nothing happens. Only ids from `FIRST_ID` on are considered. The results of `is_released` must not change
    during the call.
    """
    if not any(is_released(path) for number, path in read_projects(files) if number >= FIRST_ID):
        return []
    with _locked(files) as lines:
        gone: list[str] = []
        kept: list[str] = []
        for line in lines.projects:
            found = _project(line)
            (gone if found and found[0] >= FIRST_ID and is_released(found[1]) else kept).append(line)
        taken = [found for line in gone if (found := _project(line)) is not None]
        left = {found[0] for line in kept if (found := _project(line)) is not None}
        unused = {number for number, _ in taken} - left
        names = tuple(line for line in lines.names if _named(line) not in unused)
        _write(files, lines, _Lines(tuple(kept), names))
        return taken


def read_projects(files: ProjectFiles) -> list[tuple[int, str]]:
    """The listed ids and directories; none if the file does not exist."""
    text = b""
    with suppress_not_found:
        text = read_bytes(files.projects, MAX_BYTES)
    return [found for line in _split(text) if (found := _project(line)) is not None]


def _split(data: bytes) -> tuple[str, ...]:
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return tuple(lines[:-1] if lines[-1] == "" else lines)


@contextmanager
def _locked(files: ProjectFiles) -> Iterator[_Lines]:
    """Lock both files until the block ends. Missing files are created."""
    with ExitStack() as open_files:
        found = []
        for path in (files.projects, files.names):
            descriptor = _open_locked(path)
            open_files.callback(os.close, descriptor)
            found.append(_split(read_bytes(path, MAX_BYTES)))
        yield _Lines(found[0], found[1])


def _open_locked(path: str) -> int:
    """Open and lock the file. If another program replaces the file in the meantime, lock the new one instead."""
    deadline = time.monotonic() + LOCK_S
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        with Translating("open", path):
            descriptor = os.open(path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise HostError("lock", path, "EINVAL", "exists but is not a plain file")
            if _try_lock(descriptor, path) and _is_still(descriptor, path):
                return descriptor
        except HostError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise HostError("lock", path, "EAGAIN", f"another program has kept it locked for {LOCK_S:.0f} s")
        time.sleep(_LOCK_PAUSE_S)  # noqa: TID251 - a worker thread


def _try_lock(descriptor: int, path: str) -> bool:
    with Translating("lock", path):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _is_still(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def _write(files: ProjectFiles, before: _Lines, after: _Lines) -> None:
    """Write the changed files. Names come first: an id with a name but no directory is merely not assigned."""
    for path, old, new in (
        (files.names, before.names, after.names),
        (files.projects, before.projects, after.projects),
    ):
        if old != new:
            with Translating("stat", path):
                present = os.stat(path)
            data = "".join(f"{line}\n" for line in new).encode("utf-8", "surrogateescape")
            write_atomic(path, data, stat.S_IMODE(present.st_mode), present.st_uid, present.st_gid)
