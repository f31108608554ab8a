"""`$(VAR)` references in commands, arguments, environment values and sub-paths. Pure.

Rules (source: Kubernetes docs, "Define Dependent Environment Variables"): `$(NAME)` is replaced by the value of NAME;
`$$` is a literal `$`, so `$$(NAME)` stays `$(NAME)`; a reference to an unknown name, a `$` before anything else, and an
unclosed `$(` stay as they are. Inserted values are not expanded again. A text is read once, from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class TooLongError(ValueError):
    """The expanded text is longer than it may be."""


def expand(text: str, *variables: Mapping[str, str], most: int) -> str:
    """`text` with its references resolved; the first mapping that has the name wins.

    Raises TooLongError as soon as the result has more than `most` characters.
    """

    def value(name: str) -> str:
        for mapping in variables:
            if name in mapping:
                return mapping[name]
        return f"$({name})"

    return _expand(text, value, most)


def expand_all_known(text: str, variables: Mapping[str, str], most: int) -> tuple[str, tuple[str, ...]]:
    """As `expand`, where every name must have a value. Returns the text, and the sorted names that are unknown or empty."""
    missing: set[str] = set()

    def value(name: str) -> str:
        found = variables.get(name, "")
        if not found:
            missing.add(name)
        return found

    return _expand(text, value, most), tuple(sorted(missing))


def _expand(text: str, value: Callable[[str], str], most: int) -> str:
    parts: list[str] = []
    size = at = 0
    last_end = text.rfind(")")
    while at < len(text):
        dollar = text.find("$", at)
        if dollar < 0:
            found, end = text[at:], len(text)
        elif dollar > at:
            found, end = text[at:dollar], dollar
        elif text.startswith("$", at + 1):
            found, end = "$", at + 2
        elif text.startswith("(", at + 1) and last_end > at:
            close = text.index(")", at)
            found, end = value(text[at + 2 : close]), close + 1
        else:
            found, end = "$", at + 1
        size += len(found)
        if size > most:
            raise TooLongError(f"it has more than {most} characters")
        parts.append(found)
        at = end
    return "".join(parts)
