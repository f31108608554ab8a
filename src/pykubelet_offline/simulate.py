"""`pykubelet simulate`: decisions of the agent without an agent. `admission` and `eviction` are in `simulate_decisions.py`.

`placement`: on which CPUs and NUMA nodes the pods of a file would run on a machine, or why one would be rejected. Nothing on the machine
is touched. Exit codes: 0 all pods were admitted, 1 an input cannot be used, 2 wrong command line, 3 some pod was rejected.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pykubelet.app.placement_map import map_lines, pod_lines
from pykubelet.base.kit.text import escape_controls
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import Claims
from pykubelet.base.model.placement import Placements
from pykubelet.serve.explain.placement import placement_document, pod_placement_document
from pykubelet_offline.extensions_used import ExtensionsUsed
from pykubelet_offline.simulate_decisions import add_extension_option, add_parsers
from pykubelet_offline.simulate_input import InputError, read_machine, read_pods, read_settings, start_simulation
from pykubelet_offline.simulation import SimulatedPod

REJECTED = 3


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    options = build_parser().parse_args(argv)
    try:
        return int(options.run(options))
    except InputError as error:
        print(f"Error: {escape_controls(str(error))}", file=sys.stderr)
        return 1


def place(options: argparse.Namespace) -> int:
    """Admit the pods one after the other on a machine. Raises InputError."""
    with ExtensionsUsed(options.extension) as extensions:
        own = extensions.policy
        settings = read_settings(options.config, options.extension, own[0] if own is not None else "static")
        extensions.check_policy(settings)
        machine = read_machine(options.machine)
        pods = read_pods(options.pods) if options.pods else []
        config, points = settings.config, extensions.points
        choose = points.place.get(config.cpuManagerPolicy)
        choose_memory = points.place_memory.get(config.memoryManagerPolicy)
        simulation = start_simulation(machine, settings, choose, choose_memory)
        for remark in settings.remarks:
            print(f"Warning: {escape_controls(remark.line)}", file=sys.stderr)
        outcomes = [simulation.admit(pod) for pod in pods]
        before = outcomes
        if choose is not None or choose_memory is not None:
            cpus = "static" if choose is not None else config.cpuManagerPolicy
            memory = "Static" if choose_memory is not None else config.memoryManagerPolicy
            static = replace(settings, config=replace(config, cpuManagerPolicy=cpus, memoryManagerPolicy=memory))
            without = start_simulation(machine, static)
            before = [without.admit(pod) for pod in pods]
        extensions.report_failures()
    node = placement_document(simulation.placements(), Claims(), simulation.names)
    if options.output == "json":
        print(json.dumps({"pods": [_as_json(outcome) for outcome in outcomes], **node}, indent=2))
    else:
        for line in _lines(outcomes, before, node):
            print(escape_controls(line))
    return REJECTED if any(outcome.placement.rejection is not None for outcome in outcomes) else 0


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="pykubelet simulate",
        description="Try decisions of the agent without an agent.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    placement = commands.add_parser(
        "placement",
        help="which CPUs pods get on a machine",
        description="Admit pods one after the other on a machine, and show which CPUs, memory and devices they get.",
        allow_abbrev=False,
    )
    placement.add_argument(
        "--machine", metavar="FILE", required=True, help="a machine (docs/placement.md); - reads stdin"
    )
    placement.add_argument("--pods", metavar="FILE", help="a list of pods in YAML or JSON, admitted in this order")
    placement.add_argument(
        "--config",
        metavar="FILE",
        help="a KubeletConfiguration; without it, CPU 0 is reserved, and cpuManagerPolicy is static or the extension",
    )
    add_extension_option(placement)
    placement.add_argument("-o", "--output", choices=("text", "json"), default="text", help="the form of the answer")
    placement.set_defaults(run=place)
    add_parsers(commands)
    return parser


def _lines(outcomes: Sequence[SimulatedPod], before: Sequence[SimulatedPod], node: Mapping[str, Any]) -> Iterator[str]:
    """`before`: what became of the pods without extensions."""
    for outcome, other in zip(outcomes, before, strict=True):
        lines, others = list(_outcome_lines(outcome)), list(_outcome_lines(other))
        yield from lines
        yield from (f"    without: {line.strip()}" for line in others if line not in lines)
    if outcomes:
        yield ""
    yield from map_lines(node)


def _outcome_lines(outcome: SimulatedPod) -> Iterator[str]:
    placement, rejection = outcome.placement, outcome.placement.rejection
    if rejection is not None:
        yield f"{outcome.pod}: rejected, {rejection.reason}: {rejection.message}"
        if placement.explanation:
            yield f"  {placement.explanation}"
        return
    yield f"{outcome.pod}: admitted"
    yield from pod_lines(_document(outcome))


def _document(outcome: SimulatedPod) -> Mapping[str, Any]:
    placements = Placements({outcome.uid: outcome.placement})
    return pod_placement_document(placements, Claims(), outcome.uid) or {"explanation": "", "containers": []}


def _as_json(outcome: SimulatedPod) -> Mapping[str, Any]:
    rejection = outcome.placement.rejection
    return {
        "pod": outcome.pod,
        "admitted": rejection is None,
        "reason": "" if rejection is None else rejection.reason,
        "message": "" if rejection is None else rejection.message,
        **_document(outcome),
    }
