"""`pykubelet simulate placement`: on which CPUs and NUMA nodes the pods of a file would run on a machine, or why one would be rejected.

No agent is asked and nothing on the machine is touched. Exit codes: 0 all pods were admitted, 1 an input cannot be used, 2 wrong
command line, 3 some pod was rejected.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pykubelet.act.placement.simulation import NodeMap, Outcome
from pykubelet.app.simulate_input import InputError, read_machine, read_pods, start_simulation
from pykubelet.base.api.resources import format_units
from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.base.kit.terminal import escape_controls
from pykubelet.base.model.machine import Machine

REJECTED = 3


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(argv)
    try:
        machine = read_machine(options.machine)
        simulation = start_simulation(machine, options.config)
        pods = read_pods(options.pods) if options.pods else []
    except InputError as error:
        print(f"Error: {escape_controls(str(error))}", file=sys.stderr)
        return 1
    outcomes = [simulation.admit(pod) for pod in pods]
    maps = simulation.map()
    if options.output == "json":
        print(json.dumps(_as_json(machine, outcomes, maps), indent=2))
    else:
        for line in _lines(machine, outcomes, maps):
            print(escape_controls(line))
    return REJECTED if any(outcome.reason for outcome in outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pykubelet simulate",
        description="Try decisions of the agent without an agent.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    placement = commands.add_parser(
        "placement",
        help="which CPUs pods get on a machine",
        description="Admit pods one after the other on a machine, and show which CPUs and memory they get.",
        allow_abbrev=False,
    )
    placement.add_argument(
        "--machine", metavar="FILE", required=True, help="a machine (docs/placement.md); - reads stdin"
    )
    placement.add_argument("--pods", metavar="FILE", help="a list of pods in YAML or JSON, admitted in this order")
    placement.add_argument(
        "--config",
        metavar="FILE",
        help="a KubeletConfiguration; without it, cpuManagerPolicy is static and CPU 0 is reserved",
    )
    placement.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser


def _lines(machine: Machine, outcomes: Sequence[Outcome], maps: Sequence[NodeMap]) -> Iterator[str]:
    for outcome in outcomes:
        yield from _outcome_lines(outcome)
    if outcomes:
        yield ""
    if not maps:
        yield "The CPU manager's policy is none: all containers share all CPUs."
    memory = {node.id: node.memory for node in machine.nodes}
    for node in maps:
        sockets = ", ".join(map(str, node.sockets))
        size = format_units("memory", memory.get(node.node, 0))
        yield f"NUMA node {node.node} (socket {sockets}, memory {size}): CPUs {format_cpuset(node.cpus)}"
        rows = [("reserved", node.reserved)]
        rows += [(f"{part.pod} {part.container}", part.cpus) for part in node.parts]
        rows.append(("shared pool", node.shared))
        yield from (f"  {format_cpuset(cpus):<20} {name}" for name, cpus in rows if cpus)


def _outcome_lines(outcome: Outcome) -> Iterator[str]:
    if outcome.reason:
        yield f"{outcome.pod}: rejected, {outcome.reason}: {outcome.message}"
        if outcome.explanation:
            yield f"  {outcome.explanation}"
        return
    yield f"{outcome.pod}: admitted"
    for name in outcome.containers:
        cpus = outcome.exclusive.get(name)
        blocks = [
            f", {format_units(block.type, block.size)} {block.type} on node {', '.join(map(str, block.nodes))}"
            for block in outcome.memory.get(name, ())
        ]
        yield f"  {name}: {f'CPUs {format_cpuset(cpus)}' if cpus else 'shared pool'}{''.join(blocks)}"


def _as_json(machine: Machine, outcomes: Sequence[Outcome], maps: Sequence[NodeMap]) -> Mapping[str, Any]:
    memory = {node.id: node.memory for node in machine.nodes}
    return {
        "pods": [
            {
                "pod": one.pod,
                "admitted": not one.reason,
                "reason": one.reason,
                "message": one.message,
                "explanation": one.explanation,
                "containers": [_container_json(one, name) for name in one.containers],
            }
            for one in outcomes
        ],
        "numaNodes": [
            {
                "id": node.node,
                "sockets": list(node.sockets),
                "memory": memory.get(node.node, 0),
                "cpus": format_cpuset(node.cpus),
                "reserved": format_cpuset(node.reserved),
                "shared": format_cpuset(node.shared),
                "exclusive": [
                    {"pod": part.pod, "container": part.container, "cpus": format_cpuset(part.cpus)}
                    for part in node.parts
                ],
            }
            for node in maps
        ],
    }


def _container_json(outcome: Outcome, name: str) -> Mapping[str, Any]:
    blocks = outcome.memory.get(name, ())
    return {
        "name": name,
        "cpus": format_cpuset(outcome.exclusive.get(name, frozenset())),
        "memory": [{"type": one.type, "size": one.size, "numaNodes": list(one.nodes)} for one in blocks],
    }
