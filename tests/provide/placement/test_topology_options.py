"""The Topology Manager's settings: what is read, and each error's text."""

from __future__ import annotations

import pytest

from pykubelet.base.model.machine import NumaNode
from pykubelet.config.gates import FeatureGates
from pykubelet.provide.placement.provider import ManagerStartError
from pykubelet.provide.placement.topology_options import (
    OptionStage,
    Policy,
    Scope,
    Topology,
    TopologyOptions,
    option_problem,
    read_options,
    read_topology,
)

GATES = FeatureGates({})
CLOSEST, MOST = "prefer-closest-numa-nodes", "max-allowable-numa-nodes"
NODES = [NumaNode(n, 1 << 30, distances={0: 10, 1: 20}) for n in (0, 1)]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, TopologyOptions(False, 8)),
        ({CLOSEST: "true"}, TopologyOptions(True, 8)),
        ({CLOSEST: "0"}, TopologyOptions(False, 8)),
        ({MOST: "8"}, TopologyOptions(False, 8)),
        ({MOST: "+12", CLOSEST: "t"}, TopologyOptions(True, 12)),
    ],
)
def test_options(given: dict[str, str], options: TopologyOptions) -> None:
    assert read_options(given, GATES) == options


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"fancy": "true"}, 'unknown Topology Manager Policy option: "fancy"'),
        ({CLOSEST: "yes"}, f'bad value for option "{CLOSEST}": "yes" is not a boolean: must be true or false'),
        (
            {MOST: "4x"},
            f'unable to convert policy option to integer "{MOST}": "4x" is not a whole number',
        ),
        (
            {MOST: "1_0"},
            f'unable to convert policy option to integer "{MOST}": "1_0" is not a whole number',
        ),
        (
            {MOST: "9223372036854775808"},
            f'unable to convert policy option to integer "{MOST}": "9223372036854775808" is out of range',
        ),
        (
            {MOST: "9" * 5000},
            f'unable to convert policy option to integer "{MOST}": "{"9" * 5000}" is out of range',
        ),
        ({MOST: "7"}, f'the minimum value of "{MOST}" should not be less than 8'),
        ({MOST: "-9"}, f'the minimum value of "{MOST}" should not be less than 8'),
    ],
)
def test_options_that_are_wrong(given: dict[str, str], text: str) -> None:
    assert read_options(given, GATES) == ManagerStartError(text)
    assert read_topology("restricted", "pod", given, NODES, GATES) == ManagerStartError(text)


@pytest.mark.parametrize(("stage", "word"), [(OptionStage.ALPHA, "alpha"), (OptionStage.BETA, "beta")])
def test_an_option_needs_the_gate_of_its_stage(stage: OptionStage, word: str) -> None:
    gate = f"TopologyManagerPolicy{stage}Options"
    text = f'topology manager policy {word}-level options not enabled, but option "fancy" provided'
    assert option_problem("fancy", FeatureGates({gate: False}), {"fancy": stage}) == text
    assert option_problem("fancy", FeatureGates({gate: True}), {"fancy": stage}) is None


@pytest.mark.parametrize(
    ("policy", "scope", "options", "topology"),
    [
        ("none", "container", {}, Topology(Policy.NONE, Scope.CONTAINER, (0, 1))),
        ("none", "fancy", {"fancy": "true"}, Topology(Policy.NONE, Scope.CONTAINER, (0, 1))),
        ("best-effort", "pod", {}, Topology(Policy.BEST_EFFORT, Scope.POD, (0, 1))),
        ("restricted", "container", {MOST: "9"}, Topology(Policy.RESTRICTED, Scope.CONTAINER, (0, 1))),
        (
            "single-numa-node",
            "pod",
            {CLOSEST: "true"},
            Topology(Policy.SINGLE_NUMA_NODE, Scope.POD, (0, 1), {n: {0: 10, 1: 20} for n in (0, 1)}),
        ),
        ("fancy", "pod", {}, ManagerStartError('unknown policy: "fancy"')),
        ("restricted", "fancy", {}, ManagerStartError('unknown scope: "fancy"')),
    ],
)
def test_settings(policy: str, scope: str, options: dict[str, str], topology: Topology | ManagerStartError) -> None:
    assert read_topology(policy, scope, options, NODES, GATES) == topology


def test_the_machine_must_report_distances_if_they_are_asked_for() -> None:
    problem = ManagerStartError("cannot discover NUMA topology: error getting NUMA distances from cadvisor")
    for nodes in ([NumaNode(0, 1)], [NumaNode(0, 1, distances={0: 10}), NODES[1]]):
        assert read_topology("best-effort", "pod", {CLOSEST: "true"}, nodes, GATES) == problem
        assert isinstance(read_topology("best-effort", "pod", {CLOSEST: "false"}, nodes, GATES), Topology)


def test_the_number_of_nodes_is_limited() -> None:
    nodes = [NumaNode(n, 1) for n in range(9)]
    problem = ManagerStartError("unsupported on machines with more than 8 NUMA Nodes")
    assert read_topology("best-effort", "pod", {}, nodes, GATES) == problem
    assert isinstance(read_topology("best-effort", "pod", {MOST: "9"}, nodes, GATES), Topology)
    assert isinstance(read_topology("none", "pod", {}, nodes, GATES), Topology)
