"""The end of a run of parts: how long each took, and one line in pytest's form with the sum of all."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

_KINDS = ("failed", "passed", "skipped", "errors")


def show(results: Path, seconds: float) -> None:
    """Print it from the JUnit files in `results`; `seconds` is how long the machine ran."""
    state = json.loads((results / "state.json").read_text())
    print(f"\nthe machine ran for {seconds:.0f} s; results are in {results}")
    for name, took in state["seconds"].items():
        print(f"  {name:10} {took:6.0f} s")
    counts = dict.fromkeys(_KINDS, 0)
    for path in sorted(results.glob("*.xml")):
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            found = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
            counts["failed"] += found["failures"]
            counts["errors"] += found["errors"]
            counts["skipped"] += found["skipped"]
            counts["passed"] += found["tests"] - found["failures"] - found["errors"] - found["skipped"]
    text = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no tests ran"
    print(f" {text} in {seconds:.2f}s ".center(80, "="))
