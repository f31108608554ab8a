"""CPU rates from two readings, and the earlier reading that is used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.model.usage import CpuUse, GroupUse, MemoryUse
from pykubelet.observe.stats.rates import RATE_OVER_S, CpuTotals, Readings, add_reading, base_of, with_rate

WALL = 1_700_000_000.0
SECOND = 1_000_000_000


def group(total_ns: int, at: float = WALL) -> GroupUse:
    return GroupUse(at, CpuUse(total_ns), MemoryUse(), path="/p")


@pytest.mark.parametrize(
    ("base", "started_at", "rate"),
    [
        (CpuTotals(10.0, {"/p": SECOND}), None, SECOND // 2),
        (CpuTotals(10.0, {"/p": SECOND}), WALL - 1.5, SECOND // 2),
        (CpuTotals(10.0, {"/q": 1}), None, None),
        (CpuTotals(10.0, {"/q": 1}), WALL - 4, SECOND // 2),
        (CpuTotals(10.0, {"/q": 1}), WALL + 4, None),
        (CpuTotals(10.0, {"/p": 9 * SECOND}), None, None),
        (CpuTotals(10.0, {"/p": 9 * SECOND}), WALL - 4, SECOND // 2),
        (CpuTotals(12.0, {"/p": SECOND}), None, None),
        (None, None, None),
        (None, WALL - 4, SECOND // 2),
        (None, WALL - 0.001, 2 * SECOND),
        (None, WALL, 2 * SECOND),
    ],
)
def test_rates(base: CpuTotals | None, started_at: float | None, rate: int | None) -> None:
    """Two seconds of CPU were used until the twelfth second."""
    assert with_rate(group(2 * SECOND), 12.0, base, started_at).nano_cores == rate


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30), st.floats(0, 100))
def test_a_rate_covers_some_seconds_as_soon_as_a_reading_is_that_old(steps: list[float], last: float) -> None:
    now, readings, times = 0.0, Readings(), list[float]()
    for step in steps:
        now += step
        times.append(now)
        readings = add_reading(readings, CpuTotals(now, {}))
        assert len(readings) <= 2
    now += last
    base = base_of(readings, now)
    assert base is not None
    if now - times[0] >= RATE_OVER_S:
        assert now - base.at >= RATE_OVER_S
        # not much older than it must be: readings since then are missing
        newer = [at for at in times if base.at + RATE_OVER_S <= at <= now - RATE_OVER_S]
        assert len(newer) <= 1


def test_without_a_reading_there_is_no_base() -> None:
    assert base_of((), 5.0) is None
