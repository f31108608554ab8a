"""Rules that need facts of the machine. Pure: the facts are an argument."""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet.config.cpuset import format_cpuset
from pykubelet.config.errors import Problem
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.reserved import read_reserved

CGROUP_V1_REFUSED = (
    "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is in maintenance mode"
)


class HostFacts(Value):
    """What the rules ask. `online_cpus`: empty when unknown. `swap_on`: a swap area other than tmpfs is active."""

    cgroup_v2: bool
    online_cpus: frozenset[int]
    swap_on: bool


def validate_host(config: KubeletConfiguration, host: HostFacts) -> list[Problem]:
    """Every rule that `config` breaks on this machine."""
    problems = []
    if not host.cgroup_v2:
        if config.failCgroupV1:
            problems.append(Problem("failCgroupV1", CGROUP_V1_REFUSED))
        if config.singleProcessOOMKill is False:
            text = "singleProcessOOMKill must not be explicitly set to false when using cgroup v1"
            problems.append(Problem("singleProcessOOMKill", f"invalid configuration: {text}"))
        if config.memorySwap.swapBehavior == "LimitedSwap":
            text = "memorySwap.swapBehavior LimitedSwap is not supported on a host using cgroup v1"
            problems.append(Problem("memorySwap.swapBehavior", f"invalid configuration: {text}"))
    if host.swap_on and config.failSwapOn:
        text = "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
        problems.append(Problem("failSwapOn", text))
    cpus = read_reserved(config, qos_gate=False)[0].cpus
    if host.online_cpus and not cpus <= host.online_cpus:
        text = (
            f"invalid configuration: reservedSystemCPUs (--reserved-cpus) {config.reservedSystemCPUs} must be a "
            f"subset of the online CPUs {format_cpuset(host.online_cpus)}"
        )
        problems.append(Problem("reservedSystemCPUs", text))
    return problems
