"""The commands beside the agent itself, `pykubelet NAME ...`. Cheap to import.

Those of the agent are in the table below. Those of the programs beside it are entry points of the installed distribution, in the
group `GROUP` of `pyproject.toml`: each names a `Command` in a package that the agent does not import. `cli.py` runs a command;
`--help`, the shell completion and the manual page are made from all of them and from their parsers.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from pykubelet import __version__
from pykubelet.base.kit.commands import Command

DISTRIBUTION = "pykubelet"
GROUP = "pykubelet.commands"
_ASK = "pykubelet.app.ask"
COMMANDS = {
    command.name: command
    for command in (
        Command(
            "pods", "[-o json]", "each pod of the running agent and what it waits for", _ASK, "pods", ("pods_parser",)
        ),
        Command(
            "explain", "POD|node [-o json]", "one pod's waits and recent timeline", _ASK, "explain", ("explain_parser",)
        ),
        Command(
            "extensions",
            "[enable NAME]",
            "the extensions of the agent, or enable one that is off",
            _ASK,
            "extensions",
            ("extensions_parser",),
        ),
        Command("page", "", "a link to the node's web page, valid once", _ASK, "page", ("page_parser",)),
        Command(
            "takeover",
            "--check [-- FLAGS]",
            "what would change if this agent took over from a kubelet",
            "pykubelet.app.takeover",
        ),
        Command(
            "completion", "bash|zsh|fish", "a script that completes commands and flags", "pykubelet.app.completion"
        ),
    )
}


def find_command(name: str) -> Command | None:
    """The command of this name; None if there is none. Asks the distribution only for what may be a program beside the agent."""
    command = COMMANDS.get(name)
    if command is None and not name.startswith("-"):
        target = _companions().get(name)
        command = _load(target) if target is not None else None
    return command


def all_commands() -> dict[str, Command]:
    """The commands by name: those of the agent, then those of the programs beside it."""
    return COMMANDS | {name: _load(target) for name, target in sorted(_companions().items())}


def _companions() -> dict[str, str]:
    """The entry points of this distribution alone, by name, so that the commands are those of this version. None in a bare source tree.

    `importlib.metadata` reads them as well, and stays in memory with the modules that it needs: 2 MiB of a program that runs for long.
    """
    for folder in sys.path:
        try:
            with open(os.path.join(folder, f"{DISTRIBUTION}-{__version__}.dist-info", "entry_points.txt")) as file:
                group = file.read().partition(f"[{GROUP}]\n")[2].partition("\n[")[0]
        except OSError:
            continue
        pairs = (line.partition("=") for line in group.splitlines())
        return {name.strip(): target.strip() for name, _, target in pairs if target}
    return {}


def _load(target: str) -> Command:
    """The command that an entry point names as `module:attribute`."""
    module, _, name = target.partition(":")
    command: Command = getattr(import_module(module), name)
    return command
