"""Limits of control groups as values, and the arithmetic between the versions. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.kit.values import Value, field

UNLIMITED = -1


class CgroupVersion(StrEnum):
    """`V1` includes the hybrid layout, where version 2 is mounted beside it without controllers."""

    V1 = "1"
    V2 = "2"


class CgroupLimits(Value):
    """What to set on a group. None leaves a value alone, `UNLIMITED` lifts it.

    `cpu_shares`: 2 to 262144 (turned into a weight on version 2). `cpu_quota_us` in each `cpu_period_us`.
    `memory_bytes`. `pids`. `huge_pages`: bytes by page size as the kernel spells it (`2MB`). `unified`: files of
    version 2 by name (`memory.high`), not used on version 1.
    """

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    huge_pages: Mapping[str, int] = field(default_factory=dict)
    unified: Mapping[str, str] = field(default_factory=dict)


def shares_to_weight(shares: int) -> int:
    """`cpu.weight` for `cpu.shares`, so that 1024 becomes 100 and the ends meet. 0 means unset and stays 0.

    Source: the formula of opencontainers/cgroups that current runtimes use.
    """
    if shares == 0:
        return 0
    if shares <= 2:
        return 1
    if shares >= 262144:
        return 10000
    log = math.log2(shares)
    return math.ceil(10 ** ((log * log + 125 * log) / 612 - 7 / 34))
