"""What a command of the program is: its name, its help and where its code is. Cheap to import, as `--help` needs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(NamedTuple):
    """One command, `pykubelet NAME ...`. `run`: a function of `module`; `parsers`: functions of `options`, or
    of `module` if that is empty; `arguments`: as in a line of usage.
    """

    name: str
    arguments: str
    help: str
    module: str
    run: str = "main"
    parsers: tuple[str, ...] = ("build_parser",)
    options: str = ""

    def main(self, argv: Sequence[str]) -> int:
        """Run it with the arguments after its name; returns the exit code."""
        code: int = getattr(import_module(self.module), self.run)(argv)
        return code

    def build_parsers(self) -> Iterator[ArgumentParser]:
        """The parsers of its arguments: several where it has commands of its own beside its options."""
        module = import_module(self.options or self.module)
        for name in self.parsers:
            parser: ArgumentParser = getattr(module, name)()
            yield parser
