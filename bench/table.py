"""Figures, and the table of them. Pure.

A figure is a number with its baseline (where raw runtime calls have one) and the limit that it has to meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.stats import Spread

HEADINGS = ("figure", "baseline", "agent", "ratio", "target", "Go kubelet", "")


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. `limit` is the greatest allowed median in `unit`, with `at_least` the smallest; None: for information only.

    `minimum`: the smallest allowed median beside a greatest one: below it, agent and baseline were not measured alike.
    `target` gives the limit in words, `go` what the Go kubelet needs, as far as that is known.
    """

    name: str
    unit: str
    agent: Spread
    baseline: Spread | None = None
    limit: float | None = None
    target: str = ""
    go: str = ""
    at_least: bool = False
    minimum: float | None = None

    @property
    def ratio(self) -> float | None:
        """The agent's median divided by the baseline's."""
        return self.agent.median / self.baseline.median if self.baseline is not None and self.baseline.median else None

    @property
    def is_reached(self) -> bool | None:
        """None: there is nothing to reach."""
        if self.limit is None:
            return None
        if self.minimum is not None and self.agent.median < self.minimum:
            return False
        return self.agent.median >= self.limit if self.at_least else self.agent.median <= self.limit


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def render_spread(spread: Spread | None, unit: str) -> str:
    """Median, range and number of samples."""
    if spread is None:
        return "-"
    if spread.count == 1:
        return f"{_number(spread.median)} {unit}"
    return f"{_number(spread.median)} {unit} ({_number(spread.low)}..{_number(spread.high)}, n={spread.count})"


def render_row(figure: Figure) -> tuple[str, ...]:
    """One row's cells, as HEADINGS names them."""
    verdict = {None: "", True: "reached", False: "MISSED"}[figure.is_reached]
    ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f}"
    return (
        figure.name,
        render_spread(figure.baseline, figure.unit),
        render_spread(figure.agent, figure.unit),
        ratio,
        figure.target or "-",
        figure.go or "-",
        verdict,
    )


def render_table(figures: Sequence[Figure]) -> str:
    """A Markdown table, aligned for reading as text too."""
    return render_rows([HEADINGS, *(render_row(figure) for figure in figures)])


def render_rows(rows: Sequence[Sequence[str]]) -> str:
    """The same of any rows, with the headings first."""
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def to_object(figure: Figure) -> dict[str, Any]:
    """The row for `--json`."""
    return asdict(figure) | {"ratio": figure.ratio, "reached": figure.is_reached}
