"""Converts CPU amounts to what the kernel's scheduler takes: shares, and a quota per period. Pure.

Source: the Kubernetes documentation "Resource Management for Pods and Containers"; the kernel's sched-bwc.
"""

from __future__ import annotations

MIN_SHARES = 2
MAX_SHARES = 262_144
MIN_QUOTA_US = 1000


def cpu_shares(milli: int) -> int:
    """The shares of `milli` thousandths of a CPU, within the kernel's bounds; the lowest for 0."""
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def cpu_quota_us(milli: int, period_us: int) -> int:
    """Microseconds of CPU per period; 0 (unset) if there is no limit."""
    return max(milli * period_us // 1000, MIN_QUOTA_US) if milli else 0
