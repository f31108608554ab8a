"""Nothing stays of pods that have gone, whatever they were; tests/longlife/README.md has the figures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from longlife.launch import run

#: Pods before the first look, and between that and the last.
FEW, ALL = ("200", "350"), ("3000", "10000")
SEED = "1"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts and namespaces")
@pytest.mark.parametrize("counts", [FEW, pytest.param(ALL, marks=pytest.mark.crash)], ids=["few", "10,000"])
def test_nothing_grows_with_pods_that_have_gone(counts: tuple[str, ...], tmp_path: Path) -> None:
    run(tmp_path / "node", "churn", SEED, *counts)
