"""A live table of the node's pods: redrawn on a terminal, one line per change elsewhere.

Reads `pykubelet pods -o json`; knows nothing else about the agent. Ends on Ctrl-C or when `alive` returns false.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

COLUMNS = ("NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "WAITING FOR")
_PERIOD_S = 1.0
#: After this time the line shows why the start takes so long.
_START_S = 15.0
Row = tuple[str, ...]


def render_age(seconds: float) -> str:
    """A duration as kubectl shows it, in its two largest units: 42s, 3m5s, 2h7m, 4d3h."""
    left = max(0, int(seconds))
    days, hours, minutes = left // 86400, left // 3600 % 24, left // 60 % 60
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{left % 60}s" if minutes else f"{left}s"


def render_wait(wait: Mapping[str, Any], now: float) -> str:
    """What is waited for, for how long, and which part of the node ends the wait."""
    what = " ".join(str(part) for part in (wait.get("what"), wait.get("subject")) if part)
    reason = f": {wait['reason']}" if wait.get("reason") else ""
    return f"{what}{reason} ({render_age(now - float(wait.get('since') or now))}, {wait.get('owner', '?')})"


def render_rows(document: Any, now: float) -> list[Row]:
    """One row per pod of the answer of `pykubelet pods -o json`, by namespace and name."""
    rows = []
    for pod in document["pods"]:
        waits = pod.get("waits") or ()
        rows.append(
            (
                str(pod["namespace"]),
                str(pod["name"]),
                str(pod["ready"]),
                str(pod["status"]),
                str(pod["restarts"]),
                render_age(now - float(pod["created"])) if pod.get("created") else "",
                "; ".join(render_wait(wait, now) for wait in waits) or "-",
            )
        )
    return sorted(rows)


def render_table(rows: Sequence[Row], width: int) -> list[str]:
    """The table's lines, none longer than `width`.

    Where the last column does not fit, what a pod waits for stands on lines of its own below it, whole.
    """
    table = [COLUMNS, *rows]
    lines = _aligned(table)
    if all(len(line) <= width for line in lines):
        return lines
    lines = []
    for line, row in zip(_aligned([row[:-1] for row in table]), table, strict=True):
        lines.append(_cut(line, width))
        if row is not COLUMNS and row[-1] != "-":
            words = f"waiting for {row[-1]}"
            lines += textwrap.wrap(words, max(width, 20), initial_indent="    ", subsequent_indent="      ")
    return [_cut(line, width) for line in lines]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return ["   ".join(map(str.ljust, row, widths)).rstrip() for row in table]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def render_silence(problem: str, waited_s: float, *, has_answered: bool) -> str:
    """What stands in place of the table while the agent gives no answer."""
    problem = problem.removeprefix("Error: ")
    if has_answered:
        return f"the agent does not answer: {problem}"
    return "starting ..." if waited_s < _START_S else f"starting ... ({waited_s:.0f}s: {problem})"


def ask(command: Sequence[str]) -> tuple[Any, str]:
    """The decoded answer of `command`, or None and what is wrong."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    try:
        return json.loads(done.stdout), ""
    except ValueError as error:
        return None, f"not JSON: {error}"


def changed_lines(old: Sequence[Row], new: Sequence[Row]) -> list[str]:
    """What to print where there is no terminal: a line for each pod whose state, not merely age, is another."""

    def state(row: Row) -> Row:
        return row[2:5]

    before, after = {row[:2]: row for row in old}, {row[:2]: row for row in new}
    lines = [
        f"{row[0]}/{row[1]} {row[3]} ready {row[2]} restarts {row[4]}"
        + (f" waiting for {row[6]}" if row[6] != "-" else "")
        for key, row in after.items()
        if key not in before or state(before[key]) != state(row)
    ]
    return lines + [f"{key[0]}/{key[1]} gone" for key in before if key not in after]


def watch(
    command: Sequence[str],
    alive: Callable[[], bool] = lambda: True,
    footer: Sequence[str] = (),
    out: TextIO = sys.stdout,
) -> None:
    """Show the pods until `alive` returns false. KeyboardInterrupt is raised to the caller, and the screen stays as it is."""
    shown: list[Row] = []
    drawn = 0
    begun, has_answered = time.monotonic(), False
    while alive():
        answer, problem = ask(command)
        rows = render_rows(answer, time.time()) if answer is not None else None
        has_answered = has_answered or rows is not None
        if out.isatty():
            size = shutil.get_terminal_size()
            if rows is not None:
                lines = render_table(rows, size.columns)
            else:
                silence = render_silence(problem, time.monotonic() - begun, has_answered=has_answered)
                lines = [_cut(silence, size.columns)]
            below = [part for line in footer for part in textwrap.wrap(line, max(size.columns, 20))]
            lines = [*lines[: max(1, size.lines - len(below) - 3)], "", *below]
            out.write((f"\x1b[{drawn}F" if drawn else "") + "\x1b[J" + "\n".join(lines) + "\n")
            drawn = len(lines)
        elif rows is not None:
            out.writelines(line + "\n" for line in changed_lines(shown, rows))
            shown = rows
        out.flush()
        time.sleep(_PERIOD_S)


def main() -> int:
    """`live_table.py [--pykubelet PROGRAM] [--root-dir DIR]`."""
    parser = argparse.ArgumentParser(description="A live table of the node's pods, until Ctrl-C.")
    parser.add_argument("--pykubelet", default="pykubelet")
    parser.add_argument("--root-dir", default="/var/lib/kubelet")
    options = parser.parse_args()
    try:
        watch([options.pykubelet, "pods", "-o", "json", "--root-dir", os.path.abspath(options.root_dir)])
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
