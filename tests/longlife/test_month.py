"""A month of the whole agent in minutes; what it checks is in tests/longlife/README.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 3600.0
HERE = Path(__file__).parent


@pytest.mark.integration
@pytest.mark.parametrize("calendar", ["week", pytest.param("month", marks=pytest.mark.crash)])
def test_long_life_leaves_nothing_behind_and_every_pod_right(calendar: str, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    tests = HERE.parent
    paths = os.pathsep.join(str(path) for path in (tests, tests.parent / "tools", *sys.path) if str(path))
    command = ["sh", str(HERE / "launch.sh"), sys.executable, str(folder), calendar]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}\nthe agent's log: {folder}.log"
