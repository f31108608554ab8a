"""The options of the CPU manager's static policy: their names, stages, values and conflicts. Pure.

Source: the Kubernetes documentation "Control CPU Management Policies on the Node", "Static policy options".
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pykubelet.base.kit.text import parse_bool
from pykubelet.base.kit.values import Value
from pykubelet.config.behaviors import behavior_of
from pykubelet.config.gates import FeatureGates
from pykubelet.provide.placement.cpu_topology import CpuTopology
from pykubelet.provide.placement.provider import ManagerStartError
from pykubelet.provide.placement.topology_options import OptionStage, Policy

FULL_PCPUS_ONLY = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA = "distribute-cpus-across-numa"
ALIGN_BY_SOCKET = "align-by-socket"
DISTRIBUTE_ACROSS_CORES = "distribute-cpus-across-cores"
STRICT_RESERVATION = "strict-cpu-reservation"
PREFER_UNCORE_CACHE = "prefer-align-cpus-by-uncorecache"

STAGES: Mapping[str, OptionStage] = {
    ALIGN_BY_SOCKET: OptionStage.ALPHA,
    DISTRIBUTE_ACROSS_CORES: OptionStage.ALPHA,
    DISTRIBUTE_ACROSS_NUMA: OptionStage.BETA,
    FULL_PCPUS_ONLY: OptionStage.STABLE,
    STRICT_RESERVATION: OptionStage.STABLE,
    PREFER_UNCORE_CACHE: OptionStage.STABLE,
}
_GATES = {OptionStage.ALPHA: "CPUManagerPolicyAlphaOptions", OptionStage.BETA: "CPUManagerPolicyBetaOptions"}
#: Pairs that exclude each other, in the order in which they are checked.
CONFLICTS = (
    (FULL_PCPUS_ONLY, DISTRIBUTE_ACROSS_CORES),
    (DISTRIBUTE_ACROSS_NUMA, DISTRIBUTE_ACROSS_CORES),
    (PREFER_UNCORE_CACHE, DISTRIBUTE_ACROSS_CORES),
    (PREFER_UNCORE_CACHE, DISTRIBUTE_ACROSS_NUMA),
)


class CpuOptions(Value):
    """The options of the static policy, read. `spread_by_topology`, `keep_all_nodes`: as in `Behavior`."""

    full_pcpus_only: bool = False
    distribute_across_numa: bool = False
    align_by_socket: bool = False
    distribute_across_cores: bool = False
    strict_reservation: bool = False
    prefer_uncore_cache: bool = False
    spread_by_topology: bool = False
    keep_all_nodes: bool = False


def read_cpu_options(given: Mapping[str, str], gates: FeatureGates) -> CpuOptions | ManagerStartError:
    """The options of `cpuManagerPolicyOptions`; the first that is wrong, by name, is the error."""
    on: dict[str, bool] = {}
    for name, text in sorted(given.items()):
        problem = _problem(name, gates)
        if problem is not None:
            return ManagerStartError(problem)
        try:
            on[name] = parse_bool(text)
        except ValueError as error:
            return ManagerStartError(f"bad value for option {quoted(name)}: {error}")
    for option, other in CONFLICTS:
        if on.get(option) and on.get(other):
            return ManagerStartError(f"static policy options {option} and {other} can not be used at the same time")
    behavior = behavior_of(gates.release)
    return CpuOptions(
        full_pcpus_only=on.get(FULL_PCPUS_ONLY, False),
        distribute_across_numa=on.get(DISTRIBUTE_ACROSS_NUMA, False),
        align_by_socket=on.get(ALIGN_BY_SOCKET, False),
        distribute_across_cores=on.get(DISTRIBUTE_ACROSS_CORES, False),
        strict_reservation=on.get(STRICT_RESERVATION, False),
        prefer_uncore_cache=on.get(PREFER_UNCORE_CACHE, False),
        spread_by_topology=behavior.spread_by_topology,
        keep_all_nodes=behavior.keep_all_nodes,
    )


def _problem(name: str, gates: FeatureGates) -> str | None:
    stage = STAGES.get(name)
    if stage is None:
        return f"unknown CPU Manager Policy option: {quoted(name)}"
    if stage is not OptionStage.STABLE and not gates.enabled(_GATES[stage]):
        return f"CPU Manager Policy {stage}-level Options not enabled, but option {quoted(name)} provided"
    return None


def check_cpu_options(options: CpuOptions, topology: CpuTopology, topology_policy: str) -> ManagerStartError | None:
    """Why the options do not suit the machine or the topology manager's policy; None if they do."""
    if not options.align_by_socket:
        return None
    if topology_policy == Policy.SINGLE_NUMA_NODE:
        policies = f"{Policy.SINGLE_NUMA_NODE} policy is incompatible with CPUManager {ALIGN_BY_SOCKET} policy option"
        return ManagerStartError(f"Topolgy manager {policies}")  # the reference's spelling
    if len(topology.sockets) > len(topology.nodes):
        return ManagerStartError(
            "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
        )
    return None


def quoted(text: str) -> str:
    """Text in double quotes, with quotes and control characters escaped."""
    return json.dumps(text, ensure_ascii=False)
