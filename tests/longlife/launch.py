"""Runs a whole agent in virtual time in a process with namespaces of its own (`launch.sh`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIMIT_S = 3600.0
HERE = Path(__file__).parent


def run(folder: Path, module: str, *arguments: str) -> None:
    """Run `python -m longlife.MODULE FOLDER ARGUMENTS...`. AssertionError if something was not as it should be."""
    folder.mkdir()
    tests = HERE.parent
    paths = os.pathsep.join(str(path) for path in (tests, tests.parent / "tools", *sys.path) if str(path))
    command = ["sh", str(HERE / "launch.sh"), sys.executable, module, str(folder), *arguments]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}\nthe agent's log: {folder}.log"
