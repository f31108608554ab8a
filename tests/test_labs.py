"""The labs for courses (docs/labs): each exercise fails its tests as it is given out, and the solution passes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LABS = sorted(path for path in (ROOT / "docs/labs").iterdir() if path.is_dir() and not path.name.startswith("_"))


def run(lab: Path, file: str) -> tuple[int, int]:
    """How many tests pass, and how many fail."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", str(lab)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"LAB": file}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    passed, failed = (re.search(rf"(\d+) {word}", done.stdout) for word in ("passed", "failed"))
    return int(passed[1]) if passed else 0, int(failed[1]) if failed else 0


def test_there_are_five() -> None:
    assert len(LABS) == 5
    index = (ROOT / "docs/labs/README.md").read_text()
    assert all(f"]({lab.name}/README.md)" in index for lab in LABS)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_a_lab_can_be_solved_and_is_not_solved_yet(lab: Path) -> None:
    passed, failed = run(lab, "solution.py")
    assert passed >= 5 and failed == 0
    _, failed = run(lab, "exercise.py")
    assert failed >= 2
