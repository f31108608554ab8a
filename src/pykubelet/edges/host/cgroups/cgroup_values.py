"""Limits of cgroups as values, and their conversion between the versions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.kit.values import Value, field

UNLIMITED = -1
_MAX_SHARES = 262144


class CgroupVersion(StrEnum):
    """The cgroup version. `V1` includes the hybrid layout, where version 2 is mounted beside it without controllers."""

    V1 = "1"
    V2 = "2"


class CgroupLimits(Value):
    """The limits to set on a cgroup. None leaves a value as it is; `UNLIMITED` removes the limit.

    `cpu_shares`: 2 to 262144 (converted to a weight on version 2). `cpu_quota_us`: CPU time in each `cpu_period_us`.
    `memory_bytes`. `pids`. `huge_pages`: bytes by page size as the kernel spells it (`2MB`). `unified`: files of
    version 2 by name (`memory.high`), not used on version 1. `cpus`: a list of CPUs as the kernel writes it (`0-3`).
    """

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    huge_pages: Mapping[str, int] = field(default_factory=dict)
    unified: Mapping[str, str] = field(default_factory=dict)
    cpus: str = ""


def shares_to_weight(shares: int) -> int:
    """`cpu.weight` for `cpu.shares`: linear from 2 -> 1 to 262144 -> 10000. 0 means unset and stays 0.

    This is the kubelet's conversion for the cgroups that it creates itself. Runtimes may convert the shares of containers with
    another formula (crun, newer runc); that affects only how the containers of one pod divide its CPU time.
    Source: KEP-2254 (cgroup v2), "Phase 1: Convert from cgroups v1 settings to v2".
    """
    if shares == 0:
        return 0
    if shares >= _MAX_SHARES:
        return 10000
    return 1 + (max(shares, 2) - 2) * 9999 // 262142
