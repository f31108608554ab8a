"""Runs a whole agent between doubles in a process with namespaces of its own (`launch.sh`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run(folder: Path, module: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """What `python -m hostile.specs.MODULE FOLDER ARGUMENTS...` prints."""
    folder.mkdir()
    tests = HERE.parent.parent
    paths = os.pathsep.join(str(path) for path in (tests, tests.parent / "tools", *sys.path) if str(path))
    command = ["sh", str(HERE / "launch.sh"), sys.executable, module, str(folder), *arguments]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, f"{output[-2000:]}\n{errors[-4000:]}\nthe agent's log: {folder}.log"
    return map(json.loads, output.splitlines())
