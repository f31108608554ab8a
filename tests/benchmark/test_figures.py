"""How the benchmark's samples become figures and rows."""

from __future__ import annotations

import pytest

from bench.stats import Spread, percentile, spread, without_idle
from bench.table import Figure, render_row, render_table


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([1, 2], 0.5) == 1.5
    assert percentile([7], 0.9) == 7
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_few_samples_show_their_extremes_and_many_their_percentiles() -> None:
    assert spread([4, 1, 9]) == Spread(4, 1, 9, 3)
    assert spread(list(range(101))) == Spread(50, 10, 90, 101)


def test_idle_cost_is_taken_off_but_never_below_nothing() -> None:
    assert without_idle(0.5, 10, 0.02) == pytest.approx(0.3)
    assert without_idle(0.1, 10, 0.02) == 0


def spread_of(value: float) -> Spread:
    return Spread(value, value, value, 1)


def test_a_row_states_whether_the_reach_is_met() -> None:
    met = Figure("start", "ms", spread_of(104), spread_of(100), 105, "<= 1.05 x baseline", "1.0 x")
    assert render_row(met) == ("start", "100 ms", "104 ms", "1.04", "<= 1.05 x baseline", "1.0 x", "reached")
    missed = Figure("RSS", "MiB", spread_of(90.24), None, 85, "<= 85 MiB")
    assert render_row(missed) == ("RSS", "-", "90.2 MiB", "-", "<= 85 MiB", "-", "MISSED")
    for median, verdict in ((94, "MISSED"), (95, "reached"), (110, "reached"), (111, "MISSED")):
        assert render_row(Figure("start", "ms", spread_of(median), spread_of(100), 110, minimum=95))[-1] == verdict
    assert render_row(Figure("extra", "s", Spread(1, 0.5, 2, 3)))[2:] == ("1.00 s (0.50..2.00, n=3)", "-", "-", "-", "")


def test_the_table_is_aligned() -> None:
    lines = render_table([Figure("a", "ms", spread_of(1)), Figure("a longer name", "ms", spread_of(2))]).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
