"""Keys are made by a process that runs nothing but our own modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_AGENT = """
import asyncio
from pykubelet.edges.identity.keys import make_self_signed
print(asyncio.run(make_self_signed("n", ("n",), ())).certificate)
"""


@pytest.mark.parametrize(
    ("options", "variables"),
    [(("-P",), {}), (("-I",), {}), (("-I",), {"PYTHONPATH": "."}), (("-E", "-P"), {"PYTHONPATH": "."})],
)
def test_modules_that_the_agent_would_not_import_are_not_run(
    tmp_path: Path, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    """Root may start the agent in a directory where others write, and with variables that the agent ignores."""
    marker = tmp_path / "ran"
    for name in ("base64.py", "json.py", "datetime.py", "cryptography.py", "sitecustomize.py", "pykubelet.py"):
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'a').write('{name} ')\n")
    ended = subprocess.run(
        [sys.executable, *options, "-c", _AGENT],
        cwd=tmp_path,
        env={**os.environ, **{name: str(tmp_path / value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not marker.exists(), marker.read_text()
    assert ended.stdout.startswith("-----BEGIN CERTIFICATE-----"), ended.stderr
