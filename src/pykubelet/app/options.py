"""What each command takes, as data: read from the parsers of the commands, for the completion and the manual page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from pykubelet.app.commands import all_commands
from pykubelet.base.kit.values import Value


class Option(Value):
    """An option, or a positional argument if there are no `names`. `value`: what it takes; empty: nothing."""

    names: tuple[str, ...]
    value: str
    choices: tuple[str, ...]
    help: str


class Syntax(Value):
    """A command with its words (`simulate placement`), its options and its positional arguments."""

    words: tuple[str, ...]
    description: str
    options: tuple[Option, ...]
    arguments: tuple[Option, ...]


def all_syntax() -> tuple[Syntax, ...]:
    """Of all commands. Imports all of them."""
    return tuple(
        syntax
        for command in all_commands().values()
        for parser in command.build_parsers()
        for syntax in _of((command.name,), parser)
    )


def _of(words: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[Syntax]:
    """The command itself, or its commands where it has such."""
    options: list[Option] = []
    arguments: list[Option] = []
    for action in parser._actions:  # argparse has no public way to ask
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _of((*words, name), inner)
            return
        (options if action.option_strings else arguments).append(_option(action))
    yield Syntax(words, parser.description or "", tuple(options), tuple(arguments))


def _option(action: argparse.Action) -> Option:
    choices = tuple(str(choice) for choice in action.choices or ())
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    value = "" if action.nargs == 0 else metavar or "|".join(choices) or action.dest.upper()
    text = (action.help or "") % {"default": action.default, "prog": "pykubelet"}
    return Option(tuple(action.option_strings), value, choices, text)
