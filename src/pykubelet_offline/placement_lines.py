"""Prints replayed decisions of placement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pykubelet.app.placement_map import list_nodes
from pykubelet.provide.placement.explanation import pod_name
from pykubelet.provide.placement.recording import PlacementRecording, RecordedPlacementStep
from pykubelet_offline.placement_replay import ReplayedPlacement


def placement_lines(recording: PlacementRecording, steps: Sequence[ReplayedPlacement]) -> Iterator[str]:
    """One line for each step, what the pod got or why it got nothing, and each difference from the recorded result."""
    rules = recording.rules
    policies = f"topology {rules.topology.policy} by {rules.topology.scope}, memory {rules.memory_policy}"
    cpus = "none" if rules.options is None else "static"
    yield f"Placement, {len(steps)} steps recorded by version {recording.agent}: CPUs {cpus}, {policies}"
    start = steps[0].step.at if steps else 0.0
    for replayed in steps:
        yield f"{replayed.step.at - start:+10.3f} s  {_what(replayed.step)}"
        yield from (f"              {line}" for line in _result(replayed.result))
        yield from (f"              DIFFERS {line}" for line in replayed.differences)
    different = sum(1 for replayed in steps if replayed.differences)
    yield f"{different} of {len(steps)} steps came out differently" if different else "every step came out as recorded"


def _what(step: RecordedPlacementStep) -> str:
    if step.pod is not None:
        return f"admit {pod_name(step.pod)} ({step.pod.metadata.uid})"
    return f"release {', '.join(step.released)}"


def _result(result: Mapping[str, Any]) -> Iterator[str]:
    if "reason" in result:
        yield f"-> rejected, {result['reason']}: {result['message']}"
    if "asks" in result:
        yield f"-> asks the device plugin of {result['asks']}"
    for name, has in result.items():
        if isinstance(has, dict):
            yield f"-> {name}: {_has(has)}"


def _has(has: Mapping[str, Any]) -> str:
    parts = [f"CPUs {has['cpus']}" if has["cpus"] else "shared pool"]
    parts += [f"{size} bytes of {type_} on {list_nodes(nodes)}" for nodes, type_, size in has["memory"]]
    parts += [f"{resource} {','.join(ids)}" for resource, ids in has["devices"].items()]
    return ", ".join(parts)
