"""Records the newest steps of a pod's state machine as a JSON document, and replays them. Pure.

A recording has the state before the first kept step. Each step has its time, the event, the probe results, the fields of
the state that it changed, and its commands. `replay` feeds the events to the state machine of `decide.py` again and
compares the results. On the version that made the recording nothing differs. On another version, or after a change of the
state machine, the differences show what it would do now. A recording contains the pod's whole specification, including
the values of environment variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec

from pykubelet.act.pods.decide import Rules, step
from pykubelet.act.pods.model import Command, Event, PodWorkerState
from pykubelet.act.pods.recording_v1 import upgraded
from pykubelet.act.runtime.plan.plan import HashOf
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import Value
from pykubelet.base.model.diagnostics import WorkerStep
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults

#: The version of the document. Version 1 is read too; others are refused.
VERSION = 2
_EVENTS: Mapping[str, Any] = {kind.__name__: kind for kind in get_args(Event)}
#: Fields of commands that repeat what the state holds.
_REPEATED = frozenset({"pod", "view", "applied"})

Document = dict[str, Any]


class RecordingError(ValueError):
    """The document is not a recording that this version can read. The text names the wrong field."""


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


class ReplayedStep(Value):
    """One replayed step: the new results, and their differences from the recording.

    `changed`: the changed fields of the state by name. `differences`: one line for each, empty if there are none. `error`: the
    error that the state machine raised; later steps are not run.
    """

    at: float
    event_type: str
    cause: str
    changed: Document
    commands: tuple[Document, ...]
    differences: tuple[str, ...]
    error: str = ""


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
                _changed(taken.state, taken.after),
                tuple(_command_fields(command) for command in taken.commands),
                None if probes == before else probes,
            )
        )
        before = probes
    made = Recording(VERSION, agent, rules.crash, rules.resync_s, first, tuple(recorded))
    plain = msgspec.to_builtins(made, str_keys=True)
    assert isinstance(plain, dict)
    return plain


def parse(data: bytes) -> Recording:
    """Parse a recording. RecordingError names the wrong field."""
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RecordingError(f"not JSON: {error}") from error
    if not isinstance(head, dict) or "steps" not in head:
        raise RecordingError("not a recording: there is no field steps (`pykubelet explain POD --recording` makes one)")
    if head.get("version") not in (1, VERSION):
        raise RecordingError(f"version: {head.get('version')!r} is not supported, only 1 to {VERSION}")
    if head["version"] == 1:
        try:
            head = upgraded(head)
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordingError(f"not a recording of version 1: {error!r}") from error
    try:
        return msgspec.convert(head, Recording)
    except msgspec.ValidationError as error:
        raise RecordingError(str(error)) from error


def replay(recording: Recording, hash_of: HashOf) -> tuple[ReplayedStep, ...]:
    """Run the recorded events through the state machine again, each on the state after the previous one."""
    rules = Rules(hash_of, recording.crash, recording.resync_s, ProbeResults())
    state, done = recording.state, []
    for number, recorded in enumerate(recording.steps):
        if recorded.probes is not None:
            rules = Rules(hash_of, recording.crash, recording.resync_s, _results_of(recorded.probes))
        event = _event_of(recorded, number)
        cause = str(recorded.event.get("cause", ""))
        if hasattr(event, "probes"):  # a recorded event has no probe results of its own
            event = msgspec.structs.replace(event, probes=rules.probes)
        try:
            after, commands = step(state, event, recorded.at, rules)
        except Exception as error:  # noqa: BLE001 - an edited machine may raise anything; that is what a replay is for
            done.append(
                ReplayedStep(recorded.at, recorded.event_type, cause, {}, (), (f"raised {error!r}",), repr(error))
            )
            break
        changed = _plain(_changed(state, after))
        given = tuple(_plain(_command_fields(command)) for command in commands)
        differences = (*_differing(recorded.changed, changed), *_differing_commands(recorded.commands, given))
        done.append(ReplayedStep(recorded.at, recorded.event_type, cause, changed, given, differences))
        state = after
    return tuple(done)


# Into the document


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


def _command_fields(command: Value | Command) -> Document:
    fields = {name: value for name, value in _fields(command).items() if name not in _REPEATED}
    return {"type": type(command).__name__, **fields}


def _changed(before: Value, after: Value) -> Document:
    names = before.__struct_fields__
    return {name: now for name in names if (now := getattr(after, name)) != getattr(before, name)}


def _fields(value: Value) -> Document:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _plain(fields: Document) -> Document:
    plain = msgspec.to_builtins(fields, str_keys=True)
    assert isinstance(plain, dict)
    return plain


# Out of the document


def _results_of(probes: RecordedProbes) -> ProbeResults:
    return ProbeResults({(instance, kind): result for instance, kind, result in probes.results}, probes.watched)


def _event_of(recorded: RecordedStep, number: int) -> Any:
    kind = _EVENTS.get(recorded.event_type)
    if kind is None:
        raise RecordingError(f"steps[{number}].event_type: {recorded.event_type!r} is no event of a pod")
    fields = {**recorded.event, "probes": {}} if "probes" in kind.__struct_fields__ else recorded.event
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise RecordingError(f"steps[{number}].event: {error}") from error


def _differing(recorded: Document, now: Document) -> list[str]:
    return [
        f"{name}: recorded {_short(recorded, name)}, now {_short(now, name)}"
        for name in sorted({*recorded, *now})
        if _canonical(recorded.get(name)) != _canonical(now.get(name)) or (name in recorded) != (name in now)
    ]


def _differing_commands(recorded: Sequence[Document], now: Sequence[Document]) -> list[str]:
    if [_canonical(command) for command in recorded] == [_canonical(command) for command in now]:
        return []
    return [f"commands: recorded {_named(recorded)}, now {_named(now)}"]


def _canonical(value: object) -> object:
    """The value in a form for comparison: sets have no order and become lists in JSON."""
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_canonical(item) for item in value]
        return sorted(items, key=repr)
    return value


def _short(fields: Document, name: str) -> str:
    if name not in fields:
        return "unchanged"
    text = msgspec.json.encode(fields[name]).decode()
    return text if len(text) <= 200 else f"{text[:200]}..."


def _named(commands: Sequence[Document]) -> str:
    return msgspec.json.encode(commands).decode() if commands else "none"
