"""The measurement of admissions fills a machine, and its row can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import placement
from bench.runtime import BenchError
from bench.stats import spread
from bench.table import Figure


def test_the_machine_is_filled() -> None:
    times, texts = placement.measure_admissions(60)
    assert len(times) == 60
    assert 20 < len(texts) < 60
    assert Figure("admission", "ms", spread([placement.MOST_MS * 2]), limit=placement.MOST_MS).is_reached is False


def test_a_machine_that_is_never_full_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text("coresPerSocket: 2000\nmemoryPerNode: 100Ti\n")
    monkeypatch.setattr(placement, "MACHINE", file)
    with pytest.raises(BenchError, match="of 10 pods 10 were admitted"):
        placement.measure_admissions(10)
