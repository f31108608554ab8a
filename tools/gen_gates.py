"""Generates the table of ``docs/feature-gates.md`` from ``config/gates.py``: every gate, its stages, and what it does here.

Usage: ``python tools/gen_gates.py`` writes the page anew. ``tests/test_gates_page.py`` fails while it is not current.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pykubelet.base.model.version import CURRENT, Release
from pykubelet.config.gates import EITHER_WAY, FIXED, Gate, all_gates, kubelet_gates, settable_gates

PAGE = Path(__file__).parents[1] / "docs" / "feature-gates.md"
BEGIN, END = "<!-- begin of the generated tables -->", "<!-- end of the generated tables -->"


def stage(gate: Gate | None) -> str:
    """A gate in one release, as the page shows it."""
    if gate is None:
        return "-"
    return f"{gate.stage.value} {'on' if gate.default else 'off'}{', locked' if gate.locked else ''}"


def effect(name: str) -> str:
    """What a gate of the kubelet does in this agent."""
    if name in FIXED:
        fixed = FIXED[name]
        when = "always" if fixed.since is min(Release) else f"since {fixed.since} always"
        return f"{when} {'on' if fixed.on else 'off'}: {fixed.why}"
    if name in EITHER_WAY:
        return "both values have the same effect"
    if any(name in settable_gates(release) for release in Release):
        return "switches its feature"
    return "its feature is always " + ("on" if list(all_gates()[name].values())[-1].default else "off")


def rows(of_kubelet: bool) -> Iterator[str]:
    """The rows of the gates that the kubelet reads, or of those of other components."""
    ours = frozenset[str]().union(*(kubelet_gates(release) for release in Release))
    head = ("Gate", *(f"{release}" for release in Release), *(("Here",) if of_kubelet else ()))
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for name, stages in sorted(all_gates().items(), key=lambda item: item[0].lower()):
        if (name in ours) is of_kubelet:
            cells = (f"`{name}`", *(stage(stages.get(release)) for release in Release))
            yield f"| {' | '.join((*cells, effect(name)) if of_kubelet else cells)} |"


def page(old: str) -> str:
    """The page with tables made anew."""
    head, tail = old.partition(BEGIN)[0], old.partition(END)[2]
    parts = (
        "",
        "## Gates that the kubelet reads",
        "",
        *rows(True),
        "",
        "## Gates of other components",
        "",
        *rows(False),
        "",
    )
    return "\n".join((head + BEGIN, *parts, END)) + tail


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(f"{PAGE}: {len(all_gates())} gates, Kubernetes {CURRENT}")
