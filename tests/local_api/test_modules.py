"""What the running program does not load, because it would cost memory on every machine."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["cryptography", "urllib.request", "email", "tempfile", "pykubelet.app.flags_table"])
def test_a_module_that_takes_memory_is_not_loaded(module: str) -> None:
    program = (
        "import sys, pykubelet.app.cli, pykubelet_local_api.program, pykubelet_local_api.wiring; print(*sys.modules)"
    )
    loaded = subprocess.run((sys.executable, "-c", program), capture_output=True, check=True, text=True).stdout.split()
    assert "pykubelet_local_api.access.tokens" in loaded
    assert module not in loaded
