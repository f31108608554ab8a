"""Text from outside: cut to a size that may be kept in statuses, Events and logs, made safe to show on a terminal, and parsed strictly:
numbers, booleans, and names that are mistyped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MARK = "..."


def shorten(text: str, most: int) -> str:
    """At most `most` characters of `text`. Text that was cut ends with three dots."""
    return text if len(text) <= most else text[: most - len(_MARK)] + _MARK


#: C0, DEL and C1 of ISO 6429, which control a terminal. A line feed is left out: it only begins a new line.
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def escape_controls(text: str) -> str:
    """`text` with all control characters but line feeds written as `\\x1b`."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


# Numbers in text that another program sent: HTTP fields, gRPC status codes, query parameters, labels

#: Every unsigned number of 63 bits has at most this many digits.
MAX_DIGITS = 19


def parse_decimal(text: str | bytes, highest: int = 2**63 - 1) -> int | None:
    """The number that `text` of ASCII digits stands for; None for any other text and for a number above `highest`.

    `int` is not strict enough for text from outside: it accepts signs, blanks, underscores and the digits of every script,
    and raises ValueError beyond 4,300 digits, where `isdigit` is still true. Text of more than 19 digits is refused without
    parsing it; leading zeros count.
    """
    if len(text) > MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number <= highest else None


def parse_integer(text: str) -> int | None:
    """The whole number of 64 bits that `text` stands for in its usual spelling, without a plus sign or leading zeros; None for
    any other text."""
    number = parse_decimal(text.removeprefix("-"), 2**63)
    signed = -number if number is not None and text.startswith("-") else number
    return signed if signed is not None and str(signed) == text and signed < 2**63 else None


# Booleans and names

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def parse_bool(text: str) -> bool:
    """Parse a Go boolean. Raises ValueError with the problem."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f'"{text}" is not a boolean: must be true or false')


#: A name that is at least as similar is a mistyped one, not a longer word for a short one.
_MISTYPED = 0.75
_MIN_SHORT = 3


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The most similar of the `known` names, whatever the case of their letters; None if none is similar.

    If none is very similar, a name that the given one begins with is: `env` for `environment`.
    """
    import difflib  # only after a mistake

    by_lower = {candidate.lower(): candidate for candidate in known}
    lower = name.lower()
    if found := difflib.get_close_matches(lower, by_lower, n=1, cutoff=max(cutoff, _MISTYPED)):
        return by_lower[found[0]]
    if short := max(
        (prefix for prefix in by_lower if len(prefix) >= _MIN_SHORT and lower.startswith(prefix)), key=len, default=""
    ):
        return by_lower[short]
    found = difflib.get_close_matches(lower, by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None
