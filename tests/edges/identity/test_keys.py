"""Keys are made by a process that runs nothing but our own modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_AGENT = """
import asyncio
from pykubelet.edges.identity.keys import make_self_signed
print(asyncio.run(make_self_signed("n", ("n",), ())).certificate)
"""


def test_modules_in_the_current_directory_are_not_run(tmp_path: Path) -> None:
    """Root may start the agent in a directory where others write."""
    marker = tmp_path / "ran"
    for name in ("base64.py", "json.py", "datetime.py", "cryptography.py", "sitecustomize.py", "pykubelet.py"):
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'a').write('{name} ')\n")
    ended = subprocess.run(
        [sys.executable, "-P", "-c", _AGENT], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert not marker.exists(), marker.read_text()
    assert ended.stdout.startswith("-----BEGIN CERTIFICATE-----"), ended.stderr
