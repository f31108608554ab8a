"""Limits of cgroups as values, and their conversion between the versions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.kit.values import Value, field, replace

UNLIMITED = -1
_MAX_SHARES = 262144
_DEFAULT_PERIOD_US = 100_000


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


def weight_to_shares(weight: int) -> int:
    """The least `cpu.shares` that `shares_to_weight` converts to this `cpu.weight`."""
    return 2 + -(-(weight - 1) * 262142 // 9999)


def files_of(limits: CgroupLimits) -> list[tuple[str, str]]:
    """The files of version 2 to write and their values, in order."""
    files: list[tuple[str, str]] = []
    if limits.cpu_shares:
        files.append(("cpu.weight", str(shares_to_weight(limits.cpu_shares))))
    if limits.cpu_quota_us or limits.cpu_period_us:
        quota = limits.cpu_quota_us or UNLIMITED
        period = limits.cpu_period_us or _DEFAULT_PERIOD_US
        files.append(("cpu.max", f"{'max' if quota < 0 else quota} {period}"))
    if limits.memory_bytes is not None:
        files.append(("memory.max", _or_max(limits.memory_bytes)))
    if limits.pids is not None:
        files.append(("pids.max", _or_max(limits.pids)))
    if limits.cpus:
        files.append(("cpuset.cpus", limits.cpus))
    files.extend((f"hugetlb.{size}.max", _or_max(limit)) for size, limit in limits.huge_pages.items())
    files.extend((name, line) for name, text in limits.unified.items() for line in text.splitlines())
    return files


def with_files(limits: CgroupLimits, changed: Mapping[str, str]) -> CgroupLimits:
    """The limits with other values of these files of version 2; the values are right."""
    huge, unified = dict(limits.huge_pages), dict(limits.unified)
    for name, text in changed.items():
        kind, _, rest = name.partition(".")
        if name == "cpu.weight":
            limits = replace(limits, cpu_shares=weight_to_shares(int(text)))
        elif name == "cpu.max":
            quota, period = text.split()
            limits = replace(limits, cpu_quota_us=_amount(quota), cpu_period_us=int(period))
        elif name == "memory.max":
            limits = replace(limits, memory_bytes=_amount(text))
        elif name == "pids.max":
            limits = replace(limits, pids=_amount(text))
        elif kind == "hugetlb":
            huge[rest.removesuffix(".max")] = _amount(text)
        else:
            unified[name] = text
    return replace(limits, huge_pages=huge, unified=unified)


def _or_max(value: int) -> str:
    return "max" if value == UNLIMITED else str(value)


def _amount(text: str) -> int:
    return UNLIMITED if text == "max" else int(text)
