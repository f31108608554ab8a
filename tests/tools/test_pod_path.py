"""The length of a static pod's way through the code, which may only get shorter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: The files and the switches of tasks on the causal path, and the updates of the roster. Wanted: at most 100, 15 and 2. A change that
#: lowers a number lowers it here too.
FILES, SWITCHES, UPDATES = 100, 13, 1
#: The same of switches and updates for a pod that gets a CPU of its own.
GUARANTEED_SWITCHES, GUARANTEED_UPDATES = 16, 2
#: So much lower than here a number may be, for changes that are merged one after the other.
LAG = 8
#: The command that lists what was counted.
LISTING = "PYTHONPATH=tests:tools .venv/bin/python -m pod_path --files --switches"


def measured(*options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pod_path", "--json", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), str(ROOT / "tools"), *sys.path))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return measured()


def test_the_way_of_a_pod_is_not_longer_than_before(report: dict[str, Any]) -> None:
    files, switches = len(report["causal"]["files"]), len(report["causal"]["switches"])
    found = {"FILES": (files, FILES), "SWITCHES": (switches, SWITCHES), "UPDATES": (report["roster_updates"], UPDATES)}
    longer = {name: f"{now}, at most {most} before" for name, (now, most) in found.items() if now > most}
    assert not longer, f"shorten the way, or raise the constant and give the reason in the commit: {LISTING}"
    assert not {name: number for name, number in found.items() if number[0] < number[1] - LAG}, "lower them here"


def test_the_way_of_a_pod_with_a_cpu_of_its_own_is_not_longer_than_before() -> None:
    report = measured("--guaranteed")
    assert "provide/placement/loop.py" in report["causal"]["files"]
    found = len(report["causal"]["switches"]), report["roster_updates"]
    assert found <= (GUARANTEED_SWITCHES, GUARANTEED_UPDATES), f"the way is longer than before: {LISTING} --guaranteed"
    assert report["roster_updates"] <= GUARANTEED_UPDATES


def test_each_run_gives_the_same_numbers(report: dict[str, Any]) -> None:
    again = measured()
    assert again["causal"] == report["causal"]
    assert again["roster_updates"] == report["roster_updates"]


def test_the_causal_path_has_what_the_start_needs_and_nothing_else(report: dict[str, Any]) -> None:
    files, whole = report["causal"]["files"], report["whole"]["files"]
    needed = {
        "desired/sources/file.py",
        "desired/roster/loop.py",
        "provide/volumes/kinds/empty_dir.py",
        "act/pods/worker.py",
        "provide/images/execute.py",
        "edges/cri/client.py",
    }
    assert needed <= files.keys()
    assert "provide/placement/loop.py" not in files  # the pod gets nothing of its own
    assert "report/status/loop.py" in whole.keys() - files.keys()  # a container starts before the status is reported
    assert not [file for file in files if not (ROOT / "src/pykubelet" / file).is_file()]
