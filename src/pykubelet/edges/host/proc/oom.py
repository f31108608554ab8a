"""The agent's own standing with the kernel: its OOM score and how many files it may open."""

from __future__ import annotations

import resource

from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError


def write_own_oom_score(score: int, proc: str = "/proc") -> HostError | None:
    """Set oom_score_adj (-1000 to 1000) of this process. A refusal is returned: without CAP_SYS_RESOURCE a score cannot
    be lowered, and that is no reason to stop."""
    try:
        files.write_value(f"{proc}/self/oom_score_adj", str(score))
    except HostError as error:
        return error
    return None


def raise_open_files(limit: int) -> HostError | None:
    """Allow this process `limit` open files; a refusal is returned."""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    except (OSError, ValueError) as error:
        return HostError("setrlimit", "RLIMIT_NOFILE", "EPERM", f"cannot set {limit}: {error}")
    return None
