"""Interprets the command of a fake container: a small subset of shell, so that fake and real containers run the same command.

Owns: `parse_script`. Supports `sleep N`, `echo TEXT`, `exit N`, `true`, `false` and `trap 'exit N' TERM` or
`trap '' TERM`, joined by `;`, as an argument list or after `sh -c`. Any other command runs until it is stopped.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pykubelet.base.kit.values import Value


class Script(Value):
    """A process: its output, when and how it ends by itself, and its reaction to SIGTERM.

    `runs_s` None: it runs until stopped. `term_exit_code` None: it ignores SIGTERM.
    """

    output: bytes = b""
    runs_s: float | None = None
    exit_code: int = 0
    term_exit_code: int | None = 143


def parse_script(argv: Sequence[str]) -> Script:
    """Parse a command. An empty or unknown command runs until it is stopped."""
    words = list(argv)
    if len(words) >= 3 and words[0].rpartition("/")[2] == "sh" and words[1] == "-c":
        statements = [shlex.split(part) for part in words[2].split(";") if part.strip()]
    else:
        statements = [words] if words else []
    if not statements:
        return Script()
    output, runs_s = b"", 0.0
    term: int | None = Script().term_exit_code
    for statement in statements:
        name, args = statement[0].rpartition("/")[2], statement[1:]
        if name == "echo":
            output += " ".join(args).encode() + b"\n"
        elif name == "sleep" and args and args[0].replace(".", "", 1).isdigit():
            runs_s += float(args[0])
        elif name == "trap" and args[-1:] == ["TERM"]:
            term = int(args[0].split()[1]) if args[0].startswith("exit ") else None
        elif name == "exit":
            return Script(output, runs_s, int(args[0]) if args else 0, term)
        elif name in ("true", "false"):
            if statement is statements[-1]:
                return Script(output, runs_s, 0 if name == "true" else 1, term)
        else:
            return Script(output, None, 0, term)
    return Script(output, runs_s, 0, term)
