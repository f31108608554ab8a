"""Validates the rules that need facts of the machine. Pure: the facts are an argument."""

from __future__ import annotations

from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.base.kit.values import Value
from pykubelet.config.errors import ConfigProblem
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.reserved import read_reserved
from pykubelet.config.settings import Flags

CGROUP_V1_REFUSED = (
    "kubelet is configured to not run on a host using cgroup v1. "
    "cgroup v1 support is unsupported and will be removed in a future release"
)


class HostFacts(Value):
    """The facts that the rules need. `online_cpus`: empty if unknown. `swap_on`: /proc/swaps lists a swap area."""

    cgroup_v2: bool
    online_cpus: frozenset[int]
    swap_on: bool


def validate_host(config: KubeletConfiguration, host: HostFacts, flags: Flags | None = None) -> list[ConfigProblem]:
    """All violations of `config` on this machine."""
    problems = []
    if not host.cgroup_v2:
        if config.failCgroupV1:
            problems.append(ConfigProblem("failCgroupV1", CGROUP_V1_REFUSED))
        if flags is not None and flags.enable_load_reader:  # with cgroup v2, the kernel has no such figures
            text = "--enable-load-reader is not supported: load averages of containers are not measured"
            problems.append(ConfigProblem("--enable-load-reader", text))
        if config.singleProcessOOMKill is False:
            text = "singleProcessOOMKill must not be explicitly set to false when using cgroup v1"
            problems.append(ConfigProblem("singleProcessOOMKill", f"invalid configuration: {text}"))
        if config.memorySwap.swapBehavior == "LimitedSwap":
            text = "memorySwap.swapBehavior LimitedSwap is not supported on a host using cgroup v1"
            problems.append(ConfigProblem("memorySwap.swapBehavior", f"invalid configuration: {text}"))
    if host.swap_on and config.failSwapOn:
        text = "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
        problems.append(ConfigProblem("failSwapOn", text))
    cpus = read_reserved(config, qos_gate=False)[0].cpus
    if host.online_cpus and not cpus <= host.online_cpus:
        text = f"reserved-cpus: {format_cpuset(cpus)} is not a subset of online-cpus: {format_cpuset(host.online_cpus)}"
        problems.append(ConfigProblem("reservedSystemCPUs", text))
    return problems
