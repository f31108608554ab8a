"""The commands beside the agent itself, `pykubelet NAME ...`: what they are called, what they do, where they are. Cheap to import.

`cli.py` runs them; `--help`, the shell completion and the manual page are made from this table and from the commands' parsers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(NamedTuple):
    """One command. `run` and `parsers`: functions of `module`; `arguments`: as in a line of usage."""

    name: str
    arguments: str
    help: str
    module: str
    run: str = "main"
    parsers: tuple[str, ...] = ("build_parser",)

    def main(self, argv: Sequence[str]) -> int:
        """Run it with the arguments after its name; returns the exit code."""
        code: int = getattr(import_module(self.module), self.run)(argv)
        return code

    def build_parsers(self) -> Iterator[ArgumentParser]:
        """The parsers of its arguments: several where it has commands of its own beside its options."""
        for name in self.parsers:
            parser: ArgumentParser = getattr(import_module(self.module), name)()
            yield parser


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
        Command("page", "", "a link to the node's web page, valid once", _ASK, "page", ("page_parser",)),
        Command("replay", "FILE", "run a recording of `explain --recording` again", "pykubelet.app.replay"),
        Command(
            "simulate", "placement ...", "try on which CPUs and NUMA nodes pods would run", "pykubelet.app.simulate"
        ),
        Command(
            "takeover",
            "--check [-- FLAGS]",
            "what would change if this agent took over from a kubelet",
            "pykubelet.app.takeover",
        ),
        Command(
            "csi-local",
            "[options]",
            "a CSI driver for volumes on this machine",
            "pykubelet.app.csi_local",
            parsers=("build_parser", "build_volumes_parser"),
        ),
        Command(
            "completion", "bash|zsh|fish", "a script that completes commands and flags", "pykubelet.app.completion"
        ),
    )
}
