"""The machine: what it is, and whether something else kept it busy during the run."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import host

BUSY_CORES = 0.3
_ON_V1 = Path("/sys/fs/cgroup/cpuacct")


@dataclass(frozen=True, slots=True)
class Load:
    """CPU seconds since some moment: of the whole machine, and of this run's own parts."""

    at: float
    machine_s: float
    own_s: float


def describe(runtime_version: str) -> str:
    """One line."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores, kernel = os.cpu_count(), platform.release()
    return f"{cores} cores ({model}), Linux {kernel}, containerd {runtime_version}, Python {platform.python_version()}"


def read_load(cgroups: Sequence[str]) -> Load:
    """`cgroups` are those of this run: runtime, agent and pods. This process counts as its own, too."""
    ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq = (int(tick) for tick in ticks[:7])
    machine = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    return Load(time.monotonic(), machine, time.process_time() + sum(map(_cpu_of, cgroups)))


def _cpu_of(cgroup: str) -> float:
    try:
        if _ON_V1.exists():
            return int((_ON_V1 / cgroup.strip("/") / "cpuacct.usage").read_text()) / 1e9
        stat = (host.CGROUP_MOUNT / cgroup.strip("/") / "cpu.stat").read_text().split()
        return int(stat[stat.index("usage_usec") + 1]) / 1e6
    except OSError:  # not made yet
        return 0.0


def foreign_cores(before: Load, after: Load) -> float:
    """Cores that something else kept busy between the two readings; the kernel's own work counts as something else."""
    passed = after.at - before.at
    return max(0.0, (after.machine_s - before.machine_s - (after.own_s - before.own_s)) / passed) if passed > 0 else 0.0
