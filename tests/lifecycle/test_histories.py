"""Histories of a node from random numbers: pods in all stages of their lives, and everything that may interrupt them.

The whole agent runs under virtual time on doubles of the runtime, the API server and the host. Events and statuses of the runtime
come late and in any order. What the agent does and reports is compared with `model.py`, which has the documented semantics.
A process of its own for each range of seeds: one seed gives the same history each time. CONTRIBUTING.md has the command for one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: Seeds of `make unit`, and of `make test-crash`.
FEW = [f"{first}-{first + 9}" for first in range(0, 40, 10)]
MANY = [f"{first}-{first + 49}" for first in range(40, 240, 50)]
LIMIT_S = 1800.0


def live(seeds: str, folder: Path, *more: str) -> tuple[int, str]:
    """The exit code and the report of the histories of these seeds."""
    paths = os.pathsep.join(str(path) for path in (TESTS, TESTS.parent / "tools", *sys.path) if str(path))
    done = subprocess.run(
        [sys.executable, "-m", "lifecycle.history", seeds, *more],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("seeds", [*FEW, *(pytest.param(seeds, marks=pytest.mark.crash) for seeds in MANY)])
def test_a_node_does_and_reports_what_the_model_has(seeds: str, tmp_path: Path) -> None:
    code, report = live(seeds, tmp_path)
    if code:
        pytest.fail(report[-200_000:], pytrace=False)


def test_one_seed_gives_the_same_history_each_time(tmp_path: Path) -> None:
    reports = [live("7", tmp_path, "--verbose", "--steps", "4")[1] for _ in range(2)]
    assert re.search(r"^ *[0-9.]+ the agent starts$", reports[0], re.MULTILINE)
    assert reports[0] == reports[1]
