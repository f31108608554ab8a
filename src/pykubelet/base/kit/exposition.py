"""Metrics as text, in Prometheus' exposition format. Pure.

Owns: escaping, numbers, and the order of lines. Source: the Prometheus documentation "Exposition formats".
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from pykubelet.base.kit.metrics import Labels, MetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
#: Whole numbers below this are written without a fraction and exactly.
_EXACT = 10**15
_UNUSUAL = {float("inf"): "+Inf", float("-inf"): "-Inf"}


class _Labels(dict[Labels, str]):
    """A cache of labels as text, because many families have the same or similar labels."""

    def __init__(self) -> None:
        self._pairs = _Pairs()

    def __missing__(self, labels: Labels) -> str:
        text = "{" + ",".join(map(self._pairs.__getitem__, labels)) + "}" if labels else ""
        self[labels] = text
        return text


class _Pairs(dict[tuple[str, str], str]):
    """A cache of single labels with their values as text."""

    def __missing__(self, pair: tuple[str, str]) -> str:
        text = self[pair] = f'{pair[0]}="{_escaped(pair[1])}"'
        return text


class _Numbers(dict[float, str]):
    """A cache of values as text, because many values are equal."""

    def __missing__(self, value: float) -> str:
        text = self[value] = _number(value)
        return text


def render_metrics(families: Iterable[MetricFamily]) -> bytes:
    """Render metric families. Families without samples are left out."""
    lines: list[str] = []
    labels, numbers = _Labels(), _Numbers()
    at: float | None = None
    stamp = ""
    for family in families:
        name = family.name
        before = len(lines)
        lines += (f"# HELP {name} {_help(family.help)}", f"# TYPE {name} {family.kind}")
        for sample in family.samples:
            if sample.at != at:
                at = sample.at
                stamp = f" {int(at * 1000)}" if at is not None else ""
            lines.append(f"{name}{sample.suffix}{labels[sample.labels]} {numbers[sample.value]}{stamp}")
        if len(lines) == before + 2:
            del lines[before:]
    lines.append("")
    return "\n".join(lines).encode()


def with_labels(labels: Labels, *more: tuple[str, str]) -> Labels:
    """Add labels to sorted labels, keeping the order."""
    found = list(labels)
    for pair in more:
        insort(found, pair)
    return tuple(found)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value) if abs(value) < _EXACT else repr(float(value))
    if value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return _UNUSUAL.get(value) or ("NaN" if value != value else repr(value))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
