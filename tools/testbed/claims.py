"""Ports, subnets and names of test beds: each is given to one holder at a time, also while what uses it is down.

A claim is held by a folder, for as long as that exists, or by a process, for as long as that lives. All claims of a user
are one JSON file in `places.home()`, changed under a lock, so that any number of test beds may start at the same moment.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed import places


def this_process() -> str:
    """The holder of what is needed for as long as this process lives."""
    return _process(os.getpid())


def folder(path: Path) -> str:
    """The holder of what is needed for as long as the folder exists."""
    return f"folder {path.resolve()}"


def claim(kind: str, candidates: Iterable[str], holder: str, usable: Callable[[str], bool] | None = None) -> str | None:
    """The first candidate that no other holder has and that is `usable`; None when there is none.

    The holder keeps it: its next claim of the same kind gets another value. `hold` is for using the same one again.
    """
    with _table() as claims:
        for candidate in candidates:
            key = f"{kind} {candidate}"
            if key not in claims and (usable is None or usable(candidate)):
                claims[key] = holder
                return candidate
    return None


def hold(kind: str, value: str, holder: str) -> str | None:
    """Claim exactly this value, again if need be; returns another holder that has it, or None when it is ours."""
    with _table() as claims:
        other = claims.setdefault(f"{kind} {value}", holder)
        return None if other == holder else other


@contextmanager
def _table() -> Iterator[dict[str, str]]:
    """The claims of holders that are still there; what the block makes of them is written back."""
    place = places.home()
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = place / "claims.json"
        claims = {key: holder for key, holder in _read(path).items() if _is_there(holder)}
        yield claims
        part = path.with_suffix(".part")
        part.write_text(json.dumps(claims, indent=0))
        part.replace(path)


def _read(path: Path) -> dict[str, str]:
    try:
        return {str(key): str(holder) for key, holder in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError):  # absent, or cut short by a full disk
        return {}


def _is_there(holder: str) -> bool:
    kind, _, rest = holder.partition(" ")
    if kind == "folder":
        return Path(rest).is_dir()
    return _process(int(rest.split(" ")[0])) == holder


def _process(pid: int) -> str:
    """Named with the time it began, since process ids are used again."""
    try:
        began = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except OSError:
        began = "gone"
    return f"process {pid} {began}"
