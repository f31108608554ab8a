"""`PYTHONPATH=tests:tools python -m pod_path [--files] [--switches] [--json]`: how long a static pod's way through the code is.

The pod has one container and one emptyDir, its image is on the node, and the CPU Manager has the static policy. Measured is what the
agent does from the event about the manifest to the call of StartContainer. The causal path is what this event has led to and what has
led to that call (`recording.py` defines causes); all work is everything that the agent does meanwhile. A switch is a step of a task
that another task has caused, directly or by callbacks, threads and other programs. The numbers are the same in every run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from pod_path.node import start_pod
from pod_path.paths import Size, causal_path, size_of
from pod_path.recording import Recorder, RecordingLoop

UPDATE = "RosterLoop._update"


@dataclass(frozen=True)
class Report:
    """`roster_updates`: how often the roster has computed its pods anew."""

    causal: Size
    whole: Size
    roster_updates: int


def measure(*, guaranteed: bool = False) -> Report:
    """Start the pod and measure its way."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w") as log, contextlib.redirect_stderr(log):
        recorder.install()
        try:
            with asyncio.Runner(loop_factory=lambda: RecordingLoop(recorder)) as runner:
                runner.run(start_pod(Path(folder, "node"), recorder, guaranteed=guaranteed))
        finally:
            recorder.end()
    assert recorder.last is not None
    calls = Counter(code.co_qualname for segment in recorder.segments for code in segment.calls.elements())
    path = causal_path(recorder.segments, recorder.last)
    return Report(size_of(path), size_of(recorder.segments), calls[UPDATE])


def render(report: Report, *, files: bool, switches: bool) -> list[str]:
    """The lines to print."""
    lines = [f"{'':12}{'files':>8}{'functions':>12}{'calls':>8}{'tasks':>8}{'switches':>10}{'threads':>9}"]
    for name, size in (("causal path", report.causal), ("all work", report.whole)):
        counts = (len(size.files), size.functions, size.calls, len(size.tasks), len(size.switches), len(size.threads))
        lines.append(f"{name:12}" + "".join(map(str.rjust, map(str, counts), (8, 12, 8, 8, 10, 9))))
    packages = Counter(file.split("/")[0] for file in report.causal.files)
    lines.append("files of the causal path: " + ", ".join(f"{name} {count}" for name, count in packages.most_common()))
    lines.append(f"updates of the roster: {report.roster_updates}")
    if files:
        lines += ["", "functions and file, causal path"]
        lines += [f"{count:4} {file}" for file, count in report.causal.files.items()]
    if switches:
        lines += ["", "task, the task that has woken it, the function that waited"]
        lines += [
            f"{number:3} {switch.task} <- {switch.woken_by}  {switch.waited_in}"
            for number, switch in enumerate(report.causal.switches, 1)
        ]
    return lines


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="pod_path", description="The length of a static pod's way through the code.")
    parser.add_argument(
        "--files", action="store_true", help="list the files of the causal path, with their functions called"
    )
    parser.add_argument("--switches", action="store_true", help="list the switches of tasks")
    parser.add_argument("--guaranteed", action="store_true", help="of a pod that gets a CPU of its own")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    report = measure(guaranteed=options.guaranteed)
    if options.json:
        print(json.dumps(asdict(report), indent=1))
    else:
        print("\n".join(render(report, files=options.files, switches=options.switches)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
