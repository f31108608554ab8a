"""`pykubelet replay FILE`: run the recorded steps of a pod worker, or of placement, again and compare the results.

`pykubelet explain POD --recording > FILE` writes the file on the node, `pykubelet explain node --recording` that of placement;
`kubectl get --raw /api/v1/nodes/NODE/proxy/debug/pods/NAMESPACE/POD/recording` gets a pod's from elsewhere. The command needs no
agent and changes nothing on the machine. Exit codes: 0 every step had the recorded result, 1 the file cannot be used,
2 wrong command line, 3 a step had another result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pykubelet.act.pods.recording import Recording
from pykubelet.base.kit.text import escape_controls
from pykubelet.base.model.containers import container_hash
from pykubelet.provide.placement.recording import KIND, PlacementRecording
from pykubelet_offline.extensions_used import ExtensionsUsed
from pykubelet_offline.placement_lines import placement_lines
from pykubelet_offline.placement_replay import PlacementRecordingError, parse_placement, replay_placement
from pykubelet_offline.pod_replay import RecordingError, ReplayedStep, parse, replay
from pykubelet_offline.simulate_decisions import add_extension_option
from pykubelet_offline.simulate_input import InputError

DIFFERENT = 3
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_VALUE_CHARS = 160


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="pykubelet replay",
        description="Run the recorded steps of a pod worker, or of placement, through this version's code, and compare.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "file", metavar="FILE", help="a recording, of `pykubelet explain POD|node --recording`; - reads stdin"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the fields of the state that each step changed"
    )
    add_extension_option(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    options = build_parser().parse_args(argv)
    try:
        data = _read(options.file)
        placement = _placement_in(data)
        with ExtensionsUsed(options.extension) as extensions:
            if placement is not None:
                own = extensions.policy
                replayed = replay_placement(placement, own[1] if own is not None else None)
                lines = list(placement_lines(placement, replayed))
                different = any(step.differences for step in replayed)
            else:
                recording = parse(data)
                steps = replay(recording, container_hash, extensions.points.restart)
                lines = _lines(recording, steps, verbose=options.verbose)
                different = any(step.differences for step in steps)
            extensions.report_failures()
    except (OSError, RecordingError, PlacementRecordingError, InputError) as error:
        print(f"Error: {options.file}: {escape_controls(str(error))}", file=sys.stderr)
        return 1
    for line in lines:
        print(escape_controls(line))
    return DIFFERENT if different else 0


def _placement_in(data: bytes) -> PlacementRecording | None:
    """The recording of placement; None if the file is another one."""
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return parse_placement(head) if isinstance(head, dict) and head.get("kind") == KIND else None


def _read(path: str) -> bytes:
    if path == "-":
        data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    else:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise RecordingError(f"larger than {MAX_FILE_BYTES} bytes")
    return data


def _lines(recording: Recording, steps: Sequence[ReplayedStep], *, verbose: bool) -> list[str]:
    lines = [f"Pod {recording.state.ref}, {len(recording.steps)} steps recorded by version {recording.agent}"]
    lines.append(f"stage {recording.state.stage}, work {recording.state.work}")
    start = recording.steps[0].at if recording.steps else 0.0
    for step in steps:
        because = f" ({step.cause})" if step.cause else ""
        lines.append(f"{step.at - start:+10.3f} s  {step.event_type}{because}")
        lines += [f"              {name} = {_short(value)}" for name, value in _shown(step.changed, verbose=verbose)]
        lines += [f"              -> {_command(command)}" for command in step.commands]
        lines += [f"              DIFFERS {line}" for line in step.differences]
    different = sum(1 for step in steps if step.differences)
    lines.append(
        f"{different} of {len(steps)} steps came out differently" if different else "every step came out as recorded"
    )
    if len(steps) < len(recording.steps):
        lines.append(f"{len(recording.steps) - len(steps)} steps were not run after the error")
    return lines


def _shown(changed: Mapping[str, Any], *, verbose: bool) -> list[tuple[str, Any]]:
    names = sorted(changed) if verbose else [name for name in ("stage", "work") if name in changed]
    return [(name, changed[name]) for name in names]


def _command(command: Mapping[str, Any]) -> str:
    fields = " ".join(
        f"{name}={_short(value)}" for name, value in command.items() if name != "type" and value not in ("", None)
    )
    return f"{command['type']} {fields}".rstrip()


def _short(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."
