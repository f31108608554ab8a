"""Waiting for the end of processes that are no children of this one."""

from __future__ import annotations

import os
import select


def wait_end(pid: int, within_s: float = 30.0) -> None:
    """Block until the process has ended, or has no state but its exit code. Raises AssertionError if it still runs."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], within_s)[0], f"{pid} still runs"
    finally:
        os.close(descriptor)
