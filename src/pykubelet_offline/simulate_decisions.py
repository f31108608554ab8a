"""`pykubelet simulate admission` and `eviction`: what a node would decide on pods, with extensions and without.

The inputs are what a cluster prints: a Node and pods by `kubectl get -o yaml`, and usage by the kubelet's `/stats/summary`.
Exit codes: 0 the extensions change nothing, 1 an input cannot be used or an extension has failed, 2 wrong command line,
3 something is decided otherwise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pykubelet.app.parts import Points
from pykubelet.base.api.codec import DecodeError, from_object
from pykubelet.base.api.core import Node, Pod
from pykubelet.base.api.quantity import QuantityError, in_units, parse
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.clock import Clock, ManualClock, SystemClock
from pykubelet.base.kit.text import escape_controls
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import SOURCE_API
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import SourceChanged, pod_ref
from pykubelet.base.model.usage import (
    ContainerUse,
    CpuUse,
    FileSystemUse,
    GroupUse,
    MemoryUse,
    PodUse,
    PsiData,
    PsiStats,
)
from pykubelet.config.settings import Settings
from pykubelet.desired.roster.decide import settle
from pykubelet.desired.roster.merge import apply_source
from pykubelet.desired.roster.model import AdmissionFacts, RosterState, admission_rules
from pykubelet.observe.eviction.decide_evictions import in_order
from pykubelet.observe.eviction.model import Candidate, FsLayout
from pykubelet.observe.eviction.signals import SIGNAL_RULES
from pykubelet_offline.extensions_used import ExtensionsUsed
from pykubelet_offline.simulate_input import InputError, read_document, read_pods, read_settings

CHANGED = 3
#: Newer than any kernel for which a rule differs.
KERNEL = (1 << 16, 0)
Document = Mapping[str, Any]


class ComparedDecision(Value):
    """What is decided on a pod: in words, with the extensions (`now`) and without (`before`)."""

    pod: str
    now: str
    before: str


def admission(options: argparse.Namespace) -> int:
    """Admit the pods one after the other, with the extensions and without. Raises InputError."""
    settings, node, pods = read_settings(options.config), _read_node(options.node), read_pods(options.pods)
    clock: Clock = ManualClock(wall=_time(options.time)) if options.time else SystemClock()
    with ExtensionsUsed(options.extension, clock) as with_extensions:
        now = _admitted(pods, node, settings, with_extensions.points, clock)
        before = _admitted(pods, node, settings, Points(), clock)
        return _print(
            options,
            [ComparedDecision(*both) for both in zip(map(_name, pods), now, before, strict=True)],
            with_extensions,
        )


def eviction(options: argparse.Namespace) -> int:
    """Rank the pods for a signal, with the extensions and without. Raises InputError."""
    pods, usage = read_pods(options.pods), _read_usage(options.summary)
    candidates = [Candidate(pod, usage.get(_name(pod))) for pod in pods]
    with ExtensionsUsed(options.extension) as with_extensions:
        before = in_order(candidates, options.signal, FsLayout.SHARED, None)
        now = in_order(candidates, options.signal, FsLayout.SHARED, with_extensions.points.rank_for_eviction)
        places = {_name(candidate.pod): str(place) for place, candidate in enumerate(before, 1)}
        named = [(_name(candidate.pod), str(place)) for place, candidate in enumerate(now, 1)]
        return _print(options, [ComparedDecision(pod, place, places[pod]) for pod, place in named], with_extensions)


def add_parsers(commands: Any) -> None:
    """Add the two commands."""
    parser = _parser(commands, "admission", "which pods a node admits", admission)
    parser.add_argument(
        "--node", metavar="FILE", required=True, help="the Node, as kubectl get node NAME -o yaml prints it"
    )
    parser.add_argument("--config", metavar="FILE", help="a KubeletConfiguration")
    parser.add_argument("--time", default="", help="the time, such as 2026-12-01T18:00:00Z; default: now")
    parser = _parser(commands, "eviction", "in which order a node evicts pods", eviction)
    parser.add_argument("--summary", metavar="FILE", required=True, help="usage, as /stats/summary answers")
    signals = ", ".join(sorted(SIGNAL_RULES))
    parser.add_argument(
        "--signal", choices=sorted(SIGNAL_RULES), default="memory.available", metavar="SIGNAL", help=f"one of {signals}"
    )


def _parser(commands: Any, name: str, text: str, run: Any) -> Any:
    description = f"Show {text}, with extensions and without. No agent is asked, and nothing on the machine is touched."
    parser = commands.add_parser(name, help=text, description=description, allow_abbrev=False)
    parser.add_argument("--pods", metavar="FILE", required=True, help="pods, as kubectl get pods -o yaml prints them")
    add_extension_option(parser)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="the form of the answer")
    parser.set_defaults(run=run)
    return parser


def add_extension_option(parser: Any) -> None:
    """Add the flag that loads extensions."""
    text = "as the agent's flag; repeatable"
    parser.add_argument("--extension", action="append", default=[], metavar="NAME[=SETTINGS]", help=text)


def _print(options: argparse.Namespace, outcomes: Sequence[ComparedDecision], extensions: ExtensionsUsed) -> int:
    if options.output == "json":
        found = [{"pod": o.pod, "with": o.now, "without": o.before} for o in outcomes]
        print(json.dumps({"outcomes": found, "failures": extensions.failures}, indent=2))
    else:
        for outcome in outcomes:
            other = f"   (without: {outcome.before})" if outcome.now != outcome.before else ""
            print(escape_controls(f"{outcome.pod}: {outcome.now}{other}"))
    extensions.report_failures()
    if extensions.failures:
        return 1
    return CHANGED if any(outcome.now != outcome.before for outcome in outcomes) else 0


# Admission


def _admitted(pods: Sequence[Pod], node: NodeView, settings: Settings, points: Points, clock: Clock) -> Iterator[str]:
    """What is decided on each pod, in words."""
    rules = admission_rules(settings, KERNEL, points.admit, app_armor=True)
    facts = AdmissionFacts(node, RuntimeReady(checked=True), Observed(listed_at=0.0), Lifecycles(), rules)
    state = RosterState()
    for number in range(1, len(pods) + 1):
        state, _ = apply_source(state, SourceChanged(SOURCE_API, tuple(pods[:number])), clock.wall())
        state, _ = settle(state, facts, clock.monotonic(), clock.wall())
    for pod in pods:
        item = state.entries[PodUID(pod.metadata.uid)].item
        if item.rejection is not None:
            yield f"rejected, {item.rejection.reason}: {item.rejection.message}"
        elif item.admission_wait is not None:
            yield f"held, {item.admission_wait.what}: {item.admission_wait.detail}"
        else:
            yield "admitted"


def _read_node(path: str) -> NodeView:
    try:
        node = from_object(Node, read_document(path))
        capacity, allocatable = _amounts(node.status.capacity), _amounts(node.status.allocatable)
    except (DecodeError, QuantityError) as error:
        raise InputError(f"{path}: {error}") from None
    if not allocatable:
        raise InputError(f"{path}: status.allocatable: must have the node's resources")
    name = node.metadata.name or "node"
    return NodeView(
        name, name, capacity=capacity, allocatable=allocatable, labels=node.metadata.labels, taints=node.spec.taints
    )


def _amounts(stated: Mapping[str, Any]) -> dict[str, int]:
    return in_units({name: parse(amount) for name, amount in stated.items()})


def _time(text: str) -> float:
    try:
        return parse_time(text)
    except ValueError as error:
        raise InputError(f"--time {text}: {error}") from None


# Eviction


def _read_usage(path: str) -> dict[str, PodUse]:
    """The usage of pods by `namespace/name`."""
    document = read_document(path)
    try:
        return {_name_of(pod["podRef"]): _use(pod) for pod in document["pods"]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: it is no answer of /stats/summary: {type(error).__name__}: {error}") from None


def _name_of(ref: Document) -> str:
    return f"{ref['namespace']}/{ref['name']}"


def _name(pod: Pod) -> str:
    ref = pod_ref(pod)
    return f"{ref.namespace}/{ref.name}"


def _use(pod: Document) -> PodUse:
    ref, at = pod["podRef"], 0.0
    memory = MemoryUse(working_set=int(pod.get("memory", {}).get("workingSetBytes", 0)))
    pressure = {
        resource: PsiStats(PsiData(0, float(found["some"]["avg10"]), 0.0, 0.0))
        for resource in ("cpu", "memory", "io")
        if (found := pod.get(resource, {}).get("psi"))
    }
    group = GroupUse(at, CpuUse(), memory, pod.get("process_stats", {}).get("process_count"), pressure)
    disk = pod.get("ephemeral-storage", {})
    layers = FileSystemUse(at, used=disk.get("usedBytes"), inodes_used=disk.get("inodesUsed"))
    whole = ContainerUse("", "", "", "", at, group, rootfs=layers)
    return PodUse(
        pod_ref(from_object(Pod, {"metadata": dict(ref)})), "", at, group if "memory" in pod else None, (whole,)
    )
