"""Matches globs without backtracking: each character of a text is read once. Pure.

The syntax is that of Go's `filepath.Match`, for text without slashes: `*`, `?`, `[a-z]`, `[^a-z]`, and a backslash before a
character that stands for itself. A glob that is not well-formed matches nothing.
Source: the Go documentation of `path/filepath`.
"""

from __future__ import annotations

#: A glob for one label of a host name, and such a label, are not longer. What is longer matches nothing.
MAX_LENGTH = 255
_SPECIAL = frozenset("*?[\\")
_Ranges = list[tuple[str, str]]


class _BadGlobError(ValueError):
    """The glob is not well-formed."""


def has_wildcards(glob: str) -> bool:
    """Whether the glob may match anything but itself."""
    return not _SPECIAL.isdisjoint(glob)


def glob_matches(glob: str, text: str) -> bool:
    """Whether the whole text matches the glob."""
    if not has_wildcards(glob):
        return glob == text
    if len(glob) > MAX_LENGTH or len(text) > MAX_LENGTH:
        return False
    try:
        parsed = _Glob(glob)
    except _BadGlobError:
        return False
    accepting = {char: parsed.accepting(char) for char in set(text)}
    reached = 1  # bit n: the text so far matches the first n places
    for char in text:
        reached = (reached & accepting[char]) << 1 | reached & parsed.stars
        if not reached:
            return False
    return bool(reached >> parsed.places)


class _Glob:
    """A parsed glob: a sequence of places, each of which accepts one character of a set. In the sets of bits, bit n is for place n.

    `stars`: the places that any text may precede; bit `places` is the end.
    """

    def __init__(self, glob: str) -> None:
        """_BadGlobError."""
        self.places = 0
        self.stars = 0
        self._any = 0
        self._literals: dict[str, int] = {}
        self._classes: list[tuple[int, _Ranges, bool]] = []
        at = 0
        while at < len(glob):
            at = self._parse_term(glob, at)

    def accepting(self, char: str) -> int:
        """The places that accept the character."""
        places = self._any | self._literals.get(char, 0)
        for place, ranges, is_negated in self._classes:
            if any(low <= char <= high for low, high in ranges) is not is_negated:
                places |= place
        return places

    def _parse_term(self, glob: str, at: int) -> int:
        """Take the term that begins at `at`; return the index after it."""
        place = 1 << self.places
        if glob[at] == "*":
            self.stars |= place
            return at + 1
        self.places += 1
        if glob[at] == "?":
            self._any |= place
            return at + 1
        if glob[at] == "[":
            ranges, is_negated, at = _parse_class(glob, at + 1)
            self._classes.append((place, ranges, is_negated))
            return at
        literal, at = _parse_literal(glob, at)
        self._literals[literal] = self._literals.get(literal, 0) | place
        return at


def _parse_class(glob: str, at: int) -> tuple[_Ranges, bool, int]:
    """The ranges of a class, whether they are excluded, and the index after the class. `at`: after its first bracket."""
    is_negated = glob.startswith("^", at)
    at += is_negated
    ranges: _Ranges = []
    while not ranges or not glob.startswith("]", at):
        low, at = _parse_bound(glob, at)
        high = low
        if glob.startswith("-", at):
            high, at = _parse_bound(glob, at + 1)
        ranges.append((low, high))
    return ranges, is_negated, at + 1


def _parse_bound(glob: str, at: int) -> tuple[str, int]:
    if glob[at : at + 1] in ("", "-", "]"):
        raise _BadGlobError
    return _parse_literal(glob, at)


def _parse_literal(glob: str, at: int) -> tuple[str, int]:
    """The character at `at`, or the one after a backslash there, and the index after it."""
    at += glob[at] == "\\"
    if at == len(glob):
        raise _BadGlobError
    return glob[at], at + 1
