"""Runs the recorded steps of a pod's state machine again, and compares the results. Pure.

The recordings are those of `pykubelet/act/pods/recording.py`, of its version or of version 1. On the version of the agent that made the
recording nothing differs. On another version, or after a change of the state machine, the differences show what it would do now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec

from pykubelet.act.pods.backoff import RestartVerdict
from pykubelet.act.pods.decide import Rules, step
from pykubelet.act.pods.model import Event, PodWorkerState
from pykubelet.act.pods.recording import (
    VERSION,
    Document,
    RecordedProbes,
    RecordedStep,
    Recording,
    as_document,
    changed_fields,
    command_fields,
)
from pykubelet.act.pods.restarts import AskForRestart, RestartFacts
from pykubelet.act.runtime.plan.plan import HashOf
from pykubelet.base.kit.values import Value
from pykubelet.base.model.probes import ProbeResults
from pykubelet_offline.recording_v1 import upgraded

_EVENTS: Mapping[str, Any] = {kind.__name__: kind for kind in get_args(Event)}


class RecordingError(ValueError):
    """The document is not a recording that this version can read. The text names the wrong field."""


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


def replay(
    recording: Recording, hash_of: HashOf, ask_extensions: AskForRestart | None = None
) -> tuple[ReplayedStep, ...]:
    """Run the recorded events through the state machine again, each on the state after the previous one.

    `ask_extensions`: asked about restarts. None: the answers are those of the recorded node.
    """
    rules = Rules(hash_of, recording.crash, recording.resync_s, ProbeResults(), ask_extensions)
    state, done = recording.state, []
    asks = any(_recorded_verdicts(recorded) for recorded in recording.steps)
    for number, recorded in enumerate(recording.steps):
        if recorded.probes is not None:
            rules = msgspec.structs.replace(rules, probes=_results_of(recorded.probes))
        if asks and ask_extensions is None:
            rules = msgspec.structs.replace(rules, ask_extensions=_verdicts_of(recorded))
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
        changed = as_document(changed_fields(state, after))
        given = tuple(as_document(command_fields(command)) for command in commands)
        differences = (
            *_differing(_with_defaults(recorded.changed), changed),
            *_differing_commands(recorded.commands, given),
        )
        done.append(ReplayedStep(recorded.at, recorded.event_type, cause, changed, given, differences))
        state = after
    return tuple(done)


def _recorded_verdicts(recorded: RecordedStep) -> Document:
    back_offs = recorded.changed.get("back_offs")
    found = back_offs.get("verdicts") if isinstance(back_offs, dict) else None
    return found if isinstance(found, dict) else {}


def _verdicts_of(recorded: RecordedStep) -> AskForRestart:
    """What answers as the extensions of the recorded node did in this step."""
    verdicts = _recorded_verdicts(recorded)

    def ask(facts: RestartFacts) -> RestartVerdict | None:
        return msgspec.convert(verdicts.get(facts.past[0].instance), RestartVerdict | None)

    return ask


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


def _with_defaults(changed: Document) -> Document:
    """The recorded fields of a state; what values have got since the recording has its default."""
    types = {field.name: field.type for field in msgspec.structs.fields(PodWorkerState)}
    found = {}
    for name, value in changed.items():
        try:
            found[name] = as_document({name: msgspec.convert(value, types[name])})[name]
        except (KeyError, msgspec.ValidationError):
            found[name] = value  # it is shown as a difference
    return found


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
