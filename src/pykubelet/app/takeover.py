"""`pykubelet takeover --check`: what would change if this agent took over a node from the kubelet that runs there.

Reads the kubelet's command line, its configuration and files, the container runtime and, with a kubeconfig, the API server. Changes
nothing. Exit codes: 0 nothing would change, 1 something would, or the agent would not start; 2 wrong command line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence

from pykubelet.app.decide_takeover import Finding, Severity, exit_code
from pykubelet.app.flags import FlagError, parse_command_line
from pykubelet.app.load import load
from pykubelet.app.takeover_read import file_findings, node_findings
from pykubelet.base.kit.text import escape_controls, parse_decimal
from pykubelet.base.model.remarks import Remark
from pykubelet.config.errors import ConfigError
from pykubelet.config.settings import Settings

KUBELET = "kubelet"
_HEADS = {
    Severity.REFUSED: "The agent would not start:",
    Severity.CHANGE: "Would change:",
    Severity.NOTE: "To know:",
}
_USAGE = "pykubelet takeover --check [--pid PID] [-o json] [-- FLAGS OF THE KUBELET]"


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if not options.check:
        parser.error(
            "--check is missing; there is nothing else to do: stop the kubelet, and start this agent with its flags"
        )
    flags = options.flags[1:] if options.flags[:1] == ["--"] else options.flags
    if not flags:
        try:
            flags = running_flags(options.pid)
        except LookupError as error:
            print(f"Error: {error}", file=sys.stderr)
            return 1
    findings = check(flags)
    if options.output == "json":
        print(json.dumps({"flags": flags, "findings": [_as_json(finding) for finding in findings]}, indent=2))
    else:
        for line in _lines(flags, findings):
            print(escape_controls(line))
    return exit_code(findings)


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="pykubelet takeover",
        usage=_USAGE,
        description="What would change if this agent took over the node from the kubelet that runs there. Changes nothing.",
        allow_abbrev=False,
    )
    parser.add_argument("--check", action="store_true", help="say what would change")
    parser.add_argument("--pid", type=int, metavar="PID", help="the kubelet's process (default: the one named kubelet)")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="the form of the answer")
    parser.add_argument(
        "flags", nargs=argparse.REMAINDER, metavar="FLAGS", help="after --: the kubelet's flags, if it does not run"
    )
    return parser


def running_flags(pid: int | None, proc: str = "/proc") -> list[str]:
    """The flags of a kubelet that runs. Raises LookupError if none is found, or several are."""
    pids = [pid] if pid is not None else _kubelets(proc)
    if not pids:
        raise LookupError("no process named kubelet runs: give its flags after --, as in its unit file")
    if len(pids) > 1:
        raise LookupError(f"several processes are named kubelet: {', '.join(map(str, pids))}: choose with --pid")
    words = _command(proc, pids[0])
    if not words:
        raise LookupError(f"the command line of process {pids[0]} cannot be read")
    return words[1:]


def _kubelets(proc: str) -> list[int]:
    pids = sorted(pid for name in os.listdir(proc) if (pid := parse_decimal(name)) is not None)
    return [pid for pid in pids if os.path.basename((_command(proc, pid) or [""])[0]) == KUBELET]


def _command(proc: str, pid: int) -> list[str]:
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def check(flags: Sequence[str]) -> list[Finding]:
    """The findings about a takeover from a kubelet with these flags."""
    try:
        settings = load(parse_command_line(flags))
    except FlagError as error:
        return [Finding(Severity.REFUSED, "command line", str(error))]
    except ConfigError as error:
        refused = [Finding(Severity.REFUSED, "configuration", problem) for problem in error.problems]
        return [*refused, *_remark_findings(error.remarks)]
    return [*_setting_findings(settings), *file_findings(settings), *asyncio.run(node_findings(settings))]


def _setting_findings(settings: Settings) -> Iterator[Finding]:
    for warning in settings.warnings:
        yield Finding(Severity.NOTE, "configuration", warning)
    yield from _remark_findings(settings.remarks)


def _remark_findings(remarks: Sequence[Remark]) -> Iterator[Finding]:
    """What the reference accepts and remarks in its log too."""
    for remark in remarks:
        yield Finding(Severity.NOTE, f"configuration {remark.origin}", remark.text)


def _as_json(finding: Finding) -> dict[str, str]:
    return {"severity": finding.severity.value, "subject": finding.subject, "text": finding.text}


def _lines(flags: Sequence[str], findings: Sequence[Finding]) -> Iterator[str]:
    yield f"The kubelet's flags: {' '.join(flags) or 'none'}"
    for severity, head in _HEADS.items():
        found = [finding for finding in findings if finding.severity is severity]
        if found:
            yield ""
            yield head
        for finding in found:
            yield f"  {finding.subject}: {finding.text}"
    yield ""
    yield _summary(findings)


def _summary(findings: Sequence[Finding]) -> str:
    severities = {finding.severity for finding in findings}
    if Severity.REFUSED in severities:
        return "The takeover would fail."
    return "The takeover would change the node." if Severity.CHANGE in severities else "Nothing would change."
