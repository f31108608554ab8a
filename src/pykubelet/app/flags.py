"""Splits the command line into flags and their texts, as the reference does. `flags_parse.py` parses the texts.

Rules (those of Go's pflag): `--a=b`, `--a b`, `-v 4`, `-v4`, `-v=4`; a boolean takes a value only after `=`; `_` in a name
is `-`; `--` ends the flags; words that are not flags are collected. Cheap to import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pykubelet.app.flags_table import ALL, SHORT, Flag
from pykubelet.base.kit.text import nearest

NO_VALUE = {"bool": "true", "version": "true"}


class FlagError(Exception):
    """The command line cannot be parsed. The text is pflag's."""


class GivenFlag(NamedTuple):
    """One flag as given: its text, and its name in error messages."""

    flag: Flag
    text: str
    shown: str


class CommandLine(NamedTuple):
    """A split command line. `given`: the flags in order. `words`: the arguments that are not flags."""

    given: tuple[GivenFlag, ...]
    words: tuple[str, ...]

    def last(self, name: str) -> str | None:
        """The text of the last flag with that name; None if it was not given."""
        return next((item.text for item in reversed(self.given) if item.flag.name == name), None)


def parse_command_line(argv: Sequence[str]) -> CommandLine:
    """Split `argv` (without the program's name). Raises FlagError."""
    given: list[GivenFlag] = []
    words: list[str] = []
    rest = iter(argv)
    for argument in rest:
        if argument == "--":
            words.extend(rest)
        elif argument.startswith("--"):
            given.append(_long(argument, rest))
        elif argument.startswith("-") and len(argument) > 1:
            given.extend(_short(argument, rest))
        else:
            words.append(argument)
    return CommandLine(tuple(given), tuple(words))


def _long(argument: str, rest: Iterator[str]) -> GivenFlag:
    name, equals, text = argument[2:].partition("=")
    if not name or name.startswith("-"):
        raise FlagError(f"bad flag syntax: {argument}")
    flag = ALL.get(name.replace("_", "-"))
    if flag is None:
        raise FlagError(f"unknown flag: --{name}{_nearest(name)}")
    shown = _shown(flag)
    if equals:
        return GivenFlag(flag, text, shown)
    if flag.kind in NO_VALUE:
        return GivenFlag(flag, NO_VALUE[flag.kind], shown)
    value = next(rest, None)
    if value is None:
        raise FlagError(f"flag needs an argument: --{name}")
    return GivenFlag(flag, value, shown)


def _short(argument: str, rest: Iterator[str]) -> Iterator[GivenFlag]:
    letters = argument[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = SHORT.get(letter)
        if name is None:
            raise FlagError(f"unknown shorthand flag: '{letter}' in {argument}")
        flag = ALL[name]
        shown = _shown(flag)
        if letters.startswith("="):
            yield GivenFlag(flag, letters[1:], shown)
            return
        if flag.kind in NO_VALUE:
            yield GivenFlag(flag, NO_VALUE[flag.kind], shown)
            continue
        value = letters or next(rest, None)
        if value is None:
            raise FlagError(f"flag needs an argument: '{letter}' in {argument}")
        yield GivenFlag(flag, value, shown)
        return


def _shown(flag: Flag) -> str:
    letter = next((letter for letter, name in SHORT.items() if name == flag.name), None)
    return f"-{letter}, --{flag.name}" if letter else f"--{flag.name}"


def _nearest(name: str) -> str:
    near = nearest(name, ALL, cutoff=0.7)
    return f" (did you mean --{near}?)" if near else ""
