"""Records the newest steps of a pod's state machine as a JSON document. Pure.

A recording has the state before the first kept step. Each step has its time, the event, the probe results, the fields of
the state that it changed, and its commands. `pykubelet replay`, a program of its own, feeds the events to the state machine of
`decide.py` again. A recording contains the pod's whole specification, including the values of environment variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pykubelet.act.pods.decide import Rules
from pykubelet.act.pods.model import Command, PodWorkerState
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import Value
from pykubelet.base.model.diagnostics import WorkerStep
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults

#: The version of the document.
VERSION = 2
#: Fields of commands that repeat what the state holds.
_REPEATED = frozenset({"pod", "view", "applied"})

Document = dict[str, Any]


class RecordedProbes(Value):
    """`ProbeResults` of one pod: (container ID, kind, result)."""

    results: tuple[tuple[ContainerID, ProbeKind, ProbeResult], ...] = ()
    watched: frozenset[ProbeKind] = frozenset()


class RecordedStep(Value):
    """One step: monotonic seconds, the event's type and fields, probe results if they have changed, and the results."""

    at: float
    event_type: str
    event: Document
    changed: Document
    commands: tuple[Document, ...]
    probes: RecordedProbes | None = None


class Recording(Value):
    """The document. `state`: the state before the first step."""

    version: int
    agent: str
    crash: BackoffPolicy
    resync_s: float
    state: PodWorkerState
    steps: tuple[RecordedStep, ...]


def record(steps: Sequence[WorkerStep], agent: str) -> Document | None:
    """The recording of these steps, as plain objects for JSON; None without steps. `agent`: the version of this agent."""
    if not steps:
        return None
    first, rules = steps[0].state, steps[0].rules
    assert isinstance(first, PodWorkerState)
    assert isinstance(rules, Rules)
    recorded, before = [], None
    for taken in steps:
        assert isinstance(taken.rules, Rules)
        assert isinstance(taken.state, PodWorkerState)
        probes = _probes_of(taken.state, taken.rules.probes)
        recorded.append(
            RecordedStep(
                taken.at,
                type(taken.event).__name__,
                _event_fields(taken.event),
                changed_fields(taken.state, taken.after),
                tuple(command_fields(command) for command in taken.commands),
                None if probes == before else probes,
            )
        )
        before = probes
    made = Recording(VERSION, agent, rules.crash, rules.resync_s, first, tuple(recorded))
    return as_document(made)


def _probes_of(state: PodWorkerState, probes: ProbeResults) -> RecordedProbes:
    view = state.view
    ids = {container.id for container in view.containers} if view is not None else set()
    kept = sorted((key[0], key[1], result) for key, result in probes.results.items() if key[0] in ids)
    return RecordedProbes(tuple(kept), probes.watched)


def _event_fields(event: Value) -> Document:
    fields = _fields(event)
    if "probes" in fields:
        del fields["probes"]  # the results of all pods; the step has the pod's own
    return fields


def command_fields(command: Value | Command) -> Document:
    """The type and the fields of a command, but for those that repeat the state."""
    fields = {name: value for name, value in _fields(command).items() if name not in _REPEATED}
    return {"type": type(command).__name__, **fields}


def changed_fields(before: Value, after: Value) -> Document:
    """The fields that differ in two states, as `after` has them."""
    names = before.__struct_fields__
    return {name: now for name in names if (now := getattr(after, name)) != getattr(before, name)}


def _fields(value: Value) -> Document:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def as_document(value: object) -> Document:
    """The value as plain objects for JSON."""
    plain = msgspec.to_builtins(value, str_keys=True)
    assert isinstance(plain, dict)
    return plain
