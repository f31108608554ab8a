"""Where test runs keep their folders, and what all test beds of a user share: places that no other user can change.

Root's test runs end processes, detach mounts and remove files below these folders. So no link is followed, and nothing is
used or removed that another user may have made, as everybody may in `/tmp`.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import TestbedError

#: Short, since a socket's path has at most 107 bytes. Not `/run`: programs in `/run` cannot be executed on some machines.
ROOTS_OWN = Path("/var/lib/pyk")


def home() -> Path:
    """The directory of this user's test beds, made if it is missing. Raises TestbedError if another user may change it.

    Root's is `ROOTS_OWN`. Others have one in `XDG_RUNTIME_DIR`, or else in the directory for temporary files.
    """
    if os.geteuid() == 0:
        return own_directory(ROOTS_OWN)
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return own_directory(Path(runtime, "pyk") if runtime else Path(tempfile.gettempdir(), f"pyk-{os.geteuid()}"))


def own_directory(path: Path) -> Path:
    """The directory at `path`, made if it is missing. Raises TestbedError if another user may change it."""
    try:
        path.mkdir(mode=0o711)  # containers in user namespaces have to get through
    except FileExistsError:
        pass
    except OSError as error:
        raise TestbedError(f"cannot make {path}: {error.strerror}") from error
    if not is_own_directory(path):
        raise TestbedError(f"{path} must be a directory that only its owner, this user, may change: remove it")
    return path


def is_own_directory(path: Path) -> bool:
    """Whether `path` is a real directory, no link, that belongs to this user and that no other user may change."""
    try:
        found = path.lstat()
    except OSError:
        return False
    is_writable_by_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not is_writable_by_others


def run_folder(purpose: str, pid: int = 0) -> Path:
    """The folder of a test run, which `runs` finds: of this process, or of process `pid`. It is not made."""
    return home() / f"{purpose}-{pid or os.getpid()}"


def runs(place: Path) -> Iterator[tuple[Path, int]]:
    """The folders of test runs in `place`, with the process that each is of. What another user may change is left out."""
    for path in sorted(place.iterdir()):
        purpose, _, pid = path.name.rpartition("-")
        if purpose and pid.isascii() and pid.isdigit() and len(pid) < 10 and is_own_directory(path):
            yield path, int(pid)
