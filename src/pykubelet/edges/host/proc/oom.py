"""Limits of the agent's own process: its OOM score and its number of open files."""

from __future__ import annotations

import resource

from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError


def in_first_pid_namespace(proc: str = "/proc") -> bool:
    """Whether this process is in the pid namespace of process 1; False if that cannot be read."""
    try:
        first = files.read_link(f"{proc}/1/ns/pid")
        return first is not None and first == files.read_link(f"{proc}/self/ns/pid")
    except HostError:
        return False  # an agent without CAP_SYS_PTRACE may not read it


def write_own_oom_score(score: int, proc: str = "/proc") -> HostError | None:
    """Set oom_score_adj (-1000 to 1000) of this process.

    A refusal is returned, not raised: without CAP_SYS_RESOURCE a score cannot be lowered, but the agent can work.
    """
    try:
        files.write_value(f"{proc}/self/oom_score_adj", str(score))
    except HostError as error:
        return error
    return None


def raise_open_files(limit: int) -> HostError | None:
    """Allow this process `limit` open files, or as many as it may have. A refusal is returned, not raised.

    Without CAP_SYS_RESOURCE the hard limit cannot be raised, and the soft limit, often 1,024, only up to it.
    """
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    except (OSError, ValueError) as error:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and soft < hard < limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        return HostError("setrlimit", "RLIMIT_NOFILE", "EPERM", f"cannot set {limit}, it is {soft}: {error}")
    return None
