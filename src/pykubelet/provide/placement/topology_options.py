"""Reads the Topology Manager's policy, scope and options, and checks them against the machine. Pure.

The texts are the reference kubelet's. Source: the Kubernetes documentation "Control Topology Management Policies on a Node".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from pykubelet.base.kit.text import parse_bool
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.machine import NumaNode
from pykubelet.config.gates import FeatureGates
from pykubelet.provide.placement.provider import ManagerStartError

PREFER_CLOSEST = "prefer-closest-numa-nodes"
MAX_NODES = "max-allowable-numa-nodes"
DEFAULT_MAX_NODES = 8

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DIGITS = 40  # longer integers are out of range, whatever their digits are


class Policy(StrEnum):
    """The Topology Manager's policy: the requirement on the merged hint."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(StrEnum):
    """Whether hints are merged for each container, or once for the pod."""

    CONTAINER = "container"
    POD = "pod"


class OptionStage(StrEnum):
    """The maturity of an option; alpha and beta have a feature gate each."""

    ALPHA = "Alpha"
    BETA = "Beta"
    STABLE = "Stable"


STAGES: Mapping[str, OptionStage] = {PREFER_CLOSEST: OptionStage.STABLE, MAX_NODES: OptionStage.STABLE}
_GATES = {OptionStage.ALPHA: "TopologyManagerPolicyAlphaOptions", OptionStage.BETA: "TopologyManagerPolicyBetaOptions"}


class TopologyOptions(Value):
    """The policy options, read."""

    prefer_closest: bool = False
    max_nodes: int = DEFAULT_MAX_NODES


class Topology(Value):
    """The Topology Manager's settings on this machine.

    `nodes`: all NUMA node ids, ascending. `distances`: from node to node, by ids; empty unless the closest nodes are preferred.
    `pod_level`: feature gate PodLevelResourceManagers.
    """

    policy: Policy
    scope: Scope
    nodes: tuple[int, ...]
    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    pod_level: bool = False


def option_problem(name: str, gates: FeatureGates, stages: Mapping[str, OptionStage] = STAGES) -> str | None:
    """Why an option cannot be used: it is unknown, or the gate of its stage is off."""
    stage = stages.get(name)
    if stage is None:
        return f'unknown Topology Manager Policy option: "{name}"'
    if stage is not OptionStage.STABLE and not gates.enabled(_GATES[stage]):
        return f'topology manager policy {stage.lower()}-level options not enabled, but option "{name}" provided'
    return None


def read_options(given: Mapping[str, str], gates: FeatureGates) -> TopologyOptions | ManagerStartError:
    """The options of `topologyManagerPolicyOptions`; the first that is wrong is the error."""
    prefer_closest, max_nodes = False, DEFAULT_MAX_NODES
    for name, text in given.items():
        problem = option_problem(name, gates)
        if problem is not None:
            return ManagerStartError(problem)
        if name == PREFER_CLOSEST:
            try:
                prefer_closest = parse_bool(text)
            except ValueError as error:
                return ManagerStartError(f'bad value for option "{name}": {error}')
        else:
            try:
                max_nodes = _parse_integer(text)
            except ValueError as error:
                return ManagerStartError(f'unable to convert policy option to integer "{name}": {error}')
            if max_nodes < DEFAULT_MAX_NODES:
                return ManagerStartError(f'the minimum value of "{name}" should not be less than {DEFAULT_MAX_NODES}')
    return TopologyOptions(prefer_closest, max_nodes)


def _parse_integer(text: str) -> int:
    """A decimal integer of 64 bits. Raises ValueError with the problem."""
    if not _INTEGER.fullmatch(text):
        raise ValueError(f'"{text}" is not a whole number')
    number = int(text) if len(text) <= _DIGITS else None
    if number is None or not -(2**63) <= number < 2**63:
        raise ValueError(f'"{text}" is out of range')
    return number


def read_topology(
    policy: str, scope: str, options: Mapping[str, str], nodes: Sequence[NumaNode], gates: FeatureGates
) -> Topology | ManagerStartError:
    """The settings of the configuration's fields `topologyManager*` on a machine with these NUMA nodes.

    With policy `none`, scope and options are ignored.
    """
    ids, pod_level = tuple(sorted(node.id for node in nodes)), gates.enabled("PodLevelResourceManagers")
    if policy == Policy.NONE:
        return Topology(Policy.NONE, Scope.CONTAINER, ids, pod_level=pod_level)
    read = read_options(options, gates)
    if isinstance(read, ManagerStartError):
        return read
    if read.prefer_closest and not all(other in node.distances for node in nodes for other in ids):
        return ManagerStartError("cannot discover NUMA topology: error getting NUMA distances from cadvisor")
    if len(ids) > read.max_nodes:
        return ManagerStartError(f"unsupported on machines with more than {read.max_nodes} NUMA Nodes")
    if policy not in list(Policy):
        return ManagerStartError(f'unknown policy: "{policy}"')
    if scope not in list(Scope):
        return ManagerStartError(f'unknown scope: "{scope}"')
    distances = {node.id: node.distances for node in nodes} if read.prefer_closest else {}
    return Topology(Policy(policy), Scope(scope), ids, distances, pod_level)
