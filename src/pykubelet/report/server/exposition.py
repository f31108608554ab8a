"""Metrics as text, in Prometheus' exposition format. Pure.

Owns: escaping, numbers and the order of lines. Source: the Prometheus documentation "Exposition formats".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.kit.metrics import Family, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(families: Iterable[Family]) -> bytes:
    """Families without samples are left out."""
    lines: list[str] = []
    for family in families:
        samples = list(family.samples)
        if not samples:
            continue
        lines.append(f"# HELP {family.name} {_help(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [_line(family.name, sample) for sample in samples]
    return ("\n".join(lines) + "\n").encode() if lines else b""


def labelled(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Labels in the order of their names."""
    return tuple(sorted(labels.items()))


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels)
    text = f"{name}{sample.suffix}{{{labels}}}" if labels else f"{name}{sample.suffix}"
    stamp = f" {int(sample.at * 1000)}" if sample.at is not None else ""
    return f"{text} {_number(sample.value)}{stamp}"


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
