"""`python -m bench.extensions`: what the agent needs with all samples of extensions that are functions, and without. Needs root.

They run in turn on one private containerd, as interpreters do in `bench.interpreters`: without extensions, with them for pods that they
are not about, and for pods that each of them is asked about. Exit code 1 if starts or CPU of pods cost more than the target with them.

`--earlier` names the program of an agent that has no extensions yet: what they cost where none is loaded is printed beside it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.agent import PROGRAM
from bench.interpreters import COLUMNS, Interpreter, compare
from bench.stats import spread

SAMPLES = Path(__file__).parents[1] / "examples/extensions"
#: With the extensions, as a share of without.
TARGET = 1.03
#: Of pods that each sample is asked about, and answers None.
ANNOTATIONS = {"carbon.example.com/most": "9999", "deadline.example.com/note": "none", "tier.example.com/main": "plain"}


def main() -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(prog="python -m bench.extensions", description="The agent with extensions.")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--pods", type=int, default=100, help="how many start at once")
    parser.add_argument("--earlier", type=Path, help="the program of an agent before there were extensions")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("bench: run as root: a node makes mounts, cgroups and network interfaces", file=sys.stderr)
        return 1
    flags = [word for path in samples() for word in ("--extension", str(path))]
    rows = [
        Interpreter(PROGRAM, "without extensions"),
        Interpreter(PROGRAM, f"with {len(flags) // 2} extensions, other pods", flags=tuple(flags)),
        Interpreter(PROGRAM, "with them, their pods", flags=tuple(flags), annotations=ANNOTATIONS),
    ]
    earlier = [Interpreter(options.earlier, "an earlier agent")] if options.earlier is not None else []
    failed = compare([*rows, *earlier], options.rounds, options.pods)
    if failed:
        return failed
    for row in earlier:
        for column in COLUMNS:
            print(f"without extensions, against {row.name}: {column}: {ratio(rows[0], row, column):.3f}")
    return judged(rows)


def samples() -> Sequence[Path]:
    """The samples that are functions: those that are processes are executable."""
    return sorted(path for path in SAMPLES.glob("*.py") if not os.access(path, os.X_OK))


def ratio(row: Interpreter, other: Interpreter, column: str) -> float:
    """The median of a column of one row, divided by that of another."""
    return spread(row.samples[column]).median / spread(other.samples[column]).median


def judged(rows: Sequence[Interpreter]) -> int:
    """Print the ratios of the other rows to the first. Returns 1 if one is above the target."""
    code = 0
    for row in rows[1:]:
        for column in ("single", "pod_start", "pod_end"):
            found = ratio(row, rows[0], column)
            print(f"{row.name}: {column}: {found:.3f} (target {TARGET})")
            code |= found > TARGET
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
