"""Recordings of a pod's state machine: what is recorded runs again to the same end, and what differs is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from act.pods.playbook import RULES
from act.pods.scenes import REF, WALL, box, container, exited, pod, view
from act.pods.test_recording import document

from pykubelet.act.pods.backoff import RestartVerdict
from pykubelet.act.pods.decide import step
from pykubelet.act.pods.model import PodWorkerState, RuntimeChanged
from pykubelet.act.pods.recording import record
from pykubelet.act.pods.restarts import AskForRestart
from pykubelet.base.kit.values import replace
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.diagnostics import StepLog, WorkerStep
from pykubelet.base.model.lifecycle import Stage
from pykubelet_offline import replay as command
from pykubelet_offline.pod_replay import RecordingError, parse, replay

NEVER = """
from pykubelet.extension import Extension, RestartNever


class Never(Extension):
    name, api = "never", "1.0"

    def restart(self, container, history):
        return RestartNever("it is broken")
"""
VERSION_1 = Path(__file__).with_name("recording_v1.json")


def test_a_recording_runs_again_to_the_same_end() -> None:
    recording = parse(json.dumps(document()).encode())
    replayed = replay(recording, container_hash)
    assert [step.event_type for step in replayed] == [
        "RuntimeChanged",
        "SyncEnded",
        "RuntimeChanged",
        "KillRequested",
        "StopEnded",
    ]
    assert [step.differences for step in replayed] == [()] * 5
    assert [command["type"] for command in replayed[0].commands][:1] == ["Sync"]
    assert replayed[3].changed["stage"] == "terminating"


VERDICT = RestartVerdict("three-tries", 7.5)


def crashed(ask: AskForRestart | None) -> bytes:
    """The recording of a pod with a container that has crashed."""
    rules = replace(RULES, ask_extensions=ask)
    state = PodWorkerState(ref=REF, pod=pod(container("app")), stage=Stage.SYNCING, started_wall=WALL)
    log = StepLog()
    for at in (1.0, 2.0):
        event = RuntimeChanged(view(box(0), exited("app", code=1, ended=WALL), read_at=at), WALL)
        after, commands = step(state, event, at, rules)
        log.append(WorkerStep(at, state, event, rules, after, commands))
        state = after
    return json.dumps(record(log, "1.0")).encode()


def test_the_answers_of_extensions_are_part_of_a_recording() -> None:
    replayed = replay(parse(crashed(lambda facts: VERDICT)), container_hash)
    assert [step.differences for step in replayed] == [(), ()]
    assert "three-tries" in json.dumps(replayed[0].changed)


def test_other_extensions_are_tried_on_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, extension = tmp_path / "recording.json", tmp_path / "never.py"
    recording.write_bytes(crashed(None))
    extension.write_text(NEVER)
    assert command.main([str(recording)]) == 0
    assert command.main([str(recording), "--extension", str(extension)]) == 3
    shown = capsys.readouterr().out
    assert "-> ReportStay container=app" in shown and "1 of 2 steps came out differently" in shown


def test_a_recording_of_version_1_runs_again_to_the_same_end() -> None:
    """A pod with failures of all kinds: no sandbox, failed starts, crashes, probes, a lost sandbox, a resize, a restart of all."""
    recording = parse(VERSION_1.read_bytes())
    replayed = replay(recording, container_hash)
    assert len(replayed) == len(recording.steps) == 45
    assert [(number, step.differences) for number, step in enumerate(replayed) if step.differences] == []


def test_a_step_that_came_out_differently_is_named_with_field_and_values() -> None:
    changed = document()
    changed["steps"][3]["changed"]["stage"] = "finished"
    changed["steps"][0]["commands"] = []
    replayed = replay(parse(json.dumps(changed).encode()), container_hash)
    assert replayed[3].differences == ('stage: recorded "finished", now "terminating"',)
    assert replayed[0].differences[0].startswith('commands: recorded none, now [{"type":"Sync"')
    assert not replayed[1].differences


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a recording"),
        (b'{"version": 7, "steps": []}', "version: 7 is not supported"),
        (b'{"version": 2, "agent": "1", "steps": []}', "missing required field"),
        (b'{"version": 1, "agent": "1", "steps": []}', "not a recording of version 1: KeyError"),
        (b'{"version": 1, "state": {}, "steps": [7]}', "not a recording of version 1: TypeError"),
    ],
)
def test_what_is_no_recording_is_refused_with_the_reason(data: bytes, expected: str) -> None:
    with pytest.raises(RecordingError, match=expected):
        parse(data)


def test_an_event_that_is_unknown_or_malformed_is_refused_by_its_place() -> None:
    unknown, malformed = document(), document()
    unknown["steps"][1]["event_type"] = "Exploded"
    malformed["steps"][0]["event"]["wall"] = "noon"
    with pytest.raises(RecordingError, match=r"steps\[1\].event_type: 'Exploded' is no event of a pod"):
        replay(parse(json.dumps(unknown).encode()), container_hash)
    with pytest.raises(RecordingError, match=r"steps\[0\].event: .*wall"):
        replay(parse(json.dumps(malformed).encode()), container_hash)


def test_the_command_shows_the_steps_and_exits_with_3_on_a_difference(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(document()))
    changed = document()
    changed["steps"][3]["changed"]["stage"] = "finished"
    bad.write_text(json.dumps(changed))
    assert command.main([str(good)]) == 0
    shown = capsys.readouterr().out
    assert "RuntimeChanged (runtime changed)" in shown and "-> Sync plan=" in shown
    assert shown.endswith("every step came out as recorded\n")
    assert command.main([str(bad)]) == 3
    assert 'DIFFERS stage: recorded "finished", now "terminating"' in capsys.readouterr().out
    assert command.main([str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
