"""A month of the whole agent in minutes; what it checks is in tests/longlife/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from longlife.launch import run


@pytest.mark.integration
@pytest.mark.crash
@pytest.mark.parametrize("calendar", ["week", "month"])
def test_long_life_leaves_nothing_behind_and_every_pod_right(calendar: str, tmp_path: Path) -> None:
    run(tmp_path / "node", "month", calendar)
